// One request at the longest context: its memory against what the planner says, and what a decode
// step costs at depths on the way there.
//
// Only the first tokens are computed; the pages behind them repeat their entries
// (SequenceRunner::Repeat), so that index scores differ and the choice among them is real work.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/status.h"
#include "bench/report.h"
#include "engine/engine_core.h"

namespace fathom::bench {

struct ContextBenchOptions {
  LocalEngineOptions engine;  // backend, threads, numerics, formats and rows of a step
  // Positions of the last decode step of each measurement, ascending.
  std::vector<int64_t> depths = {4096, 65'536, 262'144, (1 << 20) - 1};
  int64_t computed_tokens = 8192;  // then repeated; whole blocks
  int num_steps = 32;              // at each depth
};

// kInvalidArgument for depths beyond the model's positions, or nearer to each other than the steps
// of a measurement.
Result<Report> BenchContext(const std::filesystem::path& model, const ContextBenchOptions& options);

}  // namespace fathom::bench
