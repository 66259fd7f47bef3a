// Pieces that several operations do to a row of activations: norm, rotation, Hadamard transform.
#pragma once

#include "backend/cuda/formats.cuh"

namespace fathom::cuda {

// 1 / sqrt(mean(x^2) + eps) of a sum of squares, the mean in double.
__device__ inline float InverseRms(double squares, int64_t size, float eps) {
  const auto mean = static_cast<float>(squares / static_cast<double>(size));
  return 1.0f / sqrtf(mean + eps);
}

// This thread's part of the sum of squares, in double: one of kBlock.
__device__ inline double SquaresOf(const float* x, int64_t size) {
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < size; i += kBlock) {
    sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  return sum;
}

// Rotates one pair, cos_sin its two factors; sign -1 rotates back.
__device__ inline void RotatePair(float* pair, const float* cos_sin, float sign) {
  const float c = cos_sin[0];
  const float s = sign * cos_sin[1];
  const float even = pair[0];
  const float odd = pair[1];
  pair[0] = RoundBf16(even * c - odd * s);
  pair[1] = RoundBf16(even * s + odd * c);
}

// Orthonormal Walsh-Hadamard transform in Sylvester order, rounded to bf16 once; in double, where
// the sums of bf16 values are exact. A block's work: `values` and `work` hold `size` elements, a
// power of two, of shared memory.
__device__ inline void Hadamard(float* values, double* work, int size) {
  const int threads = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  for (int i = thread; i < size; i += threads) work[i] = static_cast<double>(values[i]);
  for (int half = 1; half < size; half *= 2) {
    __syncthreads();
    for (int i = thread; i < size / 2; i += threads) {
      const int at = i / half * 2 * half + i % half;
      const double a = work[at];
      const double b = work[at + half];
      work[at] = a + b;
      work[at + half] = a - b;
    }
  }
  __syncthreads();
  const double scale = 1.0 / sqrt(static_cast<double>(size));
  for (int i = thread; i < size; i += threads) {
    values[i] = RoundBf16(static_cast<float>(work[i] * scale));
  }
  __syncthreads();
}

}  // namespace fathom::cuda
