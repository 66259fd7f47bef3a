// Sums in a fixed order over the threads of a warp or block, and the sizes that kernels use.
#pragma once

#include <cstdint>

namespace fathom::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;
inline constexpr int kBlock = 256;  // threads of a block, where a kernel has no reason for others
inline constexpr int kWarps = kBlock / kWarp;

// Blocks of a launch for `work` pieces, `per_block` to a block.
inline unsigned Blocks(int64_t work, int64_t per_block) {
  return static_cast<unsigned>((work + per_block - 1) / per_block);
}

__device__ inline int Lane() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ inline int WarpIndex() { return static_cast<int>(threadIdx.x) / kWarp; }

// A tree over the lanes: every lane gets the same bits.
template <typename T>
__device__ T WarpSum(T value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, step);
  }
  return value;
}

// WarpSum of each of kCount values, which are overwritten, with few exchanges: at every step a lane
// keeps half of what it has and gives the other half to its partner, which adds the same two
// numbers as WarpSum does. One lane calls store(i, sum of value i).
template <int kCount, int kApart = kWarp / 2, typename T, typename Store>
__device__ void SpreadSums(T* values, const Store& store, int index = 0, int end = kCount) {
  if constexpr (kApart == 0) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (index + i < end) store(index + i, values[i]);
    }
  } else {
    constexpr int kHalf = (kCount + 1) / 2;
    const bool upper = (Lane() & kApart) != 0;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const T low = values[i];
      const T high = kHalf + i < kCount ? values[kHalf + i] : T{};
      values[i] = (upper ? high : low) + __shfl_xor_sync(kAllLanes, upper ? low : high, kApart);
    }
    const int middle = index + kHalf;
    SpreadSums<kHalf, kApart / 2>(values, store, upper ? middle : index,
                                  upper ? end : min(end, middle));
  }
}

__device__ inline float WarpMax(float value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
  }
  return value;
}

// Sum over a block of kBlockWarps warps: trees over warps, then warps in order. `sums` has a place
// per warp in shared memory; all threads call it and get the same bits.
template <int kBlockWarps = kWarps, typename T>
__device__ T BlockSum(T value, T* sums) {
  value = WarpSum(value);
  __syncthreads();  // an earlier sum may still be read
  if (Lane() == 0) sums[WarpIndex()] = value;
  __syncthreads();
  T total = sums[0];
#pragma unroll
  for (int w = 1; w < kBlockWarps; ++w) total += sums[w];
  return total;
}

// Sum of the values of this thread and those before it in the block, for integers. `sums` has a
// place per warp in shared memory.
template <typename T>
__device__ T BlockScan(T value, T* sums) {
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const T before = __shfl_up_sync(kAllLanes, value, step);
    if (Lane() >= step) value += before;
  }
  __syncthreads();  // earlier sums may still be read
  if (Lane() == kWarp - 1) sums[WarpIndex()] = value;
  __syncthreads();
  for (int w = 0; w < WarpIndex(); ++w) value += sums[w];
  return value;
}

}  // namespace fathom::cuda
