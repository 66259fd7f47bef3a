// See backend/ops/hc_post.h for the contract.
#include "backend/cuda/formats.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/state.h"

namespace fathom {
namespace cuda {
namespace {

// A thread per channel of a row: it reads the channel of every copy before it writes one.
__global__ void __launch_bounds__(kBlock)
    HcPostKernel(const float* out, const float* post, const float* comb, int copies, int64_t width,
                 int64_t n, float* hc) {
  const int64_t i = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i >= n * width) return;
  const int64_t row = i / width;
  float* x = hc + row * copies * width + i % width;
  float before[kMaxHcMult];
#pragma unroll
  for (int j = 0; j < kMaxHcMult; ++j) before[j] = j < copies ? x[j * width] : 0.0f;
  for (int k = 0; k < copies; ++k) {
    double mixed = 0.0;
#pragma unroll
    for (int j = 0; j < kMaxHcMult; ++j) {
      if (j < copies) {
        mixed += static_cast<double>(comb[(row * copies + j) * copies + k]) *
                 static_cast<double>(before[j]);
      }
    }
    const float added = post[row * copies + k] * out[i];
    x[k * width] = RoundBf16(static_cast<float>(static_cast<double>(added) + mixed));
  }
}

}  // namespace
}  // namespace cuda

Status CudaBackend::DoHcPost(const HcPostArgs& args) {
  State& state = *state_;
  FATHOM_RETURN_IF_ERROR(state.Enter());
  const int64_t n = args.hc.dim(0);
  const int64_t width = args.hc.dim(2);
  if (args.hc.size() == 0) return OkStatus();
  const auto blocks = cuda::Blocks(n * width, cuda::kBlock);
  cuda::Launch(cuda::HcPostKernel, blocks, cuda::kBlock, 0, state.stream, args.out.data(),
               args.post.data(), args.comb.data(), static_cast<int>(args.hc.dim(1)), width, n,
               args.hc.data());
  return cuda::LaunchStatus("hc_post");
}

}  // namespace fathom
