// The published arithmetic of V4 caches, to the byte, and the planner's own formulas against plain
// enumeration. The tables are those of docs/planning.md.
#include "cache/planner.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

namespace fathom {
namespace {

constexpr CacheDTypes kBf16 = {CacheDType::kBf16, CacheDType::kBf16};
constexpr CacheDTypes kFp8 = {CacheDType::kFp8, CacheDType::kFp8};
constexpr CacheDTypes kFp8Fp4 = {CacheDType::kFp8, CacheDType::kFp4};
constexpr int64_t kMillion = 1048576;
constexpr double kGiB = 1 << 30;

CacheGeometry Flash(int mtp) {
  CacheGeometry g = {{0, 0}, 512, 64, 128, 128, mtp};
  for (int layer = 2; layer < 43; ++layer) g.ratios.push_back(layer % 2 == 0 ? 4 : 128);
  for (int i = 0; i < mtp; ++i) g.ratios.push_back(0);
  return g;
}
CacheGeometry Pro(int mtp) {
  CacheGeometry g = {{128, 128}, 512, 64, 128, 128, mtp};
  for (int layer = 2; layer < 61; ++layer) g.ratios.push_back(layer % 2 == 0 ? 4 : 128);
  for (int i = 0; i < mtp; ++i) g.ratios.push_back(0);
  return g;
}
int64_t Entries(const CacheGeometry& geometry, CacheDTypes dtypes, int64_t length) {
  return EntryBytesAt(CacheLayout(geometry, dtypes), length).entries();
}

TEST(Planner, EntryBytesPerSequenceOfFlashAndPro) {
  struct Row {
    int64_t length;
    int64_t flash[3];
    int64_t pro[3];
  };
  const Row rows[] = {
      {4096, {33816576, 18984960, 17608704}, {48332800, 27134720, 25168640}},
      {65536, {456523776, 255544320, 233524224}, {653393920, 365757440, 334300160}},
      {393216, {2710962176, 1517194240, 1385073664}, {3880386560, 2171745280, 1983001600}},
      {kMillion, {7219838976, 4040494080, 3688172544}, {10334371840, 5783720960, 5280404480}},
  };
  const CacheDTypes dtypes[] = {kBf16, kFp8, kFp8Fp4};
  for (const Row& row : rows) {
    for (int i = 0; i < 3; ++i) {
      // The MTP block's window is counted apart.
      for (int mtp : {0, 1}) {
        EXPECT_EQ(Entries(Flash(mtp), dtypes[i], row.length), row.flash[i]) << row.length;
        EXPECT_EQ(Entries(Pro(mtp), dtypes[i], row.length), row.pro[i]) << row.length;
      }
    }
  }
}

TEST(Planner, AMillionTokensOfV32AndOfV4With61Layers) {
  const double v32 = static_cast<double>(V32StyleBytes(61, kMillion)) / kGiB;
  const double v4 = static_cast<double>(Entries(Pro(0), kBf16, kMillion)) / kGiB;
  EXPECT_EQ(v32, 83.875);
  EXPECT_EQ(v4, 9855.625 / 1024);  // 9.6246
  EXPECT_NEAR(v32 / v4, 8.7146, 5e-5);
  EXPECT_EQ(V32StyleBytes(1, 1), 1408);
  // "About half with an fp4 indexer and fp8 attention".
  EXPECT_NEAR(static_cast<double>(Entries(Pro(0), kFp8Fp4, kMillion)) / kGiB / v4, 0.511, 5e-4);
}

TEST(Planner, CompressorStatesAndTheMtpWindow) {
  const EntryBytes flash = EntryBytesAt(CacheLayout(Flash(1), kFp8), kMillion);
  EXPECT_EQ(flash.state, 12206080);
  EXPECT_EQ(flash.mtp_window, 128 * 584);
  EXPECT_EQ(flash.total(), flash.entries() + 12206080 + 128 * 584);
  EXPECT_EQ(EntryBytesAt(CacheLayout(Pro(0), kBf16), kMillion).state, 18710528);
  EXPECT_EQ(EntryBytesAt(CacheLayout(Pro(0), kBf16), kMillion).mtp_window, 0);
  // Before a window is full it holds what there is.
  const EntryBytes start = EntryBytesAt(CacheLayout(Flash(0), kFp8), 5);
  EXPECT_EQ(start.window, 43 * 5 * 584);
  EXPECT_EQ(start.c4_kv, 21 * 584);
  EXPECT_EQ(start.c4_index_keys, 21 * 132);
  EXPECT_EQ(start.c128_kv, 0);
  EXPECT_EQ(start.state, 5 * (21 * (8192 + 2048) + 20 * 4096));
  EXPECT_EQ(EntryBytesAt(CacheLayout(Flash(1), kFp8), 0).total(), 0);
}

TEST(Planner, BytesReadPerDecodedToken) {
  struct Row {
    int64_t length;
    double flash_fp8, flash_fp4, pro_fp8, pro_fp4;  // MB
  };
  const Row rows[] = {{4096, 12.7, 11.3, 27.1, 25.2},
                      {65536, 60.9, 38.9, 96.7, 65.2},
                      {393216, 317.9, 185.8, 467.4, 278.7},
                      {kMillion, 831.8, 479.5, 1208.9, 705.6}};
  const auto megabytes = [](const CacheGeometry& geometry, CacheDTypes dtypes, int64_t length,
                            int topk) {
    return static_cast<double>(
               ReadBytesPerToken(CacheLayout(geometry, dtypes), length, topk).total()) /
           1e6;
  };
  for (const Row& row : rows) {
    EXPECT_NEAR(megabytes(Flash(1), kFp8, row.length, 512), row.flash_fp8, 0.05);
    EXPECT_NEAR(megabytes(Flash(1), kFp8Fp4, row.length, 512), row.flash_fp4, 0.05);
    EXPECT_NEAR(megabytes(Pro(1), kFp8, row.length, 1024), row.pro_fp8, 0.05);
    EXPECT_NEAR(megabytes(Pro(1), kFp8Fp4, row.length, 1024), row.pro_fp4, 0.05);
  }
  const ReadBytes pro = ReadBytesPerToken(CacheLayout(Pro(1), kFp8Fp4), kMillion, 1024);
  EXPECT_NEAR(static_cast<double>(pro.c4_index_keys) / 1e6, 534.8, 0.05);
  // With few entries all are chosen, not top-k.
  EXPECT_EQ(ReadBytesPerToken(CacheLayout(Flash(0), kFp8), 100, 512).c4_chosen, 21 * 25 * 584);
}

TEST(Planner, SlabsWasteAtMostThreePercentOfAnyClass) {
  for (const CacheDTypes dtypes : {kFp8, kFp8Fp4}) {
    EXPECT_EQ(SlabBytes(CacheLayout(Flash(1), dtypes)), 13238272);
    EXPECT_EQ(SlabBytes(CacheLayout(Pro(1), dtypes)), 18677760);
  }
  const CachePlanner flash(CacheLayout(Flash(1), kFp8Fp4));
  EXPECT_EQ(flash.BlocksPerSlab(CacheClass::kFull), 14);
  EXPECT_EQ(flash.BlocksPerSlab(CacheClass::kSwa), 8);
  EXPECT_EQ(flash.BlocksPerSlab(CacheClass::kState4), 15);
  EXPECT_EQ(flash.BlocksPerSlab(CacheClass::kState128), 20);
}

TEST(Planner, SlabsOfOtherGeometriesKeepTheRuleAndAreTheSmallest) {
  const CacheGeometry geometries[] = {Flash(0),
                                      Pro(0),
                                      {{0, 4, 128, 4}, 128, 64, 64, 32},
                                      {{0}, 80, 16, 32, 8},
                                      {{4, 4}, 512, 64, 128, 128}};
  for (const CacheGeometry& geometry : geometries) {
    for (const CacheDTypes dtypes : {kBf16, kFp8, kFp8Fp4}) {
      const CacheLayout layout(geometry, dtypes);
      const auto waste = [&](int64_t slab) {
        double worst = 0.0;
        for (int c = 0; c < kNumCacheClasses; ++c) {
          const int64_t block = layout.BlockBytes(static_cast<CacheClass>(c));
          if (block == 0) continue;
          const int64_t used = slab / block * block;
          worst = std::max(worst, static_cast<double>(slab - used) / static_cast<double>(slab));
        }
        return worst;
      };
      const int64_t slab = SlabBytes(layout);
      EXPECT_EQ(slab % 65536, 0);
      EXPECT_LE(waste(slab), 0.03);
      for (int64_t smaller = 65536; smaller < slab; smaller += 65536) {
        ASSERT_GT(waste(smaller), 0.03) << smaller;
      }
    }
  }
}

// serving.md 1.12 counts without the MTP layer.
TEST(Planner, WorkedExampleOfAShortAndALongRequest) {
  const CachePlanner fp8(CacheLayout(Flash(0), kFp8));
  EXPECT_EQ(fp8.BlocksAt(1001), (ClassCounts{4, 3, 3, 17}));
  EXPECT_EQ(fp8.BlockBytes(fp8.BlocksAt(1001)),
            4 * 1002240 + 3 * 1609920 + 3 * 870912 + 17 * 656640);  // 22.6 MB
  EXPECT_EQ(fp8.BlocksAt(kMillion), (ClassCounts{4096, 2, 2, 16}));
  EXPECT_NEAR(static_cast<double>(fp8.BlockBytes(fp8.BlocksAt(kMillion))) / 1e9, 4.12, 0.005);
  const CachePlanner fp4(CacheLayout(Flash(0), kFp8Fp4));
  const auto blocks = static_cast<double>(fp4.BlockBytes(fp4.BlocksAt(kMillion)));
  EXPECT_NEAR(blocks / 1e9, 3.77, 0.01);
  const auto content = static_cast<double>(EntryBytesAt(fp4.layout(), kMillion).total());
  EXPECT_LT(1.0 - content / blocks, 0.02);
  // Growth per 256 tokens: pages, and what is in them.
  EXPECT_EQ(fp4.layout().BlockBytes(CacheClass::kFull), 917568);
  EXPECT_EQ(Entries(Flash(0), kFp8Fp4, 512) - Entries(Flash(0), kFp8Fp4, 256), 899648);
  EXPECT_EQ(Entries(Pro(0), kFp8, 512) - Entries(Pro(0), kFp8, 256), 1410928);
}

TEST(Planner, ResumePoints) {
  const CachePlanner planner(CacheLayout(Flash(1), kFp8Fp4));
  EXPECT_EQ(planner.BlockBytes(planner.ResumePointBlocks(4096)), 4165632);
  EXPECT_EQ(planner.ResumePointBlocks(0), ClassCounts{});
  int64_t most = 0;
  for (int64_t p = 4097; p < 4097 + 256; ++p) {
    most = std::max(most, planner.BlockBytes(planner.ResumePointBlocks(p)));
  }
  EXPECT_EQ(most, 17190144);
}

// Positions that must be there for position `newest`, put into blocks one by one.
TEST(Planner, BlockCountsEqualEnumeration) {
  const CacheGeometry geometry = {{0, 4, 128}, 512, 64, 128, 100};
  const CachePlanner planner(CacheLayout(geometry, kFp8Fp4));
  const int per_block[] = {256, 64, 4, 8};
  const int window[] = {1 << 20, 100, 8, 128};
  ClassCounts most{};
  for (int length = 0; length < 1200; ++length) {
    ClassCounts want{};
    for (size_t c = 0; c < 4; ++c) {
      std::set<int> touched;
      for (int p = std::max(0, length - window[c]); p < length; ++p)
        touched.insert(p / per_block[c]);
      want[c] = static_cast<int64_t>(touched.size());
      most[c] = std::max(most[c], want[c]);
    }
    ASSERT_EQ(planner.BlocksAt(length), want) << length;
    ASSERT_EQ(planner.MaxBlocks(length), most) << length;
  }
}

// Blocks of the window that position `begin` reads and of what a step to `end` leaves behind, put
// together one by one, for all steps.
TEST(Planner, AChunkHoldsTheWindowsAtBothOfItsEnds) {
  const CacheGeometry geometry = {{0, 4, 128}, 512, 64, 128, 100};
  const CachePlanner planner(CacheLayout(geometry, kFp8Fp4));
  const int per_block[] = {256, 64, 4, 8};
  constexpr int kLength = 600;
  ClassCounts most{};
  for (int end = 1; end <= kLength; ++end) {
    for (int begin = 0; begin < end; ++begin) {
      for (size_t c = 1; c < 4; ++c) {
        std::set<int> touched;
        for (const int at : {begin, end}) {
          const auto live =
              static_cast<int>(planner.layout().LiveBegin(static_cast<CacheClass>(c), at));
          for (int b = std::max(0, live) / per_block[c]; b * per_block[c] < at; ++b) {
            touched.insert(b);
          }
        }
        most[c] = std::max(most[c], static_cast<int64_t>(touched.size()));
      }
    }
    const ClassCounts counted = planner.MaxBlocks(1, end);
    ASSERT_EQ(counted[0], (end + 255) / 256);
    for (size_t c = 1; c < 4; ++c) ASSERT_GE(counted[c], most[c]) << c << " at " << end;
  }
  // The window may begin anywhere in a block; states begin with one, which admission leaves out.
  const ClassCounts counted = planner.MaxBlocks(1, kLength);
  EXPECT_EQ(counted, (ClassCounts{3, 6, 6, 34}));
  EXPECT_EQ(most, (ClassCounts{0, 6, 4, 32}));
}

TEST(Planner, OneChunkIsCountedHoweverManySequences) {
  const CachePlanner planner(CacheLayout(Flash(1), kFp8Fp4));
  EXPECT_EQ(planner.ChunkBlocks(kMillion), (ClassCounts{0, 3, 3, 17}));
  EXPECT_EQ(planner.ChunkBlocks(0), ClassCounts{});
  EXPECT_EQ(planner.ChunkBlocks(1), ClassCounts{});
  EXPECT_EQ(planner.ChunkBlocks(64), (ClassCounts{0, 0, 3, 0})) << "no more than there are";
  EXPECT_EQ(planner.ChunkBlocks(150), (ClassCounts{0, 0, 3, 2}));
  EXPECT_EQ(planner.MaxBlocks(0, kMillion), ClassCounts{});
  EXPECT_EQ(planner.MaxBlocks(1, kMillion), (ClassCounts{4096, 6, 6, 34}));
  EXPECT_EQ(planner.MaxBlocks(10, kMillion), (ClassCounts{40960, 33, 33, 187}));
  EXPECT_EQ(planner.BytesFor(10, kMillion),
            planner.SlabsFor(planner.MaxBlocks(10, kMillion)) * planner.slab_bytes());
  EXPECT_EQ(planner.SlabsFor({40960, 33, 33, 187}), 2926 + 5 + 3 + 10);
}

TEST(Planner, ClassesThatNoLayerHasTakeNothing) {
  const CachePlanner planner(CacheLayout({{0, 0}, 512, 64, 128, 128}, kFp8Fp4));
  EXPECT_EQ(planner.BlocksPerSlab(CacheClass::kFull), 0);
  EXPECT_EQ(planner.MaxBlocks(100000), (ClassCounts{0, 3, 0, 0}));
  // The sequence stops growing, so any length fits where one does.
  EXPECT_EQ(planner.MaxLength(1, planner.slab_bytes(), 1000000), 1000000);
}

TEST(Planner, WhatFitsIsTheLargestThatDoes) {
  const CachePlanner planner(CacheLayout(Flash(1), kFp8Fp4));
  for (const int64_t budget :
       {int64_t{0}, int64_t{60} << 20, int64_t{1} << 30, int64_t{20} << 30, int64_t{1} << 50}) {
    for (const int64_t length : {int64_t{1}, int64_t{1000}, int64_t{65536}, kMillion}) {
      const int64_t n = planner.MaxSequences(length, budget);
      EXPECT_LE(n == 0 ? 0 : planner.BytesFor(n, length), budget);
      EXPECT_GT(planner.BytesFor(n + 1, length), budget) << budget << " " << length;
    }
    for (const int64_t n : {int64_t{1}, int64_t{7}, int64_t{1000}}) {
      const int64_t length = planner.MaxLength(n, budget, kMillion);
      if (length > 0) {
        EXPECT_LE(planner.BytesFor(n, length), budget);
      }
      if (length < kMillion) {
        EXPECT_GT(planner.BytesFor(n, length + 1), budget);
      }
    }
  }
  // Four classes take a slab each before anything fits.
  EXPECT_EQ(planner.MaxSequences(1, 4 * planner.slab_bytes() - 1), 0);
  EXPECT_EQ(planner.MaxSequences(1, 4 * planner.slab_bytes()), 8);
  EXPECT_EQ(planner.BytesFor(std::numeric_limits<int32_t>::max(), 1 << 30),
            std::numeric_limits<int64_t>::max());
}

}  // namespace
}  // namespace fathom
