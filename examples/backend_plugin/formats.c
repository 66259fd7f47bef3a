// The number formats of DeepSeek-V4 and their official rounding rules.
#include <math.h>
#include <string.h>

#include "example.h"

static uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}

static float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

float bf16_to_float(uint16_t bits) { return float_of((uint32_t)bits << 16); }

// To nearest, ties to even.
uint16_t float_to_bf16(float x) {
  if (isnan(x)) return 0x7FC0;
  const uint32_t bits = bits_of(x);
  return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

float round_to_bf16(float x) { return bf16_to_float(float_to_bf16(x)); }

float bf16(const FathomBackend* b, float x) { return b->exact ? x : round_to_bf16(x); }

// A magnitude's code, with `mantissa` bits of it and the smallest normal exponent `least`. The
// subnormals have the steps of the first normal binade, so that one formula counts both; a count
// that reaches the next binade is its first code.
static int small_code(float a, int mantissa, int least) {
  const int exponent = a < ldexpf(1.0f, least) ? least : ilogbf(a);
  const int steps = (int)nearbyintf(ldexpf(a, mantissa - exponent));
  return ((exponent - least) << mantissa) + steps;
}

uint8_t float_to_e4m3(float x) {
  const float a = fabsf(x);
  if (isnan(x)) return 0x7F;
  return (uint8_t)((signbit(x) ? 0x80 : 0) | (a >= 448.0f ? 0x7E : small_code(a, 3, -6)));
}

uint8_t float_to_e2m1(float x) {
  const float a = fabsf(x);
  const int code = isnan(x) ? 0 : a >= 6.0f ? 7 : small_code(a, 1, 0);
  return (uint8_t)((signbit(x) ? 8 : 0) | code);
}

const float e2m1_values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                               -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

// Byte 0 is subnormal in fp32; the others are exponents as fp32 has them.
float ue8m0_to_float(unsigned byte) {
  if (byte == 0) return 0x1p-127f;
  return byte == 255 ? NAN : float_of((uint32_t)byte << 23);
}

// The exponent of a group's scale: the smallest whose power of two is not below amax / largest.
static int scale_exponent(const float* x, int64_t n, float floor, float largest) {
  float amax = floor;
  for (int64_t i = 0; i < n; ++i) amax = fmaxf(amax, fabsf(x[i]));
  const uint32_t bits = bits_of(amax * (1.0f / largest));
  return (int)(bits >> 23) - 127 + ((bits & 0x7FFFFF) != 0);
}

static uint8_t scale_byte(int exponent) {
  return (uint8_t)(exponent + 127 > 254 ? 254 : exponent + 127);
}

uint8_t quantize_e4m3(const float* x, int64_t n, uint8_t* codes) {
  const int e = scale_exponent(x, n, 1e-4f, 448.0f);
  const float inverse = ldexpf(1.0f, -e);
  for (int64_t i = 0; i < n; ++i) codes[i] = float_to_e4m3(x[i] * inverse);
  return scale_byte(e);
}

uint8_t quantize_e2m1(const float* x, int64_t n, uint8_t* packed) {
  const int e = scale_exponent(x, n, 0x1.8p-124f, 6.0f);
  for (int64_t i = 0; i < n; i += 2) {
    const unsigned low = float_to_e2m1(ldexpf(x[i], -e));
    const unsigned high = float_to_e2m1(ldexpf(x[i + 1], -e));
    packed[i / 2] = (uint8_t)(low | high << 4);
  }
  return scale_byte(e);
}

void simulate_e4m3(const FathomBackend* b, float* x, int64_t n, int64_t group) {
  uint8_t codes[128];
  for (int64_t begin = 0; begin < n; begin += group) {
    const float scale = ue8m0_to_float(quantize_e4m3(x + begin, group, codes));
    for (int64_t i = 0; i < group; ++i) x[begin + i] = b->e4m3[codes[i]] * scale;
  }
}

void simulate_e2m1(float* x, int64_t n, int64_t group) {
  uint8_t packed[64];
  for (int64_t begin = 0; begin < n; begin += group) {
    const float scale = ue8m0_to_float(quantize_e2m1(x + begin, group, packed));
    for (int64_t i = 0; i < group; ++i) {
      x[begin + i] = e2m1_values[packed[i / 2] >> (i % 2 * 4) & 15] * scale;
    }
  }
}
