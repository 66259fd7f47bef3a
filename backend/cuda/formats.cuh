// The small number formats on the device: the arithmetic of base/formats.h, bit for bit.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "backend/cuda/warp.cuh"
#include "base/formats.h"

namespace fathom::cuda {

__device__ inline float FromBf16(uint16_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}
__device__ inline uint16_t ToBf16(float x) {
  const uint32_t u = __float_as_uint(x);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FC0;
  return static_cast<uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}
__device__ inline float RoundBf16(float x) { return FromBf16(ToBf16(x)); }

__device__ inline float FromE4m3(uint8_t code) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
}
// Nearest even, saturating.
__device__ inline uint8_t ToE4m3(float x) {
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}

// Two values become what their codes stand for.
__device__ inline float2 RoundE4m3(float2 x) {
  const __half2_raw halves =
      __nv_cvt_fp8x2_to_halfraw2(__nv_cvt_float2_to_fp8x2(x, __NV_SATFINITE, __NV_E4M3), __NV_E4M3);
  return {__half2float(__half(__half_raw{halves.x})), __half2float(__half(__half_raw{halves.y}))};
}

// Only the low nibble counts. As the top bits of a half's magnitude a code is 2^-14 of its value,
// the subnormal one too.
__device__ inline float FromE2m1(unsigned code) {
  const auto bits = static_cast<uint16_t>((code & 8u) << 12 | (code & 7u) << 9);
  return __half2float(__ushort_as_half(bits)) * 0x1p14f;
}
// Nearest even, saturating; the code's low nibble.
__device__ inline uint8_t ToE2m1(float x) {
  const float a = fabsf(x);
  const int code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) +
                   (a >= 3.5f) + (a > 5.0f);
  return static_cast<uint8_t>((__float_as_uint(x) >> 31) << 3 | static_cast<unsigned>(code));
}

__device__ inline float FromUe8m0(uint8_t byte) {
  if (byte == 0) return __uint_as_float(0x00400000u);
  if (byte == 255) return __uint_as_float(0x7FC00000u);
  return __uint_as_float(static_cast<uint32_t>(byte) << 23);
}

// Smallest e with 2^e >= x, for normal positive x.
__device__ inline int CeilLog2Of(float x) {
  const uint32_t u = __float_as_uint(x);
  return static_cast<int>(u >> 23) - 127 + ((u & 0x7FFFFFu) != 0 ? 1 : 0);
}
// 2^-e, for -127 < e < 127.
__device__ inline float PowerOfMinus(int e) {
  return __uint_as_float(static_cast<uint32_t>(127 - e) << 23);
}
__device__ inline uint8_t ScaleByte(int e) { return static_cast<uint8_t>(min(e + 127, 254)); }

// Exponents of the official scales, for the largest magnitude of a group.
__device__ inline int E4m3Exponent(float amax) {
  return CeilLog2Of(fmaxf(amax, kE4m3AmaxFloor) * (1.0f / kE4m3Max));
}
__device__ inline int E2m1Exponent(float amax) {
  return CeilLog2Of(fmaxf(amax, kE2m1AmaxFloor) * (1.0f / kE2m1Max));
}

// Largest magnitude of x[0 .. size), the warp's work; NaN counts as nothing, as on the host.
__device__ inline float GroupAmax(const float* x, int size) {
  float amax = 0.0f;
  for (int i = Lane(); i < size; i += kWarp) amax = fmaxf(amax, fabsf(x[i]));
  return WarpMax(amax);
}

// A group becomes the values that its codes have, the warp's work. Each lane touches its own
// elements only. Returns the scale byte.
__device__ inline uint8_t SimulateE4m3Group(const float* x, int size, float* out) {
  const int e = E4m3Exponent(GroupAmax(x, size));
  const uint8_t byte = ScaleByte(e);
  for (int i = Lane(); i < size; i += kWarp) {
    out[i] = FromE4m3(ToE4m3(x[i] * PowerOfMinus(e))) * FromUe8m0(byte);
  }
  return byte;
}
// Groups of 32.
__device__ inline uint8_t SimulateE2m1Group(const float* x, float* out) {
  const float value = x[Lane()];
  const int e = E2m1Exponent(WarpMax(fabsf(value)));
  const uint8_t byte = ScaleByte(e);
  out[Lane()] = FromE2m1(ToE2m1(value * PowerOfMinus(e))) * FromUe8m0(byte);
  return byte;
}

}  // namespace fathom::cuda
