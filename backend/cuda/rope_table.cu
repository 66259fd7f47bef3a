// See backend/ops/rope_table.h for the contract.
#include "backend/cuda/launch.cuh"
#include "backend/cuda/state.h"
#include "backend/cuda/warp.cuh"

namespace fathom {
namespace cuda {
namespace {

// A block per position.
__global__ void __launch_bounds__(kBlock)
    RopeTableKernel(const Position* positions, const float* frequencies, int64_t pairs,
                    float* cos_sin) {
  const auto position = static_cast<float>(positions[blockIdx.x]);
  float* row = cos_sin + int64_t{blockIdx.x} * 2 * pairs;
  for (int64_t k = threadIdx.x; k < pairs; k += kBlock) {
    const auto angle = static_cast<double>(position * frequencies[k]);
    row[2 * k] = static_cast<float>(cos(angle));
    row[2 * k + 1] = static_cast<float>(sin(angle));
  }
}

}  // namespace
}  // namespace cuda

Status CudaBackend::DoRopeTable(const RopeTableArgs& args) {
  State& state = *state_;
  FATHOM_RETURN_IF_ERROR(state.Enter());
  if (args.cos_sin.size() == 0) return OkStatus();
  FATHOM_ASSIGN_OR_RETURN(const Position* positions, state.Operand(args.positions));
  cuda::Launch(cuda::RopeTableKernel, static_cast<unsigned>(args.positions.size()), cuda::kBlock, 0,
               state.stream, positions, args.frequencies.data(), args.frequencies.dim(0),
               args.cos_sin.data());
  return cuda::LaunchStatus("rope_table");
}

}  // namespace fathom
