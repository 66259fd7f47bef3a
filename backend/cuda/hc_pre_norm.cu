// See backend/ops/hc_pre_norm.h for the contract.
#include <algorithm>

#include "backend/cuda/hc_mix.cuh"
#include "backend/cuda/hc_mix.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/state.h"

namespace fathom {
namespace cuda {
namespace {

constexpr int kMaxComb = kMaxHcMult * kMaxHcMult;

// comb [source][destination] holds the logits at first; the work of a warp, sums over rows and
// columns in ascending order.
__device__ void Sinkhorn(float* comb, int hc, int iterations, float eps) {
  constexpr int kEach = (kMaxComb + kWarp - 1) / kWarp;  // elements of a lane
  const int size = hc * hc;
  // comb[e] = value(e) for all, from what was there before.
  const auto replace = [&](const auto& value) {
    float values[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int e = Lane() + i * kWarp;
      if (e < size) values[i] = value(e);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int e = Lane() + i * kWarp;
      if (e < size) comb[e] = values[i];
    }
    __syncwarp();
  };
  const auto sum_of = [&](int first, int stride) {
    float sum = 0.0f;
    for (int i = 0; i < hc; ++i) sum += comb[first + i * stride];
    return sum;
  };
  const auto divide_rows = [&] {
    replace([&](int e) { return comb[e] / (sum_of(e / hc * hc, 1) + eps); });
  };
  const auto divide_columns = [&] {
    replace([&](int e) { return comb[e] / (sum_of(e % hc, hc) + eps); });
  };
  replace([&](int e) {
    const float* row = comb + e / hc * hc;
    float max = row[0];
    for (int i = 1; i < hc; ++i) max = fmaxf(max, row[i]);
    return expf(comb[e] - max);
  });
  replace([&](int e) { return comb[e] / sum_of(e / hc * hc, 1) + eps; });
  divide_columns();
  for (int i = 1; i < iterations; ++i) {
    divide_rows();
    divide_columns();
  }
}

// The same with an element per lane, of kCopies * kCopies of them: lane e % that has comb[e]. The
// sums are those of Sinkhorn.
template <int kCopies>
__device__ float SinkhornLanes(float logit, int iterations, float eps) {
  constexpr int kSize = kCopies * kCopies;
  static_assert(kWarp % kSize == 0);
  const int e = Lane() % kSize;
  const auto sum_of = [](float value, int first, int stride) {
    float of[kCopies];
#pragma unroll
    for (int i = 0; i < kCopies; ++i) of[i] = __shfl_sync(kAllLanes, value, first + i * stride);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) sum += of[i];
    return sum;
  };
  const auto row_sum = [&](float value) { return sum_of(value, e / kCopies * kCopies, 1); };
  const auto column_sum = [&](float value) { return sum_of(value, e % kCopies, kCopies); };
  float max = logit;
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    max = fmaxf(max, __shfl_sync(kAllLanes, logit, e / kCopies * kCopies + i));
  }
  float value = expf(logit - max);
  value = value / row_sum(value) + eps;
  value = value / (column_sum(value) + eps);
  for (int i = 1; i < iterations; ++i) {
    value = value / (row_sum(value) + eps);
    value = value / (column_sum(value) + eps);
  }
  return value;
}

// Views of the args, as the device sees them, of some rows of the step.
struct HcPreNormRows {
  const float* hc;
  const double* sums;  // of SumMixes
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

// Two blocks per row: one sums and norms its copies, the other has what HcPost needs.
__global__ void __launch_bounds__(kNormThreads) HcPreNormKernel(HcPreNormRows a) {
  __shared__ double warps[kNormWarps];
  __shared__ float pre[kMaxHcMult];
  __shared__ float comb[kMaxComb];
  const int64_t row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const int hc = a.copies;
  const int count = (2 + hc) * hc;
  const double* sums = MixesOf(a.sums, row, count);
  const auto mix = [&](int m, int kind) {
    return MixOf(sums, m, count, hc * a.width, a.norm_eps) * a.scale[kind] + a.base[m];
  };
  if (blockIdx.y == 0) {
    if (thread < hc) pre[thread] = Sigmoid(mix(thread, 0)) + a.hc_eps;
    __syncthreads();
    SumAndNorm(a.hc + row * hc * a.width, pre, hc, a.width, a.norm_weight, a.norm_eps,
               a.x + row * a.width, warps);
    return;
  }
  if (WarpIndex() != 0) return;
  if (thread < hc) a.post[row * hc + thread] = 2.0f * Sigmoid(mix(hc + thread, 1));
  constexpr int kUsualCopies = 4;
  if (hc == kUsualCopies) {
    constexpr int kSize = kUsualCopies * kUsualCopies;
    const float value =
        SinkhornLanes<kUsualCopies>(mix(2 * hc + thread % kSize, 2), a.sinkhorn_iters, a.hc_eps);
    if (thread < kSize) a.comb[row * kSize + thread] = value;
    return;
  }
  for (int e = thread; e < hc * hc; e += kWarp) comb[e] = mix(2 * hc + e, 2);
  __syncwarp();
  Sinkhorn(comb, hc, a.sinkhorn_iters, a.hc_eps);
  for (int e = thread; e < hc * hc; e += kWarp) a.comb[row * hc * hc + e] = comb[e];
}

}  // namespace
}  // namespace cuda

Status CudaBackend::DoHcPreNorm(const HcPreNormArgs& args) {
  State& state = *state_;
  FATHOM_RETURN_IF_ERROR(state.Enter());
  if (args.hc.size() == 0) return OkStatus();
  const int64_t n = args.hc.dim(0);
  const int64_t hc = args.hc.dim(1);
  const int64_t width = args.hc.dim(2);
  const cuda::Scratch& scratch = state.scratch;
  for (int64_t first = 0; first < n; first += scratch.rows) {
    const int64_t count = std::min<int64_t>(scratch.rows, n - first);
    const float* copies = args.hc.data() + first * hc * width;
    FATHOM_RETURN_IF_ERROR(
        cuda::SumMixes({copies, nullptr, count, args.fn.data(), static_cast<int>((2 + hc) * hc),
                        hc * width, scratch.mixes},
                       state.stream));
    const cuda::HcPreNormRows rows = {copies,
                                      scratch.mixes,
                                      args.base.data(),
                                      args.scale.data(),
                                      args.norm_weight.data(),
                                      args.norm_eps,
                                      args.hc_eps,
                                      args.sinkhorn_iters,
                                      static_cast<int>(hc),
                                      width,
                                      args.x.data() + first * width,
                                      args.post.data() + first * hc,
                                      args.comb.data() + first * hc * hc};
    cuda::Launch(cuda::HcPreNormKernel, dim3(static_cast<unsigned>(count), 2), cuda::kNormThreads,
                 0, state.stream, rows);
    FATHOM_RETURN_IF_ERROR(cuda::LaunchStatus("hc_pre_norm"));
  }
  return OkStatus();
}

}  // namespace fathom
