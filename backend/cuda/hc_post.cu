// See backend/ops/hc_post.h for the contract.
#include "backend/cuda/formats.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/state.h"

namespace fathom {
namespace cuda {
namespace {

// A thread per channel of a row, any number of copies: it reads the channel of every copy before it
// writes one.
__global__ void __launch_bounds__(kBlock)
    AnyCopiesKernel(const float* out, const float* post, const float* comb, int copies,
                    int64_t width, int64_t n, float* hc) {
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
        mixed = fma(static_cast<double>(comb[(row * copies + j) * copies + k]),
                    static_cast<double>(before[j]), mixed);
      }
    }
    const float added = post[row * copies + k] * out[i];
    x[k * width] = RoundBf16(static_cast<float>(static_cast<double>(added) + mixed));
  }
}

// The same for four copies, a thread per four channels, which lie on 16 bytes. Double holds the
// products, so the sums are those above.
constexpr int kUsualCopies = 4;
__global__ void __launch_bounds__(kBlock)
    FourCopiesKernel(const float* out, const float* post, const float* comb, unsigned width,
                     unsigned blocks_of_row, float* hc) {
  const int64_t row = blockIdx.x / blocks_of_row;
  const unsigned channel = 4 * (blockIdx.x % blocks_of_row * kBlock + threadIdx.x);
  if (channel >= width) return;
  float* const x = hc + row * kUsualCopies * width + channel;
  const auto at = [](const float* from) { return *reinterpret_cast<const float4*>(from); };
  double before[kUsualCopies][4];
#pragma unroll
  for (int j = 0; j < kUsualCopies; ++j) {
    const float4 four = at(x + j * width);
    before[j][0] = four.x, before[j][1] = four.y, before[j][2] = four.z, before[j][3] = four.w;
  }
  const float4 four = at(out + row * width + channel);
  const float output[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
  for (int k = 0; k < kUsualCopies; ++k) {
    double factors[kUsualCopies];
#pragma unroll
    for (int j = 0; j < kUsualCopies; ++j) {
      factors[j] = comb[(row * kUsualCopies + j) * kUsualCopies + k];
    }
    const float factor = post[row * kUsualCopies + k];
    float after[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      double mixed = 0.0;
#pragma unroll
      for (int j = 0; j < kUsualCopies; ++j) mixed = fma(factors[j], before[j][i], mixed);
      const float added = factor * output[i];
      after[i] = RoundBf16(static_cast<float>(static_cast<double>(added) + mixed));
    }
    *reinterpret_cast<float4*>(x + k * width) = {after[0], after[1], after[2], after[3]};
  }
}

bool OnSixteenBytes(const float* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace
}  // namespace cuda

Status CudaBackend::DoHcPost(const HcPostArgs& args) {
  State& state = *state_;
  FATHOM_RETURN_IF_ERROR(state.Enter());
  const int64_t n = args.hc.dim(0);
  const int64_t width = args.hc.dim(2);
  if (args.hc.size() == 0) return OkStatus();
  if (args.hc.dim(1) == cuda::kUsualCopies && width % 4 == 0 &&
      cuda::OnSixteenBytes(args.hc.data()) && cuda::OnSixteenBytes(args.out.data())) {
    const unsigned blocks_of_row = cuda::Blocks(width, int64_t{4} * cuda::kBlock);
    cuda::Launch(cuda::FourCopiesKernel, static_cast<unsigned>(n) * blocks_of_row, cuda::kBlock, 0,
                 state.stream, args.out.data(), args.post.data(), args.comb.data(),
                 static_cast<unsigned>(width), blocks_of_row, args.hc.data());
    return cuda::LaunchStatus("hc_post");
  }
  cuda::Launch(cuda::AnyCopiesKernel, cuda::Blocks(n * width, cuda::kBlock), cuda::kBlock, 0,
               state.stream, args.out.data(), args.post.data(), args.comb.data(),
               static_cast<int>(args.hc.dim(1)), width, n, args.hc.data());
  return cuda::LaunchStatus("hc_post");
}

}  // namespace fathom
