// Random values where they are needed: base/fill_recipe.h on the device, the same bytes.
#include <iterator>

#include "backend/cuda/launch.cuh"
#include "backend/cuda/state.h"

namespace fathom {
namespace cuda {
namespace {

constexpr int kFillThreads = 256;
constexpr int kFillBlocks = 1056;  // 8 on each of an H200's 132 processors

// Eight bytes per thread and turn; the tables are read from shared memory.
__global__ void __launch_bounds__(kFillThreads)
    FillKernel(const __grid_constant__ FillRecipe recipe, const float* quantiles, uint64_t* to,
               int64_t bytes) {
  static_assert(sizeof(FillRecipe) % sizeof(uint32_t) == 0);
  alignas(FillRecipe) __shared__ uint32_t copy[sizeof(FillRecipe) / sizeof(uint32_t)];
  for (size_t i = threadIdx.x; i < std::size(copy); i += kFillThreads) {
    copy[i] = reinterpret_cast<const uint32_t*>(&recipe)[i];
  }
  __syncthreads();
  const auto& shared = *reinterpret_cast<const FillRecipe*>(copy);
  const int64_t words = bytes / 8;
  const int64_t stride = int64_t{gridDim.x} * kFillThreads;
  for (int64_t i = int64_t{blockIdx.x} * kFillThreads + threadIdx.x; i <= words; i += stride) {
    if (i < words) {
      to[i] = FillWord(shared, quantiles, static_cast<uint64_t>(i));
    } else if (bytes % 8 != 0) {
      const uint64_t last = FillWord(shared, quantiles, static_cast<uint64_t>(i));
      auto* const tail = reinterpret_cast<uint8_t*>(to + words);
      for (int j = 0; j < bytes % 8; ++j) tail[j] = static_cast<uint8_t>(last >> (8 * j));
    }
  }
}

}  // namespace
}  // namespace cuda

Status CudaBackend::Fill(const FillRecipe& recipe, std::byte* to, int64_t bytes) {
  State& state = *state_;
  FATHOM_CUDA(cudaSetDevice(state.options.device));
  if (recipe.kind == FillRecipe::Kind::kExpertTable) {
    return InvalidArgument("cuda backend: tables of expert ids are made on the host");
  }
  if (reinterpret_cast<uintptr_t>(to) % 8 != 0) {
    return InvalidArgument("cuda backend: fills begin at multiples of 8 bytes");
  }
  if (bytes <= 0) return OkStatus();
  constexpr int64_t kQuantileBytes = kNumFillQuantiles * int64_t{sizeof(float)};
  if (state.quantiles.data() == nullptr) {
    FATHOM_ASSIGN_OR_RETURN(state.quantiles, state.memory.Allocate(kQuantileBytes));
    FATHOM_RETURN_IF_ERROR(state.memory.CopyIn(
        state.quantiles.data(),
        {reinterpret_cast<const std::byte*>(FillQuantiles()), size_t{kQuantileBytes}}));
  }
  cuda::Launch(cuda::FillKernel, cuda::kFillBlocks, cuda::kFillThreads, 0, state.stream, recipe,
               reinterpret_cast<const float*>(state.quantiles.data()),
               reinterpret_cast<uint64_t*>(to), bytes);
  return cuda::LaunchStatus("fill");
}

}  // namespace fathom
