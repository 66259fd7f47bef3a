// Time of every operation of a backend at the sizes of a model, beside what the machine can read
// and compute at most.
//
// Weights are random and come from memory (bench/weight_memory.h); activations stay where the
// operation before would have left them, in caches. The step is one of a single sequence. A backend
// with a device is timed on operands in its memory and beside that device's limits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/cpu/cpu_options.h"
#include "base/status.h"
#include "bench/report.h"
#include "checkpoint/config.h"

namespace fathom::bench {

// Names of all operations, in the order of the forward pass.
std::vector<std::string> OperationNames();

struct OpsBenchOptions {
  std::string backend = "cpu";
  std::string backend_plugin;            // as in LocalEngineOptions
  int num_threads = 0;                   // 0: DefaultThreadCount()
  CpuOptions cpu;                        // int8_dense is not for weights that come in turn
  bool fp8_o_proj_inputs = false;        // of inverse_rope_out
  std::vector<int> rows = {1, 16, 512};  // tokens of the step
  std::vector<std::string> only;         // operations (OperationNames); empty: all
  // Tokens in front of the step. 8191: the first row ends a compression window of either ratio.
  int64_t context = 8191;
  int64_t memory_bytes = int64_t{2} << 30;  // of weights
  int repeats = 5;                          // at least so many runs of each operation,
  int time_ms = 200;                        // and more until this time is over
};

// kUnimplemented for the cuda backend in builds without it, and for plug-ins with a memory of their
// own, whose device has no limits here. kInvalidArgument for contexts beyond
// the model's positions, unknown operations and matrices for which the memory is too small;
// kOutOfMemory where it is more than half of what is free there, or where activations need more
// than a quarter of that.
Result<Report> BenchOps(const ModelConfig& config, const OpsBenchOptions& options);

}  // namespace fathom::bench
