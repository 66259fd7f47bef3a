// See backend/ops/rms_norm.h for the contract.
#include "backend/cuda/launch.cuh"
#include "backend/cuda/rows.cuh"
#include "backend/cuda/state.h"

namespace fathom {
namespace cuda {
namespace {

// A block per row; each thread writes the elements that it read, so out may be x.
__global__ void __launch_bounds__(kBlock) RmsNormKernel(const float* x_rows, const float* weight,
                                                        int64_t size, float eps, float* out_rows) {
  __shared__ double sums[kWarps];
  const float* x = x_rows + int64_t{blockIdx.x} * size;
  float* out = out_rows + int64_t{blockIdx.x} * size;
  const float inverse = InverseRms(BlockSum(SquaresOf(x, size), sums), size, eps);
  for (int64_t i = threadIdx.x; i < size; i += kBlock) {
    out[i] = RoundBf16(weight[i] * (x[i] * inverse));
  }
}

}  // namespace
}  // namespace cuda

Status CudaBackend::DoRmsNorm(const RmsNormArgs& args) {
  State& state = *state_;
  FATHOM_RETURN_IF_ERROR(state.EnterLane());
  if (args.x.size() == 0) return OkStatus();
  cuda::Launch(cuda::RmsNormKernel, static_cast<unsigned>(args.x.dim(0)), cuda::kBlock, 0,
               state.lanes.room().stream, args.x.data(), args.weight.data(), args.x.dim(1),
               args.eps, args.out.data());
  return cuda::LaunchStatus("rms_norm");
}

}  // namespace fathom
