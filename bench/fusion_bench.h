// Three operations of the cuda backend against the same work as sequences of small kernels
// (backend/cuda/unfused/): what fusing them is worth.
//
// fusion_bench.cc is compiled with FATHOM_CUDA and fusion_bench_absent.cc without.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "bench/report.h"
#include "checkpoint/config.h"

namespace fathom::bench {

struct FusionBenchOptions {
  std::string backend = "cuda";
  std::vector<int> rows = {1, 64, 512, 4096};  // tokens of the step
  // Tokens in front of the step. 8191: the first row ends a compression window of either ratio.
  int64_t context = 8191;
  int repeats = 9;  // runs of each side, in turns
};

// kUnimplemented in builds without the cuda backend. kInvalidArgument for another backend, which
// has no unfused operations, and for contexts beyond the model's positions. Errors of operands that
// the GPU has no room for are kOutOfMemory.
Result<Report> BenchFusions(const ModelConfig& config, const FusionBenchOptions& options);

}  // namespace fathom::bench
