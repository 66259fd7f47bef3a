// See backend/runs_behind.h for the contract.
#include "backend/cuda/launch.cuh"
#include "backend/cuda/state.h"
#include "backend/cuda/warp.cuh"

namespace fathom {
namespace cuda {
namespace {

__global__ void __launch_bounds__(kBlock)
    PlaceTokensKernel(const TokenSource* sources, int64_t count, const int32_t* tokens,
                      TokenId* token_ids) {
  for (int64_t i = threadIdx.x; i < count; i += kBlock) {
    token_ids[sources[i].row] = tokens[sources[i].sampled];
  }
}

}  // namespace
}  // namespace cuda

Status CudaBackend::PlaceTokens(std::span<const TokenSource> sources,
                                TensorView<const int32_t> tokens) {
  State& state = *state_;
  FATHOM_RETURN_IF_ERROR(state.Enter());
  if (state.begun == nullptr) return InvalidArgument("cuda backend: tokens placed without a plan");
  const auto rows = static_cast<int32_t>(state.begun->token_ids.size());
  for (const TokenSource& source : sources) {
    if (source.row < 0 || source.row >= rows || source.sampled < 0 ||
        source.sampled >= tokens.size()) {
      return InvalidArgument("cuda backend: token " + std::to_string(source.sampled) + " of " +
                             std::to_string(tokens.size()) + " for row " +
                             std::to_string(source.row) + " of " + std::to_string(rows));
    }
  }
  if (sources.empty()) return OkStatus();
  FATHOM_RETURN_IF_ERROR(state.MayCopy("tokens' places"));
  FATHOM_ASSIGN_OR_RETURN(const TokenSource* places, state.operands.Copy(sources));
  cuda::Launch(cuda::PlaceTokensKernel, 1, cuda::kBlock, 0, state.stream, places,
               static_cast<int64_t>(sources.size()), tokens.data(),
               state.begun_copy.operands.token_ids);
  return cuda::LaunchStatus("place_tokens");
}

}  // namespace fathom
