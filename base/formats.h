// The small number formats of DeepSeek-V4 and their official rounding rules.
//
//   bf16   upper half of a binary32                      round to nearest even, NaN -> 0x7FC0
//   e4m3   s eeee mmm, bias 7, no infinity, max 448      nearest even, saturating, NaN -> 0x7F
//   e2m1   s ee m, values 0 .5 1 1.5 2 3 4 6             nearest even, saturating
//   ue8m0  2^(byte - 127); byte 0 is 2^-127; 255 is NaN  exact powers of two only
//
// Packed e2m1: one byte holds two consecutive elements, the even one in the low nibble.
// Quantisers take a group of values, choose one power-of-two scale by inspecting the bits of
// `amax / max_code` (never by log2f, which rounds onto integers), and write codes.
// Pure functions. Source: official inference code, kernel.py; checked against tests/data/formats.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <span>

namespace fathom {

inline constexpr float kE4m3Max = 448.0f;
inline constexpr float kE2m1Max = 6.0f;
// Smallest magnitude that the activation and KV quantisers assume for a group.
inline constexpr float kE4m3AmaxFloor = 1e-4f;
inline constexpr float kE2m1AmaxFloor = 0x1.8p-124f;  // 6 * 2^-126

inline float Bf16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t FloatToBf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FC0;
  return static_cast<uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}

// The bf16 value nearest to x, as a float.
inline float RoundToBf16(float x) { return Bf16ToFloat(FloatToBf16(x)); }

namespace internal {
extern const std::array<float, 256> kE4m3Values;
extern const std::array<float, 16> kE2m1Values;
}  // namespace internal

inline float E4m3ToFloat(uint8_t code) { return internal::kE4m3Values[code]; }
// Only the low nibble counts.
inline float E2m1ToFloat(uint8_t code) { return internal::kE2m1Values[code & 15u]; }

constexpr float Ue8m0ToFloat(uint8_t byte) {
  // Byte 0 is the subnormal 2^-127; byte 255 has no value.
  if (byte == 0) return std::bit_cast<float>(0x00400000u);
  if (byte == 255) return std::bit_cast<float>(0x7FC00000u);
  return std::bit_cast<float>(static_cast<uint32_t>(byte) << 23);
}

uint8_t FloatToE4m3(float x);
uint8_t FloatToE2m1(float x);  // low nibble

// Smallest e with 2^e >= x, for normal positive x.
inline int CeilLog2(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  return static_cast<int>(u >> 23) - 127 + ((u & 0x7FFFFFu) != 0 ? 1 : 0);
}

// Quantise one group to e4m3 codes with one ue8m0 scale; returns the scale byte. The scale is
// 2^CeilLog2(max(amax, 1e-4) * (1/448)). `codes` has the size of `x`.
uint8_t QuantizeE4m3(std::span<const float> x, std::span<uint8_t> codes);

// Quantise one group to packed e2m1; returns the scale byte. The scale is
// 2^CeilLog2(max(amax, 6 * 2^-126) * (1/6)). `packed` has half the size of `x` (even).
uint8_t QuantizeE2m1(std::span<const float> x, std::span<uint8_t> packed);

// Quantise to codes and back, in groups of `group` along x: the value that the official code
// computes with. x.size() is a multiple of `group`.
void SimulateE4m3(std::span<float> x, int group);
void SimulateE2m1(std::span<float> x, int group);

}  // namespace fathom
