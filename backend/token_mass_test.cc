#include "backend/token_mass.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace fathom {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kSmallest = std::numeric_limits<float>::denorm_min();

TEST(LogitOrder, FollowsTheNumbersAndCountsNoChoicesAsZero) {
  EXPECT_EQ(LogitOrder(-kInfinity), 0u);
  EXPECT_EQ(LogitOrder(NAN), 0u);
  EXPECT_EQ(LogitOrder(-NAN), 0u);
  EXPECT_EQ(LogitOrder(-0.0f), LogitOrder(0.0f));
  uint32_t before = 0;
  for (const float logit : {-kLargest, -2.0f, -1.0f, -kSmallest, 0.0f, kSmallest, 1.0f, 1.0000001f,
                            kLargest, kInfinity}) {
    EXPECT_GT(LogitOrder(logit), before) << logit;
    before = LogitOrder(logit);
    EXPECT_EQ(LogitOfOrder(before), logit);
  }
}

TEST(LowestOrder, IsThatOfTheSmallestFloatAtTheDistanceOrAbove) {
  const auto expect = [](float max, double distance) {
    const float logit = LogitOfOrder(LowestOrder(max, distance));
    const double lowest = static_cast<double>(max) + distance;
    EXPECT_GE(static_cast<double>(logit), lowest) << max << " " << distance;
    EXPECT_LT(static_cast<double>(std::nextafter(logit, -kInfinity)), lowest)
        << max << " " << distance;
  };
  for (const float max : {3.0f, 0.0f, -17.25f, 1e30f, 1e-40f, 100.1f}) {
    EXPECT_EQ(LowestOrder(max, 0.0), LogitOrder(max));
    for (const double distance : {-1e-9, -0.1, -1.0, -3.0, -100.1, -1e10, -1e-300}) {
      expect(max, distance);
    }
    EXPECT_EQ(LowestOrder(max, -std::numeric_limits<double>::infinity()), 1u);
    EXPECT_EQ(LowestOrder(max, -1e300), 1u);
  }
}

TEST(TokenMass, IsThePowerOfTwoRoundedDown) {
  for (const int64_t vocab : {1, 6, 1000, 129280, 2147483647}) {
    const int bits = MassBits(vocab);
    EXPECT_EQ(TokenMass(0.0, kLog2E, bits), uint64_t{1} << bits);
    EXPECT_EQ(TokenMass(-0.0, 1e-300, bits), uint64_t{1} << bits);
    EXPECT_EQ(TokenMass(-std::numeric_limits<double>::infinity(), kLog2E, bits), 0u);
    EXPECT_EQ(TokenMass(NAN, kLog2E, bits), 0u);
    // The sum of a vocabulary of likeliest tokens.
    EXPECT_LT(static_cast<double>(vocab) * std::ldexp(1.0, bits), 0x1p63);
    for (const double scale : {kLog2E, kLog2E / 0.7, kLog2E / 2.5, 1e-3, 1e5}) {
      for (double distance = 0.0; distance > -50.0; distance -= 0.0137) {
        const double want = std::exp2(distance * scale) * std::ldexp(1.0, bits);
        const auto got = static_cast<double>(TokenMass(distance, scale, bits));
        // The series' error, and one unit for the rounding.
        ASSERT_NEAR(got, want, want * 0x1p-41 + 1.0) << distance << " " << scale;
      }
    }
  }
}

TEST(TokenMass, SharesAreExact) {
  EXPECT_EQ(MulHigh(~uint64_t{0}, ~uint64_t{0}), ~uint64_t{0} - 1);
  EXPECT_EQ(MulHigh(uint64_t{1} << 63, 7), 3u);
  uint64_t a = 0x9E3779B97F4A7C15u, b = 0xD1B54A32D192ED03u;
  for (int i = 0; i < 100; ++i) {
    const auto product = static_cast<unsigned __int128>(a) * b;
    EXPECT_EQ(MulHigh(a, b), static_cast<uint64_t>(product >> 64));
    a = a * 6364136223846793005u + b;
    b ^= a >> 17;
  }
  EXPECT_EQ(NucleusMass(uint64_t{1} << 63, 8), 4u);
  EXPECT_EQ(NucleusMass(uint64_t{1} << 63, 9), 5u);
  EXPECT_EQ(NucleusMass(1, 1), 1u);
  EXPECT_EQ(NucleusMass(0, 5), 1u);
}

TEST(NaturalLog, IsWithinItsBound) {
  EXPECT_EQ(NaturalLog(1.0), 0.0);
  for (double value = 1e-20; value < 1e20; value *= 1.0937) {
    const double want = std::log(value);
    ASSERT_NEAR(NaturalLog(value), want, std::fabs(want) * 0x1p-50 + 1e-16) << value;
  }
}

TEST(LogitSum, GivesLogProbabilities) {
  const std::vector<float> logits = {1.0f, 3.0f, 2.0f, 3.0f, -1.0f, 0.0f};
  LogitSum sum{3.0f, 0, MassBits(6)};
  double total = 0.0;
  for (const float logit : logits) {
    total += std::exp(static_cast<double>(logit));
    sum.mass += TokenMass(static_cast<double>(logit) - 3.0, kLog2E, sum.mass_bits);
  }
  for (const float logit : logits) {
    EXPECT_FLOAT_EQ(sum.LogProbability(logit),
                    static_cast<float>(static_cast<double>(logit) - std::log(total)));
  }
  EXPECT_EQ(sum.LogProbability(-kInfinity), -kInfinity);
  EXPECT_TRUE(std::isnan(sum.LogProbability(NAN)));
  EXPECT_TRUE(std::isnan(LogitSum().LogProbability(1.0f)));
}

}  // namespace
}  // namespace fathom
