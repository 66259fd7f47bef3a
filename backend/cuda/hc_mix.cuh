// What HcPreNorm and Head have in common: products of a row's copies with the mixing matrix, the
// weighted sum of the copies and its norm. Each function is the work of a block of kBlock threads.
#pragma once

#include "backend/cuda/rows.cuh"

namespace fathom::cuda {

__device__ inline float Sigmoid(float z) { return 1.0f / (1.0f + expf(-z)); }

// mix[m] = (fn[m] . copies) * rho for m < count, in shared memory; a warp per product, in double.
// rho = 1 / sqrt(mean of the squares + eps). `sums` has kWarps elements.
__device__ inline void MixCopies(const float* copies, const float* fn, int count, int64_t size,
                                 float eps, float* mix, double* sums) {
  const float rho = InverseRms(BlockSum(SquaresOf(copies, size), sums), size, eps);
  for (int m = WarpIndex(); m < count; m += kWarps) {
    const float* weights = fn + m * size;
    double sum = 0.0;
    for (int64_t i = Lane(); i < size; i += kWarp) {
      sum += static_cast<double>(weights[i]) * static_cast<double>(copies[i]);
    }
    sum = WarpSum(sum);
    if (Lane() == 0) mix[m] = static_cast<float>(sum) * rho;
  }
  __syncthreads();
}

// x = RMSNorm(bf16(sum of pre[c] * copies[c])); x keeps the sum in between.
__device__ inline void SumAndNorm(const float* copies, const float* pre, int num_copies,
                                  int64_t width, const float* norm_weight, float eps, float* x,
                                  double* sums) {
  double squares = 0.0;
  for (int64_t d = threadIdx.x; d < width; d += kBlock) {
    float y = 0.0f;
    for (int c = 0; c < num_copies; ++c) y += pre[c] * copies[c * width + d];
    y = RoundBf16(y);
    x[d] = y;
    squares += static_cast<double>(y) * static_cast<double>(y);
  }
  const float inverse = InverseRms(BlockSum(squares, sums), width, eps);
  for (int64_t d = threadIdx.x; d < width; d += kBlock) {
    x[d] = RoundBf16(norm_weight[d] * (x[d] * inverse));
  }
}

}  // namespace fathom::cuda
