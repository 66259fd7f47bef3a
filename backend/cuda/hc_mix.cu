#include "backend/cuda/hc_mix.h"

#include <algorithm>

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

// WarpSum of each of kCount values, with a fifth of its exchanges: at every step a lane keeps half
// of what it has and gives the other half to its partner, which adds the same two numbers as
// WarpSum does. The lane has the sum of value `index` then, if that is below `end`.
struct SumPlace {
  int index = 0;
  int end = 0;
};
template <int kCount, int kStep = kWarp / 2>
__device__ SumPlace SpreadSums(double* values, SumPlace place) {
  if constexpr (kStep == 0) {
    static_assert(kCount == 1);
    return place;
  } else {
    constexpr int kHalf = (kCount + 1) / 2;
    const bool upper = (Lane() & kStep) != 0;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const double low = values[i];
      const double high = kHalf + i < kCount ? values[kHalf + i] : 0.0;
      values[i] = (upper ? high : low) + __shfl_xor_sync(kAllLanes, upper ? low : high, kStep);
    }
    if (upper) {
      place.index += kHalf;
    } else {
      place.end = min(place.end, place.index + kHalf);
    }
    return SpreadSums<kHalf, kStep / 2>(values, place);
  }
}

// A block per kProducts products, part of the columns, and `groups` times kRows rows one after the
// other, for which the products' weights stay in the first-level cache.
template <int kRows, int kProducts>
__global__ void __launch_bounds__(kBlock) MixKernel(MixArgs a, int groups) {
  constexpr int kSums = kRows * kProducts;
  __shared__ double warps[kSums][kWarps];
  const int m = static_cast<int>(blockIdx.x) * kProducts;
  const bool fours = a.size % 4 == 0 && reinterpret_cast<uintptr_t>(a.hc) % 16 == 0 &&
                     reinterpret_cast<uintptr_t>(a.fn) % 16 == 0;
  const int64_t per_part = ((a.size + 3) / 4 + kMixParts - 1) / kMixParts * 4;
  const int64_t begin = per_part * blockIdx.z;
  const int64_t end = min(a.size, begin + per_part);
  for (int g = 0; g < groups; ++g) {
    const int64_t first = (int64_t{blockIdx.y} * groups + g) * kRows;
    if (first >= a.n) return;
    const float* x[kRows];
    double sums[kRows][kProducts];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t i = min(first + r, a.n - 1);
      x[r] = a.hc + (a.rows == nullptr ? i : a.rows[i]) * a.size;
#pragma unroll
      for (int p = 0; p < kProducts; ++p) sums[r][p] = 0.0;
    }
    if (fours) {
      SumColumns<kRows, kProducts, true>(a, x, m, begin, end, sums);
    } else {
      SumColumns<kRows, kProducts, false>(a, x, m, begin, end, sums);
    }
    // Trees over the lanes of a warp, then warps in order.
    const SumPlace place = SpreadSums<kSums>(&sums[0][0], {0, kSums});
    __syncthreads();  // sums of the group before may still be read
    if (place.index < place.end) warps[place.index][WarpIndex()] = sums[0][0];
    __syncthreads();
    const int thread = static_cast<int>(threadIdx.x);
    if (thread >= kSums) continue;
    const int64_t row = first + thread / kProducts;
    const int product = m + thread % kProducts;
    if (row >= a.n || product > a.count) continue;
    double sum = warps[thread][0];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) sum += warps[thread][w];
    a.sums[(row * kMixParts + blockIdx.z) * (a.count + 1) + product] = sum;
  }
}

}  // namespace

Status SumMixes(const MixArgs& args, cudaStream_t stream) {
  constexpr int kRowsOfMany = 4;
  constexpr int kProductsOfMany = 5;
  constexpr int kMostGroups = 8;
  const int products = args.count + 1;
  if (args.n < 4 * kRowsOfMany) {
    Launch(MixKernel<1, 1>,
           dim3(static_cast<unsigned>(products), static_cast<unsigned>(args.n), kMixParts), kBlock,
           0, stream, args, 1);
  } else {
    // Still some blocks for each multiprocessor: there are 20 for each group of rows.
    const int groups = static_cast<int>(std::clamp<int64_t>(args.n / 128, 1, kMostGroups));
    Launch(MixKernel<kRowsOfMany, kProductsOfMany>,
           dim3(Blocks(products, kProductsOfMany), Blocks(args.n, kRowsOfMany * groups), kMixParts),
           kBlock, 0, stream, args, groups);
  }
  return LaunchStatus("products of hyper-connections");
}

}  // namespace fathom::cuda
