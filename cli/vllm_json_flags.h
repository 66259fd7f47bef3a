// Flags of `vllm serve` whose value is a JSON object: what each key means here.
//
// Keys that are unknown are refused with the closest known one. Thread safety: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "cli/vllm_flags.h"

namespace fathom::cli {

Judgement JudgeCompilation(const std::string& value);
Judgement JudgeSpeculative(const std::string& value);
Judgement JudgeKvTransfer(const std::string& value);
Judgement JudgeReasoning(const std::string& value);
Judgement JudgeStructuredOutputs(const std::string& value);
Judgement JudgeHybridCache(const std::string& value);

// --attention-config, of which one key is honoured: sets `fp4_indexer` if the object has it.
Judgement JudgeAttention(const std::string& value, bool* fp4_indexer);

// Of an object whose keys are not looked at; an empty one is fine.
Judgement JudgeAnyObject(const std::string& value, Verdict verdict, std::string_view text);

// deepseek_v4, also deepseek-v4 and deepseekv4: one character's difference between engines.
bool IsOurParser(std::string_view name);

}  // namespace fathom::cli
