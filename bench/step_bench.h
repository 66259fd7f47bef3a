// What planning a decode step costs: Scheduler::Schedule, StepBuilder::Build, Scheduler::Commit.
//
// No model and no memory behind the blocks; the geometry is that of a config.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "bench/report.h"
#include "checkpoint/config.h"

namespace fathom::bench {

struct StepBenchOptions {
  int num_sequences = 256;
  std::vector<int64_t> contexts = {4096, 1 << 20};  // tokens at the end of the measurement
  int num_steps = 256;                              // of one repetition
  int repeats = 5;
};

// kInvalidArgument for contexts that the model or the steps do not fit into, and for more tokens in
// all than this benchmark keeps in memory.
Result<Report> BenchStep(const ModelConfig& config, const StepBenchOptions& options);

}  // namespace fathom::bench
