// See backend/ops/hc_pre_norm.h for the contract.
#include "backend/cuda/hc_mix.cuh"
#include "backend/cuda/state.h"

namespace fathom {
namespace cuda {
namespace {

constexpr int kMaxComb = kMaxHcMult * kMaxHcMult;
constexpr int kMaxMix = 2 * kMaxHcMult + kMaxComb;

// One thread per element of comb [source][destination], which holds the logits at first. Sums run
// over rows and columns in ascending order.
__device__ void Sinkhorn(float* comb, int hc, int iterations, float eps) {
  const int thread = static_cast<int>(threadIdx.x);
  const bool mine = thread < hc * hc;
  const int j = thread / hc;
  const int k = thread % hc;
  const auto replace = [&](float value) {
    __syncthreads();
    if (mine) comb[thread] = value;
    __syncthreads();
  };
  const auto divide = [&](int first, int stride) {
    float value = 0.0f;
    if (mine) {
      float sum = 0.0f;
      for (int i = 0; i < hc; ++i) sum += comb[first + i * stride];
      value = comb[thread] / (sum + eps);
    }
    replace(value);
  };
  float value = 0.0f;
  if (mine) {
    float max = comb[j * hc];
    for (int i = 1; i < hc; ++i) max = fmaxf(max, comb[j * hc + i]);
    value = expf(comb[thread] - max);
  }
  replace(value);
  if (mine) {
    float sum = 0.0f;
    for (int i = 0; i < hc; ++i) sum += comb[j * hc + i];
    value = comb[thread] / sum + eps;
  }
  replace(value);
  divide(k, hc);
  for (int i = 1; i < iterations; ++i) {
    divide(j * hc, 1);
    divide(k, hc);
  }
}

// A block per row. Views of the args, as the device sees them.
struct HcPreNormRows {
  const float* hc;
  const float* fn;
  const float* base;
  const float* scale;
  const float* norm_weight;
  float norm_eps;
  float hc_eps;
  int sinkhorn_iters;
  int copies;
  int64_t width;
  float* x;
  float* post;
  float* comb;
};

__global__ void __launch_bounds__(kBlock) HcPreNormKernel(HcPreNormRows a) {
  __shared__ double sums[kWarps];
  __shared__ float mix[kMaxMix];
  __shared__ float pre[kMaxHcMult];
  __shared__ float comb[kMaxComb];
  const int64_t row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const int hc = a.copies;
  const float* copies = a.hc + row * hc * a.width;
  MixCopies(copies, a.fn, (2 + hc) * hc, hc * a.width, a.norm_eps, mix, sums);
  if (thread < hc) {
    pre[thread] = Sigmoid(mix[thread] * a.scale[0] + a.base[thread]) + a.hc_eps;
    a.post[row * hc + thread] = 2.0f * Sigmoid(mix[hc + thread] * a.scale[1] + a.base[hc + thread]);
  }
  if (thread < hc * hc) {
    comb[thread] = mix[2 * hc + thread] * a.scale[2] + a.base[2 * hc + thread];
  }
  __syncthreads();
  SumAndNorm(copies, pre, hc, a.width, a.norm_weight, a.norm_eps, a.x + row * a.width, sums);
  Sinkhorn(comb, hc, a.sinkhorn_iters, a.hc_eps);
  if (thread < hc * hc) a.comb[row * hc * hc + thread] = comb[thread];
}
static_assert(kMaxComb <= kBlock);

}  // namespace
}  // namespace cuda

Status CudaBackend::DoHcPreNorm(const HcPreNormArgs& args) {
  State& state = *state_;
  FATHOM_RETURN_IF_ERROR(state.Enter());
  if (args.hc.size() == 0) return OkStatus();
  const cuda::HcPreNormRows rows = {
      args.hc.data(),    args.fn.data(),          args.base.data(),
      args.scale.data(), args.norm_weight.data(), args.norm_eps,
      args.hc_eps,       args.sinkhorn_iters,     static_cast<int>(args.hc.dim(1)),
      args.hc.dim(2),    args.x.data(),           args.post.data(),
      args.comb.data()};
  cuda::HcPreNormKernel<<<static_cast<unsigned>(args.hc.dim(0)), cuda::kBlock, 0, state.stream>>>(
      rows);
  return cuda::LaunchStatus("hc_pre_norm");
}

}  // namespace fathom
