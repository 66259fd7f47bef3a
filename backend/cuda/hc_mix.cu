#include "backend/cuda/hc_mix.h"
#include "backend/cuda/launch.cuh"

#include "backend/cuda/warp.cuh"

namespace fathom::cuda {
namespace {

// Threads of a block take columns in turn, four at a time; the same columns whether rows and
// products share a block or not. A value is widened once for all that it is multiplied with; double
// holds the products.
template <int kRows, int kProducts, bool kFours>
__device__ void SumColumns(const MixArgs& a, const float* const* x, int m, int64_t begin,
                           int64_t end, double (*sums)[kProducts]) {
  constexpr int kStride = kFours ? 4 : 1;
  const auto load = [](const float* from, double* to) {
    if constexpr (kFours) {
      const float4 four = *reinterpret_cast<const float4*>(from);
      to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    } else {
      to[0] = *from;
    }
  };
#pragma unroll(kProducts == 1 ? 4 : 1)
  for (int64_t i = begin + int64_t{threadIdx.x} * kStride; i < end; i += kBlock * kStride) {
    double w[kProducts][kStride];
#pragma unroll
    for (int p = 0; p < kProducts; ++p) {
      // The last product is X . X; those behind it are not stored.
      if (m + p < a.count) load(a.fn + (m + p) * a.size + i, w[p]);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      double v[kStride];
      load(x[r] + i, v);
#pragma unroll
      for (int p = 0; p < kProducts; ++p) {
        const bool squares = m + p >= a.count;
#pragma unroll
        for (int k = 0; k < kStride; ++k) {
          sums[r][p] = fma(squares ? v[k] : w[p][k], v[k], sums[r][p]);
        }
      }
    }
  }
}

// A block per kProducts products, kRows rows and part of the columns.
template <int kRows, int kProducts>
__global__ void __launch_bounds__(kBlock) MixKernel(MixArgs a) {
  __shared__ double warps[kWarps];
  const int m = static_cast<int>(blockIdx.x) * kProducts;
  const int64_t first = int64_t{blockIdx.y} * kRows;
  const float* x[kRows];
  double sums[kRows][kProducts];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t i = min(first + r, a.n - 1);
    x[r] = a.hc + (a.rows == nullptr ? i : a.rows[i]) * a.size;
#pragma unroll
    for (int p = 0; p < kProducts; ++p) sums[r][p] = 0.0;
  }
  const bool fours = a.size % 4 == 0 && reinterpret_cast<uintptr_t>(a.hc) % 16 == 0 &&
                     reinterpret_cast<uintptr_t>(a.fn) % 16 == 0;
  const int64_t per_part = (a.size / 4 + kMixParts) / kMixParts * 4;
  const int64_t begin = per_part * blockIdx.z;
  const int64_t end = min(a.size, begin + per_part);
  if (fours) {
    SumColumns<kRows, kProducts, true>(a, x, m, begin, end, sums);
  } else {
    SumColumns<kRows, kProducts, false>(a, x, m, begin, end, sums);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int p = 0; p < kProducts; ++p) {
      const double sum = BlockSum(sums[r][p], warps);
      if (threadIdx.x == 0 && first + r < a.n && m + p <= a.count) {
        a.sums[((first + r) * kMixParts + blockIdx.z) * (a.count + 1) + m + p] = sum;
      }
    }
  }
}

}  // namespace

Status SumMixes(const MixArgs& args, cudaStream_t stream) {
  constexpr int kRowsOfMany = 4;
  constexpr int kProductsOfMany = 5;
  const int products = args.count + 1;
  if (args.n < 4 * kRowsOfMany) {
    Launch(MixKernel<1, 1>,
           dim3(static_cast<unsigned>(products), static_cast<unsigned>(args.n), kMixParts), kBlock,
           0, stream, args);
  } else {
    Launch(MixKernel<kRowsOfMany, kProductsOfMany>,
           dim3(Blocks(products, kProductsOfMany), Blocks(args.n, kRowsOfMany), kMixParts), kBlock,
           0, stream, args);
  }
  return LaunchStatus("products of hyper-connections");
}

}  // namespace fathom::cuda
