// Probabilities as integers: what sampling adds up.
//
// A token's mass is its probability relative to the likeliest one, in units of 2^-MassBits. Sums of
// masses are exact, so they are the same in any order, and everything here is made of operations
// that IEEE 754 rounds in one way: host and device choose the same token, bit for bit, on every
// machine. Pure functions; device code calls the constexpr ones.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace fathom {

// Larger for larger logits, equal for equal ones (-0 is 0); 0 for -inf and NaN, which are no
// choice.
constexpr uint32_t LogitOrder(float logit) {
  if (!(logit > -std::numeric_limits<float>::infinity())) return 0;
  const auto bits = std::bit_cast<uint32_t>(logit + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// The logit of an order above 0.
constexpr float LogitOfOrder(uint32_t order) {
  return std::bit_cast<float>((order & 0x80000000u) != 0 ? order & 0x7FFFFFFFu : ~order);
}

// The order that finite logits of at least max + distance have or exceed; `distance` <= 0 may be
// -inf.
constexpr uint32_t LowestOrder(float max, double distance) {
  const double lowest = static_cast<double>(max) + distance;
  if (!(lowest >= -static_cast<double>(std::numeric_limits<float>::max()))) return 1;
  const auto rounded = static_cast<float>(lowest);
  return LogitOrder(rounded) + (static_cast<double>(rounded) < lowest ? 1u : 0u);
}

// Mass of the likeliest token, as a power of 2: the largest that keeps the sum of a vocabulary
// below 2^63.
constexpr int MassBits(int64_t vocab_size) {
  return 63 - static_cast<int>(std::bit_width(static_cast<uint64_t>(vocab_size)));
}

// 2^(distance * scale) of 2^mass_bits, rounded down. `distance` <= 0 is that to the largest logit,
// which must be finite; `scale` is log2(e) / temperature. Relative error 2^-41 before the rounding.
constexpr uint64_t TokenMass(double distance, double scale, int mass_bits) {
  const double exponent = distance * scale;
  if (!(exponent > -64.0)) return 0;
  const auto whole = static_cast<int>(exponent - 0.5);
  // 2^x for |x| <= 1/2 by its Taylor series: ln(2)^k / k!. What is left out is below 3e-13.
  const double x = exponent - whole;
  double power = 7.054911620801121e-09;
  power = power * x + 1.0178086009239696e-07;
  power = power * x + 1.3215486790144305e-06;
  power = power * x + 1.5252733804059838e-05;
  power = power * x + 1.5403530393381606e-04;
  power = power * x + 1.3333558146428441e-03;
  power = power * x + 9.618129107628477e-03;
  power = power * x + 5.5504108664821576e-02;
  power = power * x + 2.402265069591007e-01;
  power = power * x + 6.931471805599453e-01;
  power = power * x + 1.0;
  const auto bits = std::bit_cast<uint64_t>(power);
  const uint64_t digits = (bits & ((uint64_t{1} << 52) - 1)) | uint64_t{1} << 52;
  const int shift = static_cast<int>(bits >> 52) - 1023 - 52 + whole + mass_bits;
  if (shift >= 0) return digits << shift;
  return shift > -64 ? digits >> -shift : 0;
}

// Upper 64 bits of the product: a share a / 2^64 of b, rounded down.
constexpr uint64_t MulHigh(uint64_t a, uint64_t b) {
  constexpr uint64_t kLow = 0xFFFFFFFFu;
  const uint64_t low = (a & kLow) * (b & kLow);
  const uint64_t mid = (a >> 32) * (b & kLow) + (low >> 32);
  const uint64_t cross = (a & kLow) * (b >> 32) + (mid & kLow);
  return (a >> 32) * (b >> 32) + (mid >> 32) + (cross >> 32);
}

// What the tokens of a nucleus must hold of `total` at least: a share of share / 2^64, rounded up.
constexpr uint64_t NucleusMass(uint64_t share, uint64_t total) {
  const uint64_t mass = MulHigh(share, total) + (share * total != 0 ? 1 : 0);
  return mass > 0 ? mass : 1;
}

// Natural logarithm of a normal number above 0, within 4 units in the last place or 1e-16.
constexpr double NaturalLog(double value) {
  const auto bits = std::bit_cast<uint64_t>(value);
  const uint64_t digits = bits & ((uint64_t{1} << 52) - 1);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>(digits | uint64_t{1023} << 52);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  // 2 artanh(s), |s| < 0.172: the first term left out is below 2e-18.
  const double s = (m - 1.0) / (m + 1.0);
  const double square = s * s;
  double sum = 0.0;
  for (int k = 21; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
  return exponent * 6.931471805599453e-01 + 2.0 * s * sum;
}

// The sum of a row's probabilities, relative to the likeliest token: of raw logits, temperature 1.
struct LogitSum {
  float max = 0.0f;
  uint64_t mass = 0;
  int mass_bits = 0;

  // log(exp(logit) / sum), rounded once. NaN where no logit, or an infinite one, is the largest.
  [[nodiscard]] constexpr float LogProbability(float logit) const {
    if (mass == 0) return std::numeric_limits<float>::quiet_NaN();
    const double unit = std::bit_cast<double>(static_cast<uint64_t>(1023 - mass_bits) << 52);
    const double log_sum = NaturalLog(static_cast<double>(mass) * unit);
    return static_cast<float>(static_cast<double>(logit) - (static_cast<double>(max) + log_sum));
  }
};

// `scale` of TokenMass for temperature 1.
inline constexpr double kLog2E = 1.4426950408889634;

}  // namespace fathom
