#include "backend/cuda/hc_mix.h"

#include <algorithm>

#include "backend/cuda/launch.cuh"
#include "backend/cuda/warp.cuh"

namespace fathom::cuda {
namespace {

// Threads of a block take columns in turn, four at a time; the same columns whether rows and
// products share a block or not. A value is widened once for all that it is multiplied with; double
// holds the products. sums[r] has kProducts of row r, and its X . X behind them if `squares`.
template <int kRows, int kProducts, bool kFours>
__device__ void SumColumns(const MixArgs& a, const float* const* x, int m, bool squares,
                           int64_t begin, int64_t end, double (*sums)[kProducts + 1]) {
  constexpr int kStride = kFours ? 4 : 1;
  const auto load = [](const float* from, float* to) {
    if constexpr (kFours) {
      const float4 four = *reinterpret_cast<const float4*>(from);
      to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    } else {
      to[0] = *from;
    }
  };
#pragma unroll(kProducts == 1 ? 4 : 1)
  for (int64_t i = begin + int64_t{threadIdx.x} * kStride; i < end; i += kBlock * kStride) {
    float w[kProducts][kStride], v[kRows][kStride];
#pragma unroll
    for (int p = 0; p < kProducts; ++p) load(a.fn + min(m + p, a.count - 1) * a.size + i, w[p]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) load(x[r] + i, v[r]);
#pragma unroll
    for (int k = 0; k < kStride; ++k) {
      double wide[kProducts];
#pragma unroll
      for (int p = 0; p < kProducts; ++p) wide[p] = static_cast<double>(w[p][k]);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const auto value = static_cast<double>(v[r][k]);
#pragma unroll
        for (int p = 0; p < kProducts; ++p) sums[r][p] = fma(wide[p], value, sums[r][p]);
        if (squares) sums[r][kProducts] = fma(value, value, sums[r][kProducts]);
      }
    }
  }
}

// A block per kProducts products, part of the columns, and `groups` times kRows rows one after the
// other, for which the products' weights stay in the first-level cache. The first block of a row
// has X . X, too.
template <int kRows, int kProducts>
__global__ void __launch_bounds__(kBlock, 2) MixKernel(MixArgs a, int groups) {
  constexpr int kEach = kProducts + 1;
  constexpr int kSums = kRows * kEach;
  __shared__ double warps[kSums][kWarps];
  const int m = static_cast<int>(blockIdx.x) * kProducts;
  const bool squares = blockIdx.x == 0;
  const bool fours = a.size % 4 == 0 && reinterpret_cast<uintptr_t>(a.hc) % 16 == 0 &&
                     reinterpret_cast<uintptr_t>(a.fn) % 16 == 0;
  const int64_t per_part = ((a.size + 3) / 4 + kMixParts - 1) / kMixParts * 4;
  const int64_t begin = per_part * blockIdx.z;
  const int64_t end = min(a.size, begin + per_part);
  for (int g = 0; g < groups; ++g) {
    const int64_t first = (int64_t{blockIdx.y} * groups + g) * kRows;
    if (first >= a.n) return;
    const float* x[kRows];
    double sums[kRows][kEach];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t i = min(first + r, a.n - 1);
      x[r] = a.hc + (a.rows == nullptr ? i : a.rows[i]) * a.size;
#pragma unroll
      for (int p = 0; p < kEach; ++p) sums[r][p] = 0.0;
    }
    if (fours) {
      SumColumns<kRows, kProducts, true>(a, x, m, squares, begin, end, sums);
    } else {
      SumColumns<kRows, kProducts, false>(a, x, m, squares, begin, end, sums);
    }
    // Trees over the lanes of a warp, then warps in order.
    __syncthreads();  // sums of the group before may still be read
    SpreadSums<kSums>(&sums[0][0], [&](int i, double sum) { warps[i][WarpIndex()] = sum; });
    __syncthreads();
    const int thread = static_cast<int>(threadIdx.x);
    if (thread >= kSums) continue;
    const int64_t row = first + thread / kEach;
    const int p = thread % kEach;
    const int product = p == kProducts ? a.count : m + p;
    if (row >= a.n || (p == kProducts ? !squares : product >= a.count)) continue;
    double sum = warps[thread][0];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) sum += warps[thread][w];
    a.sums[(row * kMixParts + blockIdx.z) * (a.count + 1) + product] = sum;
  }
}

}  // namespace

Status SumMixes(const MixArgs& args, cudaStream_t stream) {
  constexpr int kRowsOfMany = 4;
  constexpr int kProductsOfMany = 4;
  constexpr int kMostGroups = 8;
  const auto products = static_cast<unsigned>(args.count);
  if (args.n < 4 * kRowsOfMany) {
    Launch(MixKernel<1, 1>, dim3(products, static_cast<unsigned>(args.n), kMixParts), kBlock, 0,
           stream, args, 1);
  } else {
    // There are to be some blocks for each multiprocessor still.
    constexpr int64_t kEnoughBlocks = 768;
    const unsigned of_products = Blocks(products, kProductsOfMany);
    const int64_t blocks = args.n / kRowsOfMany * of_products * kMixParts;
    const int groups =
        static_cast<int>(std::clamp<int64_t>(blocks / kEnoughBlocks, 1, kMostGroups));
    Launch(MixKernel<kRowsOfMany, kProductsOfMany>,
           dim3(of_products, Blocks(args.n, kRowsOfMany * groups), kMixParts), kBlock, 0, stream,
           args, groups);
  }
  return LaunchStatus("products of hyper-connections");
}

}  // namespace fathom::cuda
