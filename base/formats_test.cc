// The number formats against vectors that the reference implementation wrote (tests/data/formats).
#include "base/formats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

namespace fathom {
namespace {

const nlohmann::json& Vectors() {
  static const nlohmann::json kVectors = [] {
    std::ifstream file(FATHOM_SOURCE_DIR "/tests/data/formats/formats.json");
    return nlohmann::json::parse(file);
  }();
  return kVectors;
}

float FromBits(const nlohmann::json& bits) { return std::bit_cast<float>(bits.get<uint32_t>()); }

void ExpectSameFloat(float got, float want, const std::string& what) {
  if (std::isnan(want)) {
    EXPECT_TRUE(std::isnan(got)) << what;
  } else {
    EXPECT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(want)) << what;
  }
}

TEST(Formats, DecodeTablesEqualTheReference) {
  for (int i = 0; i < 256; ++i) {
    const auto code = static_cast<uint8_t>(i);
    ExpectSameFloat(E4m3ToFloat(code), FromBits(Vectors()["e4m3_decode"][code]), "e4m3");
    ExpectSameFloat(Ue8m0ToFloat(code), FromBits(Vectors()["ue8m0_decode"][code]), "ue8m0");
    ExpectSameFloat(E2m1ToFloat(code), FromBits(Vectors()["e2m1_decode"][code & 15]), "e2m1");
  }
}

TEST(Formats, EncodersRoundToNearestEvenAndSaturate) {
  ASSERT_EQ(Vectors()["e4m3_encode"].size(), 240u);
  for (const auto& c : Vectors()["e4m3_encode"]) {
    EXPECT_EQ(FloatToE4m3(FromBits(c[0])), c[1].get<int>()) << FromBits(c[0]);
  }
  ASSERT_EQ(Vectors()["e2m1_encode"].size(), 200u);
  for (const auto& c : Vectors()["e2m1_encode"]) {
    EXPECT_EQ(FloatToE2m1(FromBits(c[0])), c[1].get<int>()) << FromBits(c[0]);
  }
  ASSERT_EQ(Vectors()["bf16_round"].size(), 60u);
  for (const auto& c : Vectors()["bf16_round"]) {
    EXPECT_EQ(FloatToBf16(FromBits(c[0])), c[1].get<int>()) << FromBits(c[0]);
  }
}

TEST(Formats, EveryCodeSurvivesARoundTrip) {
  for (int i = 0; i < 256; ++i) {
    const auto code = static_cast<uint8_t>(i);
    if ((code & 0x7F) != 0x7F) {
      EXPECT_EQ(FloatToE4m3(E4m3ToFloat(code)), code);
    }
    if (i < 16) {
      EXPECT_EQ(FloatToE2m1(E2m1ToFloat(code)), code);
    }
  }
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto code = static_cast<uint16_t>(bits);
    if (!std::isnan(Bf16ToFloat(code))) {
      ASSERT_EQ(FloatToBf16(Bf16ToFloat(code)), code);
    }
  }
}

std::vector<float> Floats(const nlohmann::json& bits) {
  std::vector<float> out;
  for (const auto& b : bits) out.push_back(FromBits(b));
  return out;
}

void ExpectE4m3Blocks(const char* name, int group) {
  ASSERT_EQ(Vectors()[name].size(), 16u);
  for (const auto& block : Vectors()[name]) {
    std::vector<float> x = Floats(block["x"]);
    ASSERT_EQ(x.size(), static_cast<size_t>(group));
    std::vector<uint8_t> codes(x.size());
    const uint8_t scale = QuantizeE4m3(x, codes);
    EXPECT_EQ(scale, block["scale"].get<int>());
    EXPECT_EQ(codes, block["codes"].get<std::vector<uint8_t>>());
    SimulateE4m3(x, group);
    for (size_t i = 0; i < x.size(); ++i) {
      ExpectSameFloat(x[i], E4m3ToFloat(codes[i]) * Ue8m0ToFloat(scale), "simulated");
    }
  }
}

TEST(Formats, E4m3BlocksHaveTheOfficialScalesAndCodes) {
  ExpectE4m3Blocks("fp8_block_128", 128);
  ExpectE4m3Blocks("fp8_block_64", 64);
}

TEST(Formats, E2m1BlocksHaveTheOfficialScalesAndCodes) {
  ASSERT_EQ(Vectors()["fp4_block_32"].size(), 16u);
  for (const auto& block : Vectors()["fp4_block_32"]) {
    std::vector<float> x = Floats(block["x"]);
    std::vector<uint8_t> packed(x.size() / 2);
    const uint8_t scale = QuantizeE2m1(x, packed);
    EXPECT_EQ(scale, block["scale"].get<int>());
    const auto codes = block["codes"].get<std::vector<int>>();
    for (size_t i = 0; i < codes.size(); ++i) {
      EXPECT_EQ(i % 2 == 0 ? packed[i / 2] & 15 : packed[i / 2] >> 4, codes[i]);
    }
    SimulateE2m1(x, 32);
    for (size_t i = 0; i < x.size(); ++i) {
      ExpectSameFloat(x[i], E2m1ToFloat(static_cast<uint8_t>(codes[i])) * Ue8m0ToFloat(scale),
                      "simulated");
    }
  }
}

TEST(Formats, PackedE2m1HasTheEvenElementInTheLowNibble) {
  const auto codes = Vectors()["fp4_pack"]["codes"].get<std::vector<uint8_t>>();
  std::vector<float> x;
  // Values 0..6 and -0..-6 in code order: the scale of this group is 2^0, so codes come back.
  for (uint8_t code : codes) x.push_back(E2m1ToFloat(code));
  std::vector<uint8_t> packed(codes.size() / 2);
  EXPECT_EQ(QuantizeE2m1(x, packed), 127);
  EXPECT_EQ(packed, Vectors()["fp4_pack"]["bytes"].get<std::vector<uint8_t>>());
}

TEST(Formats, ScaleComesFromBitsNotFromLog2f) {
  // 448 * 2^k is exactly representable: the product with 1/448 is exactly 2^k and must not bump;
  // the next float above must.
  for (int k = -20; k < 20; ++k) {
    std::vector<float> x = {std::ldexp(448.0f, k)};
    std::vector<uint8_t> code(1);
    EXPECT_EQ(QuantizeE4m3(x, code), 127 + k) << k;
    x[0] = std::nextafter(std::nextafter(x[0], 1e30f), 1e30f);
    EXPECT_GE(QuantizeE4m3(x, code), 127 + k) << k;
  }
  std::vector<float> zeros(128, 0.0f);
  std::vector<uint8_t> codes(128);
  EXPECT_EQ(QuantizeE4m3(zeros, codes), 105);
}

}  // namespace
}  // namespace fathom
