// What kernels take from the compiler of device code, for the host's compiler: qualifiers, indices,
// the exchanges of a warp. Included before every source of backend/cuda that is built so
// (CMakeLists.txt). One block runs at a time, so shared variables are static ones.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "backend/cuda/emulation/block.h"

// cuda_runtime_api.h defines these for compilers that are not NVIDIA's as well.
#undef __device__
#undef __host__
#undef __global__
#undef __shared__
#undef __launch_bounds__
#undef __forceinline__
#undef __grid_constant__
#define __device__
#define __host__
#define __global__
#define __shared__ static
#define __launch_bounds__(...)
#define __forceinline__ inline
#define __grid_constant__

#define threadIdx (::fathom::emulation::Here().thread)
#define blockIdx (::fathom::emulation::Here().block)
#define blockDim (::fathom::emulation::Here().block_size)
#define gridDim (::fathom::emulation::Here().grid_size)

using std::isnan;
using std::max;
using std::min;

inline void __syncthreads() { fathom::emulation::WaitForBlock(); }
inline void __syncwarp() {
  const char nothing = 0;
  fathom::emulation::Exchange(&nothing, 1);
}

// All lanes take part in an exchange: kernels pass full masks alone.
template <typename T>
T EmulatedExchange(const T& value, int lane) {
  fathom::emulation::Exchange(&value, sizeof(T));
  T given;
  std::memcpy(&given, fathom::emulation::Given(lane), sizeof(T));
  return given;
}
template <typename T>
T __shfl_xor_sync(unsigned /*mask*/, T value, int bits) {
  return EmulatedExchange(value, fathom::emulation::Here().lane ^ bits);
}
template <typename T>
T __shfl_sync(unsigned /*mask*/, T value, int lane) {
  return EmulatedExchange(value, lane % 32);
}
template <typename T>
T __shfl_down_sync(unsigned /*mask*/, T value, int by) {
  const int lane = fathom::emulation::Here().lane;
  return EmulatedExchange(value, lane + by < 32 ? lane + by : lane);
}
template <typename T>
T __shfl_up_sync(unsigned /*mask*/, T value, int by) {
  const int lane = fathom::emulation::Here().lane;
  return EmulatedExchange(value, lane >= by ? lane - by : lane);
}
inline unsigned __ballot_sync(unsigned /*mask*/, int predicate) {
  const char value = predicate != 0 ? 1 : 0;
  fathom::emulation::Exchange(&value, 1);
  unsigned lanes = 0;
  for (int l = 0; l < 32; ++l) {
    const auto* given = static_cast<const char*>(fathom::emulation::Given(l));
    lanes |= (*given != 0 ? 1u : 0u) << l;
  }
  return lanes;
}
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) == 0xFFFFFFFFu ? 1 : 0;
}
inline int __any_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0 ? 1 : 0;
}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline uint32_t __float_as_uint(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float __uint_as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selectors) {
  const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
  unsigned out = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned from = selectors >> 4 * i & 7u;
    out |= static_cast<unsigned>(bytes >> 8 * from & 0xFFu) << 8 * i;
  }
  return out;
}
template <typename T>
T __ldg(const T* from) {
  return *from;
}

// Fibers are not interrupted.
template <typename T>
T atomicAdd(T* at, T value) {
  const T before = *at;
  *at = before + value;
  return before;
}
template <typename T>
T atomicCAS(T* at, int expected, int value) {
  const T before = *at;
  if (before == expected) *at = static_cast<T>(value);
  return before;
}
