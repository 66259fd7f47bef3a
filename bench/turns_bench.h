// A conversation on a long system prompt: what each turn computes, and when its first token is
// there.
//
// Three conversations: one in which each turn repeats all before it (tools, or no thinking); one in
// which the last answer changes at its first token, as where thinking of earlier turns is dropped
// from prompts; and one without prefix caching.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/status.h"
#include "bench/report.h"
#include "engine/engine_core.h"

namespace fathom::bench {

struct TurnsBenchOptions {
  LocalEngineOptions engine;  // its longest length is the benchmark's
  int turns = 20;
  int turns_without_cache = 3;
  int64_t system_tokens = 16'384;
  int64_t question_tokens = 100;
  int64_t answer_tokens = 100;
};

// kInvalidArgument for conversations longer than the model has positions.
Result<Report> BenchTurns(const std::filesystem::path& model, const TurnsBenchOptions& options);

}  // namespace fathom::bench
