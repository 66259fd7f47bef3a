// Cache entries byte by byte, through a reader of the layout that is written apart from the codec.
#include "backend/page_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "backend/ops/test_pages.h"
#include "backend/ops/test_values.h"
#include "backend/step_plan.h"

namespace fathom {
namespace {

using namespace testing_values;  // NOLINT(google-build-using-namespace)

constexpr PageFormat kKv = {EntryEncoding::kE4m3Rope, 512, 64, 4};
constexpr PageFormat kKeys = {EntryEncoding::kE2m1, 128, 0, 4};
constexpr PageFormat kKvBf16 = {EntryEncoding::kBf16Rope, 512, 64, 4};
constexpr PageFormat kKeysBf16 = {EntryEncoding::kBf16, 128, 0, 4};
constexpr PageFormat kKeysFp8 = {EntryEncoding::kE4m3Scaled, 128, 0, 4};
constexpr PageFormat kFloats = {EntryEncoding::kF32, 10, 0, 4};

// The published sizes: 448 + 128 + 8 bytes, 64 + 4 bytes.
static_assert(kKv.value_bytes() == 576 && kKv.scale_bytes() == 8);
static_assert(kKeys.value_bytes() == 64 && kKeys.scale_bytes() == 4);
static_assert(kKvBf16.entry_bytes() == 1024 && kKeysBf16.entry_bytes() == 256);
static_assert(kKeysFp8.value_bytes() == 128 && kKeysFp8.scale_bytes() == 4);
static_assert(PageFormat{EntryEncoding::kE4m3Scaled, 128, 0, 64}.content_bytes() == 8448);
static_assert(PageFormat{EntryEncoding::kE4m3Scaled, 128, 0, 64}.scale_offset() == 64 * 128);
static_assert(kFloats.value_bytes() == 40 && kFloats.scale_bytes() == 0);
static_assert(PageFormat{EntryEncoding::kE4m3Rope, 512, 64, 64}.content_bytes() == 64 * 584);
static_assert(PageFormat{EntryEncoding::kE4m3Rope, 512, 64, 64}.scale_offset() == 64 * 576);
static_assert(PageFormat{EntryEncoding::kE2m1, 128, 0, 64}.content_bytes() == 4352);

struct Page {
  explicit Page(const PageFormat& f)
      : format(f), bytes(static_cast<size_t>(f.content_bytes()) + 16, 0xFF) {}
  EntryRef Row(int row) { return {reinterpret_cast<std::byte*>(bytes.data()), row}; }
  PageFormat format;
  std::vector<uint8_t> bytes;
};

double E4m3(int code) {
  TestWeight one(DType::kF8E4M3, 1, 128);
  one.data()[0] = static_cast<uint8_t>(code);
  return one.At(0, 0);
}

TEST(PageCodec, E4m3EntryIsCodesThenBf16WithScalesBehindAllEntries) {
  Page page(kKv);
  std::vector<float> values(512);
  for (size_t g = 0; g < 7; ++g) values[64 * g + 1] = std::ldexp(-448.0f, static_cast<int>(g) - 3);
  for (size_t i = 448; i < 512; ++i) values[i] = static_cast<float>(i - 384);
  StoreEntry(kKv, page.Row(2), values);
  const uint8_t* entry = page.bytes.data() + 2 * 576;
  for (size_t i = 0; i < 448; ++i) ASSERT_EQ(entry[i], i % 64 == 1 ? 0xFE : 0) << i;
  for (size_t i = 448; i < 512; ++i) {
    const int bits = entry[448 + 2 * (i - 448)] | entry[449 + 2 * (i - 448)] << 8;
    ASSERT_EQ(std::bit_cast<float>(static_cast<uint32_t>(bits) << 16), static_cast<float>(i - 384));
  }
  const uint8_t* scales = page.bytes.data() + 4 * 576 + 2 * 8;
  EXPECT_THAT(std::vector<int>(scales, scales + 8),
              testing::ElementsAre(124, 125, 126, 127, 128, 129, 130, 0));
}

TEST(PageCodec, E2m1EntryHasTheEvenChannelInTheLowNibbleAndAScalePer32) {
  Page page(kKeys);
  std::vector<float> values(128);
  values[0] = 6.0f;
  values[1] = -0.5f;
  values[33] = 24.0f;
  values[127] = 0.75f;
  StoreEntry(kKeys, page.Row(1), values);
  const uint8_t* entry = page.bytes.data() + 64;
  EXPECT_EQ(entry[0], 0x97);  // code 7, code 9
  EXPECT_EQ(entry[16], 0x70);
  EXPECT_EQ(entry[63], 0x70);
  const uint8_t* scales = page.bytes.data() + 4 * 64 + 4;
  // 6, 24 and 0.75 over 6; a group of zeros has the smallest scale.
  EXPECT_THAT(std::vector<int>(scales, scales + 4), testing::ElementsAre(127, 129, 1, 124));
}

TEST(PageCodec, StoreTouchesItsOwnBytesOnly) {
  for (const PageFormat& format : {kKv, kKeys, kKvBf16, kKeysBf16, kKeysFp8, kFloats}) {
    Page page(format);
    StoreEntry(format, page.Row(1), std::vector<float>(static_cast<size_t>(format.dim), 1.0f));
    for (size_t i = 0; i < page.bytes.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      const int64_t scales = format.scale_offset() + format.scale_bytes();
      const bool own = (at >= format.value_bytes() && at < 2 * format.value_bytes()) ||
                       (at >= scales && at < scales + format.scale_bytes());
      if (!own) {
        ASSERT_EQ(page.bytes[i], 0xFF) << i;
      }
    }
  }
}

TEST(PageCodec, LoadReadsEveryCodeUnderItsScale) {
  Page page(kKv);
  for (int code = 0; code < 256; ++code)
    page.bytes[static_cast<size_t>(code)] = static_cast<uint8_t>(code);
  for (size_t g = 0; g < 7; ++g) page.bytes[4 * 576 + g] = static_cast<uint8_t>(120 + 3 * g);
  page.bytes[4 * 576 + 0] = 0;  // 2^-127, not zero
  std::vector<float> got(512);
  LoadEntry(kKv, page.Row(0), got);
  for (int code = 0; code < 256; ++code) {
    const auto i = static_cast<size_t>(code);
    if ((code & 0x7F) == 0x7F) {
      ASSERT_TRUE(std::isnan(got[i]));
    } else {
      ASSERT_EQ(got[i], std::ldexp(E4m3(code), i < 64 ? -127 : 120 + 3 * (code / 64) - 127))
          << code;
    }
  }
  Page keys(kKeys);
  for (size_t i = 0; i < 64; ++i) keys.bytes[i] = static_cast<uint8_t>(i % 8 | (15 - i % 8) << 4);
  for (size_t g = 0; g < 4; ++g) keys.bytes[4 * 64 + g] = static_cast<uint8_t>(126 + g);
  std::vector<float> loaded(128);
  LoadEntry(kKeys, keys.Row(0), loaded);
  const double magnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (size_t i = 0; i < 64; ++i) {
    const int exponent = static_cast<int>(i / 16) - 1;
    ASSERT_EQ(loaded[2 * i], std::ldexp(magnitudes[i % 8], exponent));
    ASSERT_EQ(loaded[2 * i + 1], -std::ldexp(magnitudes[7 - i % 8], exponent));
  }
}

TEST(PageCodec, RoundTripIsTheFormatsRounding) {
  Random random(3);
  for (int round = 0; round < 20; ++round) {
    const double size = std::ldexp(1.0, round - 10);
    Page kv(kKv);
    const std::vector<float> values = random.Floats(512, -size, size);
    std::vector<float> got(512);
    StoreEntry(kKv, kv.Row(3), values);
    LoadEntry(kKv, kv.Row(3), got);
    ExpectValues(false, std::span(got).first(448),
                 AsE4m3(ToDoubles(std::span(values).first(448)), 64), 0.0);
    ExpectValues(true, std::span(got).last(64), ToDoubles(std::span(values).last(64)), 0.0);
    // What came out goes in unchanged: the cache loses nothing of the official values.
    Page again(kKv);
    StoreEntry(kKv, again.Row(3), got);
    EXPECT_EQ(again.bytes, kv.bytes);

    Page keys(kKeys);
    std::vector<float> key = random.Floats(128, -size, size);
    StoreEntry(kKeys, keys.Row(0), key);
    std::vector<float> loaded(128);
    LoadEntry(kKeys, keys.Row(0), loaded);
    ExpectValues(false, loaded, AsE2m1(ToDoubles(key)), 0.0);

    Page floats(kFloats);
    const std::vector<float> plain = random.Floats(10, -size, size);
    std::vector<float> same(10);
    StoreEntry(kFloats, floats.Row(2), plain);
    LoadEntry(kFloats, floats.Row(2), same);
    EXPECT_EQ(same, plain);
  }
}

std::vector<float> StoredAs(const PageFormat& format, const std::vector<float>& values,
                            bool* exact = nullptr) {
  Page page(format);
  const bool kept = StoreEntry(format, page.Row(1), values);
  if (exact != nullptr) *exact = kept;
  std::vector<float> got(values.size());
  LoadEntry(format, page.Row(1), got);
  return got;
}

void ExpectSameBits(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i])) << i;
  }
}

TEST(PageCodec, WiderEncodingsHoldTheVerySameValues) {
  Random random(11);
  for (int round = 0; round < 200; ++round) {
    // From where every group is at the floor of its scale to large values, groups unlike each
    // other.
    std::vector<float> kv = random.Floats(512, -1.0, 1.0);
    for (size_t i = 0; i < kv.size(); ++i) {
      kv[i] = std::ldexp(kv[i], round / 2 - 60 + static_cast<int>(i / 64) % 5);
    }
    ExpectSameBits(StoredAs(kKvBf16, kv), StoredAs(kKv, kv));

    // Group scales up to 2^14 apart: groups lie up to 2^13 apart and the rounding of a scale
    // adds 1.
    std::vector<float> key = random.Floats(128, -1.0, 1.0);
    const int exponents[] = {0, round % 14, 13, (round * 5) % 14};
    for (size_t i = 0; i < key.size(); ++i) {
      if (i % 32 == 0) key[i] = 1.0f;
      key[i] = std::ldexp(key[i], exponents[i / 32] + round - 130);
    }
    const std::vector<float> want = StoredAs(kKeys, key);
    ExpectSameBits(StoredAs(kKeysBf16, key), want);
    bool exact = false;
    ExpectSameBits(StoredAs(kKeysFp8, key, &exact), want);
    EXPECT_TRUE(exact) << round;
  }
}

TEST(PageCodec, Fp8KeysAreCodesThenOneFloatScalePerEntryBehindAllEntries) {
  Page page(kKeysFp8);
  std::vector<float> key(128);
  key[0] = 6.0f;    // scale 1
  key[33] = -1.5f;  // scale 1/4: code 6
  key[127] = 0.5f;  // scale 1/8: code 4
  EXPECT_TRUE(StoreEntry(kKeysFp8, page.Row(2), key));
  // One scale 2^-6: 384, -96 and 32 as e4m3.
  const uint8_t* entry = page.bytes.data() + 2 * 128;
  EXPECT_EQ(entry[0], 0x7C);
  EXPECT_EQ(entry[33], 0x80 | 0x6C);
  EXPECT_EQ(entry[127], 0x60);
  float scale = 0.0f;
  std::memcpy(&scale, page.bytes.data() + 4 * 128 + 2 * 4, sizeof(scale));
  EXPECT_EQ(scale, 0x1p-6f);
}

TEST(PageCodec, AnFp8KeySaysWhenItsGroupsLieTooFarApart) {
  for (int spread = 0; spread < 40; ++spread) {
    std::vector<float> key(128);
    key[5] = std::ldexp(6.0f, spread);
    key[64] = 6.0f;
    key[65] = 0.5f;  // the smallest value of its group
    bool exact = false;
    const std::vector<float> got = StoredAs(kKeysFp8, key, &exact);
    EXPECT_EQ(exact, spread <= 14) << spread;
    EXPECT_EQ(got[5], key[5]) << spread;
    if (exact) {
      EXPECT_EQ(got, key) << spread;
    } else {
      // A step of the subnormal grid is 2^-9 of the entry's scale, 2^(spread - 6).
      EXPECT_NEAR(got[65], key[65], std::ldexp(1.0, spread - 6 - 9) / 2) << spread;
    }
  }
  // A group of zeros has the smallest scale but nothing to lose.
  std::vector<float> key(128);
  key[0] = 1000.0f;
  bool exact = false;
  EXPECT_EQ(StoredAs(kKeysFp8, key, &exact), StoredAs(kKeys, key));
  EXPECT_TRUE(exact);
  EXPECT_EQ(StoredAs(kKeysFp8, std::vector<float>(128), &exact), std::vector<float>(128));
  EXPECT_TRUE(exact);
}

// amax exactly at 448 * 2^k keeps the scale 2^k; the floor of an all-zero group is 1e-4.
TEST(PageCodec, ScalesAtPowersOfTwoAndAtTheFloor) {
  Page page(kKv);
  std::vector<float> values(512);
  values[0] = 448.0f;
  values[64] = std::nextafter(448.0f, 500.0f);
  values[128] = 1e-4f;
  values[192] = 0x1p-40f;
  StoreEntry(kKv, page.Row(0), values);
  const uint8_t* scales = page.bytes.data() + 4 * 576;
  EXPECT_THAT(std::vector<int>(scales, scales + 8),
              testing::ElementsAre(127, 128, 105, 105, 105, 105, 105, 0));
}

TEST(PageCodec, EntryJStandsInItsTablesBlock) {
  std::vector<std::byte> memory(1000);
  const std::vector<int32_t> blocks = {5, 0, 3};
  const PageView view = {{EntryEncoding::kF32, 1, 0, 4}, memory.data(), 100};
  const BlockTable table = {blocks.data(), 3};
  const auto at = [&](int64_t entry) {
    const EntryRef ref = Locate(view, table, entry);
    return std::pair(ref.page - memory.data(), ref.row);
  };
  EXPECT_EQ(at(0), std::pair(500L, 0));
  EXPECT_EQ(at(3), std::pair(500L, 3));
  EXPECT_EQ(at(4), std::pair(0L, 0));
  EXPECT_EQ(at(11), std::pair(300L, 3));
}

TEST(PageCodec, ATableBeginsAtItsFirstBlockAndMayHaveHoles) {
  std::vector<std::byte> memory(1000);
  const std::vector<int32_t> blocks = {6, kNoBlock, 3};
  const PageView view = {{EntryEncoding::kF32, 1, 0, 4}, memory.data(), 100};
  const BlockTable table = {blocks.data(), 3, 10};
  for (int64_t entry = -5; entry < 60; ++entry) {
    const bool there = (entry >= 40 && entry < 44) || (entry >= 48 && entry < 52);
    ASSERT_EQ(HasBlock(view, table, entry), there) << entry;
    if (!there) continue;
    const EntryRef ref = Locate(view, table, entry);
    EXPECT_EQ(ref.page - memory.data(), entry < 44 ? 600 : 300);
    EXPECT_EQ(ref.row, entry % 4);
  }
  EXPECT_FALSE(HasBlock(view, {}, 0));
}

TEST(PageCodec, ABlocksAddressHas64Bits) {
  const std::vector<int32_t> blocks = {2'000'000'000};
  const PageView view = {{EntryEncoding::kF32, 1, 0, 4}, nullptr, 1'609'920};
  const EntryRef ref = Locate(view, {blocks.data(), 1}, 0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(ref.page), 2'000'000'000u * uint64_t{1'609'920});
}

// In every format that holds KV: a value that the page gives back is the one of the step.
TEST(PageCodec, RoundedKvIsWhatAStoredEntryGivesBack) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (const EntryEncoding encoding :
       {EntryEncoding::kF32, EntryEncoding::kE4m3Rope, EntryEncoding::kBf16Rope}) {
    const PageFormat format = {encoding, 512, 64, 1};
    std::vector<std::byte> page(static_cast<size_t>(format.content_bytes()));
    for (int exponent = -30; exponent <= 60; exponent += 3) {
      std::vector<float> values(512);
      for (float& v : values) v = std::ldexp(normal(random), exponent);
      values[5] = values[200] = 0.0f;
      values[6] = -0.0f;
      // Rounds up to the middle of the scale's range, where a smaller scale would do as well.
      values[64] = std::ldexp(std::nextafter(224.0f, 500.0f), exponent);
      std::vector<float> stored(512);
      StoreEntry(format, {page.data(), 0}, values);
      LoadEntry(format, {page.data(), 0}, stored);
      RoundKvEntry(format, values);
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(stored[i]))
            << "encoding " << static_cast<int>(encoding) << ", channel " << i;
      }
    }
  }
}

TEST(StepPlan, AnEntryIsVisibleFromItsLastTokenOn) {
  for (int ratio : {4, 128}) {
    for (int position = 0; position < 1000; ++position) {
      int visible = 0;
      while (position >= ratio * visible + ratio - 1) ++visible;
      ASSERT_EQ(VisibleEntries(position, ratio), visible) << position;
    }
  }
}

}  // namespace
}  // namespace fathom
