// What HcPreNorm and Head do with the sums of hc_mix.h: weights of the copies, their weighted sum
// and its norm.
#pragma once

#include "backend/cuda/hc_mix.h"
#include "backend/cuda/rows.cuh"

namespace fathom::cuda {

inline constexpr int kNormThreads = 512;
inline constexpr int kNormWarps = kNormThreads / kWarp;

__device__ inline float Sigmoid(float z) { return 1.0f / (1.0f + expf(-z)); }

// The sums of row i.
__device__ inline const double* MixesOf(const double* sums, int64_t i, int count) {
  return sums + i * kMixParts * (count + 1);
}
// fn[m] . X * rho, rho = 1 / sqrt(mean of the squares + eps), from a row's sums.
__device__ inline float MixOf(const double* sums, int m, int count, int64_t size, float eps) {
  double product = 0.0;
  double squares = 0.0;
#pragma unroll
  for (int p = 0; p < kMixParts; ++p) {
    product += sums[p * (count + 1) + m];
    squares += sums[p * (count + 1) + count];
  }
  return static_cast<float>(product) * InverseRms(squares, size, eps);
}

// x = RMSNorm(bf16(sum of pre[c] * copies[c])), the work of a block of kNormThreads; x keeps the
// sum in between. `sums` has kNormWarps elements.
__device__ inline void SumAndNorm(const float* copies, const float* pre, int num_copies,
                                  int64_t width, const float* norm_weight, float eps, float* x,
                                  double* sums) {
  double squares = 0.0;
#pragma unroll 4
  for (int64_t d = threadIdx.x; d < width; d += kNormThreads) {
    float of[kMaxHcMult];  // on their way together
#pragma unroll
    for (int c = 0; c < kMaxHcMult; ++c) of[c] = c < num_copies ? copies[c * width + d] : 0.0f;
    float y = 0.0f;
#pragma unroll
    for (int c = 0; c < kMaxHcMult; ++c) {
      if (c < num_copies) y += pre[c] * of[c];
    }
    y = RoundBf16(y);
    x[d] = y;
    squares += static_cast<double>(y) * static_cast<double>(y);
  }
  const float inverse = InverseRms(BlockSum<kNormWarps>(squares, sums), width, eps);
#pragma unroll 4
  for (int64_t d = threadIdx.x; d < width; d += kNormThreads) {
    x[d] = RoundBf16(norm_weight[d] * (x[d] * inverse));
  }
}

}  // namespace fathom::cuda
