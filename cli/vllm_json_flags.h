// Flags of `vllm serve` whose value is a JSON object: what each key means here.
//
// Keys that are unknown are refused with the closest known one. Thread safety: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cli/vllm_flags.h"
#include "model/step_graphs.h"

namespace fathom::cli {

Judgement JudgeSpeculative(const std::string& value);
Judgement JudgeKvTransfer(const std::string& value);
Judgement JudgeReasoning(const std::string& value);
Judgement JudgeStructuredOutputs(const std::string& value);
Judgement JudgeHybridCache(const std::string& value);

// --compilation-config, of which three keys are honoured.
struct CompilationConfig {
  std::optional<GraphMode> mode;
  std::optional<std::vector<int>> sizes;  // 1 to kMostGraphTokens each; may be none
  std::optional<int> max_size;            // 0 to that
  std::vector<std::string> others;        // keys that mean nothing here, of an object or a level
};
inline constexpr int kMostGraphTokens = 65536;  // of a step, as --max-num-batched-tokens
// kInvalidArgument for what is no object, unknown keys, and values of those three that are none.
Result<CompilationConfig> ParseCompilationConfig(const std::string& value);

// --attention-config, of which one key is honoured: sets `fp4_indexer` if the object has it.
Judgement JudgeAttention(const std::string& value, bool* fp4_indexer);

// Of an object whose keys are not looked at; an empty one is fine.
Judgement JudgeAnyObject(const std::string& value, Verdict verdict, std::string_view text);

// deepseek_v4, also deepseek-v4 and deepseekv4: one character's difference between engines.
bool IsOurParser(std::string_view name);

}  // namespace fathom::cli
