#include "base/formats.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace fathom {
namespace internal {
namespace {

std::array<float, 256> MakeE4m3Values() {
  std::array<float, 256> values{};
  for (int code = 0; code < 256; ++code) {
    const int exponent = (code >> 3) & 15;
    const int mantissa = code & 7;
    float v = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                            : std::ldexp(1.0f + static_cast<float>(mantissa) / 8.0f, exponent - 7);
    if (exponent == 15 && mantissa == 7) v = std::bit_cast<float>(0x7FC00000u);
    values[static_cast<size_t>(code)] = (code & 128) != 0 ? -v : v;
  }
  return values;
}

}  // namespace

const std::array<float, 256> kE4m3Values = MakeE4m3Values();
const std::array<float, 16> kE2m1Values = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                           -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

}  // namespace internal

uint8_t FloatToE4m3(float x) {
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const float a = std::fabs(x);
  if (std::isnan(x)) return 0x7F;
  if (a >= kE4m3Max) return sign | 0x7E;
  // Below 2^-6 the grid is the subnormal one, steps of 2^-9. The next binade begins where the
  // rounded count reaches 8, and its code is the same integer: no special case.
  if (a < 0x1p-6f) return static_cast<uint8_t>(sign | static_cast<int>(std::nearbyint(a * 0x1p9f)));
  // Round the mantissa to 3 bits in place; a carry moves into the exponent, as it should.
  uint32_t u = std::bit_cast<uint32_t>(a);
  u += 0x7FFFFu + ((u >> 20) & 1u);
  const uint32_t code = (u >> 20) - ((127u - 7u) << 3);
  return static_cast<uint8_t>(sign | std::min(code, 0x7Eu));
}

uint8_t FloatToE2m1(float x) {
  const uint8_t sign = std::signbit(x) ? 8 : 0;
  const float a = std::fabs(x);
  // Midpoints go to the even code: 0.25 -> 0, 0.75 -> 1, 1.25 -> 1, 1.75 -> 2, 2.5 -> 2, 3.5 -> 4,
  // 5 -> 4.
  int code = 0;
  if (a > 5.0f) {
    code = 7;
  } else if (a >= 3.5f) {
    code = 6;
  } else if (a > 2.5f) {
    code = 5;
  } else if (a >= 1.75f) {
    code = 4;
  } else if (a > 1.25f) {
    code = 3;
  } else if (a >= 0.75f) {
    code = 2;
  } else if (a > 0.25f) {
    code = 1;
  }
  return static_cast<uint8_t>(sign | code);
}

namespace {

float Amax(std::span<const float> x, float floor) {
  float amax = floor;
  for (float v : x) amax = std::max(amax, std::fabs(v));
  return amax;
}

}  // namespace

uint8_t QuantizeE4m3(std::span<const float> x, std::span<uint8_t> codes) {
  FATHOM_DCHECK(codes.size() == x.size(), "one code per value");
  const int e = CeilLog2(Amax(x, kE4m3AmaxFloor) * (1.0f / kE4m3Max));
  const float inverse = std::ldexp(1.0f, -e);
  for (size_t i = 0; i < x.size(); ++i) codes[i] = FloatToE4m3(x[i] * inverse);
  return static_cast<uint8_t>(std::min(e + 127, 254));
}

uint8_t QuantizeE2m1(std::span<const float> x, std::span<uint8_t> packed) {
  FATHOM_DCHECK(packed.size() * 2 == x.size(), "two codes per byte");
  const int e = CeilLog2(Amax(x, kE2m1AmaxFloor) * (1.0f / kE2m1Max));
  for (size_t i = 0; i < packed.size(); ++i) {
    const uint8_t low = FloatToE2m1(std::ldexp(x[2 * i], -e));
    const uint8_t high = FloatToE2m1(std::ldexp(x[2 * i + 1], -e));
    packed[i] = static_cast<uint8_t>(low | (high << 4));
  }
  return static_cast<uint8_t>(std::min(e + 127, 254));
}

void SimulateE4m3(std::span<float> x, int group) {
  std::array<uint8_t, 128> codes{};
  FATHOM_CHECK(group > 0 && group <= 128, "group size");
  for (size_t begin = 0; begin < x.size(); begin += static_cast<size_t>(group)) {
    const std::span<float> g = x.subspan(begin, static_cast<size_t>(group));
    const float scale = Ue8m0ToFloat(QuantizeE4m3(g, std::span(codes).first(g.size())));
    for (size_t i = 0; i < g.size(); ++i) g[i] = E4m3ToFloat(codes[i]) * scale;
  }
}

void SimulateE2m1(std::span<float> x, int group) {
  std::array<uint8_t, 64> packed{};
  FATHOM_CHECK(group > 0 && group <= 128 && group % 2 == 0, "group size");
  for (size_t begin = 0; begin < x.size(); begin += static_cast<size_t>(group)) {
    const std::span<float> g = x.subspan(begin, static_cast<size_t>(group));
    const float scale = Ue8m0ToFloat(QuantizeE2m1(g, std::span(packed).first(g.size() / 2)));
    for (size_t i = 0; i < g.size(); ++i) {
      const uint8_t byte = packed[i / 2];
      g[i] = E2m1ToFloat(i % 2 == 0 ? byte : static_cast<uint8_t>(byte >> 4)) * scale;
    }
  }
}

}  // namespace fathom
