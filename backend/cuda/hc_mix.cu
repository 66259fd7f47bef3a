#include "backend/cuda/hc_mix.h"
#include "backend/cuda/launch.cuh"

#include "backend/cuda/warp.cuh"

namespace fathom::cuda {
namespace {

// Threads of a block take columns in turn, four at a time; the same columns whether rows share a
// block or not.
template <int kRows, bool kFours>
__device__ void SumColumns(const MixArgs& a, const float* const* x, int m, int64_t begin,
                           int64_t end, double* sums) {
  constexpr int kStride = kFours ? 4 : 1;
  const float* fn = a.fn + m * a.size;
  // The last row of sums is X . X.
  const bool squares = m == a.count;
#pragma unroll 4
  for (int64_t i = begin + int64_t{threadIdx.x} * kStride; i < end; i += kBlock * kStride) {
    float w[kStride];
    if (!squares) {
      if constexpr (kFours) {
        const float4 four = *reinterpret_cast<const float4*>(fn + i);
        w[0] = four.x, w[1] = four.y, w[2] = four.z, w[3] = four.w;
      } else {
        w[0] = fn[i];
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float v[kStride];
      if constexpr (kFours) {
        const float4 four = *reinterpret_cast<const float4*>(x[r] + i);
        v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
      } else {
        v[0] = x[r][i];
      }
#pragma unroll
      for (int k = 0; k < kStride; ++k) {
        sums[r] += static_cast<double>(squares ? v[k] : w[k]) * static_cast<double>(v[k]);
      }
    }
  }
}

// A block per product, kRows rows and part of the columns.
template <int kRows>
__global__ void __launch_bounds__(kBlock) MixKernel(MixArgs a) {
  __shared__ double warps[kWarps];
  const auto m = static_cast<int>(blockIdx.x);
  const int64_t first = int64_t{blockIdx.y} * kRows;
  const float* x[kRows];
  double sums[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t i = min(first + r, a.n - 1);
    x[r] = a.hc + (a.rows == nullptr ? i : a.rows[i]) * a.size;
    sums[r] = 0.0;
  }
  const bool fours = a.size % 4 == 0 && reinterpret_cast<uintptr_t>(a.hc) % 16 == 0 &&
                     reinterpret_cast<uintptr_t>(a.fn) % 16 == 0;
  const int64_t per_part = (a.size / 4 + kMixParts) / kMixParts * 4;
  const int64_t begin = per_part * blockIdx.z;
  const int64_t end = min(a.size, begin + per_part);
  if (fours) {
    SumColumns<kRows, true>(a, x, m, begin, end, sums);
  } else {
    SumColumns<kRows, false>(a, x, m, begin, end, sums);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const double sum = BlockSum(sums[r], warps);
    if (threadIdx.x == 0 && first + r < a.n) {
      a.sums[((first + r) * kMixParts + blockIdx.z) * (a.count + 1) + m] = sum;
    }
  }
}

}  // namespace

Status SumMixes(const MixArgs& args, cudaStream_t stream) {
  constexpr int kRowsOfMany = 4;
  const auto products = static_cast<unsigned>(args.count + 1);
  if (args.n < 4 * kRowsOfMany) {
    Launch(MixKernel<1>, dim3(products, static_cast<unsigned>(args.n), kMixParts), kBlock, 0,
           stream, args);
  } else {
    Launch(MixKernel<kRowsOfMany>, dim3(products, Blocks(args.n, kRowsOfMany), kMixParts), kBlock,
           0, stream, args);
  }
  return LaunchStatus("products of hyper-connections");
}

}  // namespace fathom::cuda
