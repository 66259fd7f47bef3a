#include "bench/fusion_bench.h"

namespace fathom::bench {

Result<Report> BenchFusions(const ModelConfig& /*config*/, const FusionBenchOptions& options) {
  if (options.backend != "cuda") {
    return InvalidArgument("--backend " + options.backend +
                           ": fused and unfused operations are the cuda backend's");
  }
  return Unimplemented(
      "--backend cuda: this build has no CUDA backend to measure (cmake --preset cuda)");
}

}  // namespace fathom::bench
