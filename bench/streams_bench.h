// Requests that decode together in an engine, against what its kernels do on one large batch.
//
// The same rows are computed twice: by an EngineCore, which schedules, plans, samples and hands out
// tokens, and by Model::Forward in a loop (DirectBatch). The share of the second that is left of it
// in the first is what everything around the kernels costs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/status.h"
#include "bench/report.h"
#include "engine/engine_core.h"

namespace fathom::bench {

struct StreamsBenchOptions {
  LocalEngineOptions engine;  // its lengths and numbers of sequences are the benchmark's
  std::vector<int> streams = {1, 2, 4, 8, 16, 32};
  int64_t prompt_tokens = 256;
  int64_t output_tokens = 128;
  int repeats = 5;
};

// kInvalidArgument for sizes that the model has no room for; kInternal should the two ways disagree
// about a token.
Result<Report> BenchStreams(const std::filesystem::path& model, const StreamsBenchOptions& options);

}  // namespace fathom::bench
