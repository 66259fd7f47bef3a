// The published byte sizes: FlashMLA's 584-byte entries and fathom's compact page blocks.
#include "cache/cache_layout.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

CacheGeometry Geometry(std::vector<int> ratios, int mtp = 0) {
  for (int i = 0; i < mtp; ++i) ratios.push_back(0);
  return {std::move(ratios), 512, 64, 128, 128, mtp};
}
constexpr CacheDTypes kFp8Fp8 = {CacheDType::kFp8, CacheDType::kFp8};
constexpr CacheDTypes kBf16Bf16 = {CacheDType::kBf16, CacheDType::kBf16};

std::vector<int> FlashRatios() {
  std::vector<int> ratios = {0, 0};
  for (int layer = 2; layer < 43; ++layer) ratios.push_back(layer % 2 == 0 ? 4 : 128);
  return ratios;
}

std::vector<int> ProRatios() {
  std::vector<int> ratios = {128, 128};
  for (int layer = 2; layer < 61; ++layer) ratios.push_back(layer % 2 == 0 ? 4 : 128);
  return ratios;
}

TEST(CacheLayout, PagesHaveThePublishedSizes) {
  const CacheLayout layout(Geometry({0, 4, 128}), Numerics::kOfficial);
  EXPECT_EQ(layout.Format(CacheKind::kSwaKv).entry_bytes(), 584);
  EXPECT_EQ(layout.Format(CacheKind::kC4IndexKeys).entry_bytes(), 68);
  EXPECT_EQ(layout.Format(CacheKind::kC4State).entry_bytes(), 8192);
  EXPECT_EQ(layout.Format(CacheKind::kC128State).entry_bytes(), 4096);
  EXPECT_EQ(layout.Format(CacheKind::kC4IndexState).entry_bytes(), 2048);
  EXPECT_EQ(layout.PageBytes(CacheKind::kSwaKv), 37440);
  EXPECT_EQ(layout.PageBytes(CacheKind::kC4Kv), 37440);
  EXPECT_EQ(layout.PageBytes(CacheKind::kC128Kv), 1728);
  EXPECT_EQ(layout.PageBytes(CacheKind::kC4IndexKeys), 4608);
  EXPECT_EQ(layout.PageBytes(CacheKind::kC4State), 32832);
  EXPECT_EQ(layout.PageBytes(CacheKind::kC128State), 32832);
  EXPECT_EQ(layout.PageBytes(CacheKind::kC4IndexState), 8640);
}

TEST(CacheLayout, PageBlocksOfFlashAndPro) {
  const CacheLayout flash(Geometry(FlashRatios()), Numerics::kOfficial);
  EXPECT_EQ(flash.BlockBytes(CacheClass::kFull), 917568);
  EXPECT_EQ(flash.BlockBytes(CacheClass::kSwa), 1609920);
  EXPECT_EQ(flash.BlockBytes(CacheClass::kState4), 870912);
  EXPECT_EQ(flash.BlockBytes(CacheClass::kState128), 656640);
  const CacheLayout pro(Geometry(ProRatios()), Numerics::kOfficial);
  EXPECT_EQ(pro.BlockBytes(CacheClass::kFull), 1315008);
  EXPECT_EQ(pro.BlockBytes(CacheClass::kSwa), 2283840);
  EXPECT_EQ(pro.BlockBytes(CacheClass::kState4), 1244160);
  EXPECT_EQ(pro.BlockBytes(CacheClass::kState128), 1017792);
}

TEST(CacheLayout, Fp8IndexKeysAndTheMtpLayersWindow) {
  const CacheLayout flash(Geometry(FlashRatios(), 1), kFp8Fp8);
  EXPECT_EQ(flash.Format(CacheKind::kC4IndexKeys).entry_bytes(), 132);
  EXPECT_EQ(flash.Format(CacheKind::kC4IndexKeys).scale_offset(), 64 * 128);
  EXPECT_EQ(flash.PageBytes(CacheKind::kC4IndexKeys), 8640);
  EXPECT_EQ(flash.BlockBytes(CacheClass::kFull), 1002240);
  EXPECT_EQ(flash.BlockBytes(CacheClass::kSwa), 1647360);
  EXPECT_EQ(flash.BlockBytes(CacheClass::kState4), 870912);
  EXPECT_EQ(flash.BlockBytes(CacheClass::kState128), 656640);
  EXPECT_EQ(flash.NumLayers(CacheKind::kSwaKv), 44);
  EXPECT_EQ(flash.NumLayers(CacheKind::kC4Kv), 21);
  EXPECT_EQ(flash.NumLayers(CacheKind::kC128State), 20);
  const CacheLayout pro(Geometry(ProRatios(), 1), kFp8Fp8);
  EXPECT_EQ(pro.BlockBytes(CacheClass::kFull), 1435968);
  EXPECT_EQ(pro.BlockBytes(CacheClass::kSwa), 2321280);
}

TEST(CacheLayout, Bf16PagesAreRowsWithoutPadding) {
  const CacheLayout layout(Geometry({0, 4, 128}), kBf16Bf16);
  EXPECT_EQ(layout.Format(CacheKind::kSwaKv).entry_bytes(), 1024);
  EXPECT_EQ(layout.Format(CacheKind::kC4IndexKeys).entry_bytes(), 256);
  EXPECT_EQ(layout.PageBytes(CacheKind::kSwaKv), 65536);
  EXPECT_EQ(layout.PageBytes(CacheKind::kC4Kv), 65536);
  EXPECT_EQ(layout.PageBytes(CacheKind::kC128Kv), 2048);
  EXPECT_EQ(layout.PageBytes(CacheKind::kC4IndexKeys), 16384);
  EXPECT_EQ(layout.PageBytes(CacheKind::kC4State), 32768);
  EXPECT_EQ(layout.PageBytes(CacheKind::kC128State), 32768);
  EXPECT_EQ(layout.PageBytes(CacheKind::kC4IndexState), 8192);
}

TEST(CacheLayout, FormatsSuitWhatTheyHold) {
  for (const CacheDType attention : {CacheDType::kF32, CacheDType::kBf16, CacheDType::kFp8}) {
    for (const CacheDType indexer :
         {CacheDType::kF32, CacheDType::kBf16, CacheDType::kFp8, CacheDType::kFp4}) {
      const CacheLayout layout(Geometry({4, 128}), CacheDTypes{attention, indexer});
      EXPECT_TRUE(layout.Format(CacheKind::kSwaKv).HoldsKv());
      EXPECT_TRUE(layout.Format(CacheKind::kC4Kv).HoldsKv());
      EXPECT_TRUE(layout.Format(CacheKind::kC128Kv).HoldsKv());
      EXPECT_TRUE(layout.Format(CacheKind::kC4IndexKeys).HoldsIndexKeys());
      EXPECT_EQ(layout.Format(CacheKind::kC4State).encoding, EntryEncoding::kF32);
      EXPECT_EQ(layout.PageBytes(CacheKind::kC4State) % 576 == 0, attention == CacheDType::kFp8);
    }
  }
}

TEST(CacheDTypes, NamesOfTheFlags) {
  EXPECT_EQ(*ParseAttentionCacheDType("auto"), CacheDType::kFp8);
  EXPECT_EQ(*ParseAttentionCacheDType("fp8_ds_mla"), CacheDType::kFp8);
  EXPECT_EQ(*ParseAttentionCacheDType("bfloat16"), CacheDType::kBf16);
  EXPECT_EQ(*ParseIndexerCacheDType("auto"), CacheDType::kFp4);
  EXPECT_EQ(*ParseIndexerCacheDType("fp8"), CacheDType::kFp8);
  for (const CacheDType dtype :
       {CacheDType::kF32, CacheDType::kBf16, CacheDType::kFp8, CacheDType::kFp4}) {
    EXPECT_EQ(*ParseIndexerCacheDType(CacheDTypeName(dtype)), dtype);
  }
  for (const char* refused : {"fp4", "fp8_e5m2", "int8", "nvfp4", ""}) {
    EXPECT_FALSE(ParseAttentionCacheDType(refused).ok()) << refused;
  }
  EXPECT_FALSE(ParseIndexerCacheDType("nvfp4").ok());
}

TEST(CacheDTypes, ExactModeIsFp32AndOfficialModeIsNot) {
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
    EXPECT_TRUE(CheckCacheDTypes(DefaultCacheDTypes(numerics), numerics).ok());
  }
  EXPECT_FALSE(CheckCacheDTypes(kFp8Fp8, Numerics::kExact).ok());
  EXPECT_FALSE(CheckCacheDTypes({CacheDType::kF32, CacheDType::kF32}, Numerics::kOfficial).ok());
  EXPECT_FALSE(CheckCacheDTypes({CacheDType::kF32, CacheDType::kFp8}, Numerics::kExact).ok());
  EXPECT_FALSE(CheckCacheDTypes({CacheDType::kFp4, CacheDType::kFp4}, Numerics::kOfficial).ok());
}

TEST(CacheLayout, ExactModeStoresFloatsWithoutPadding) {
  const CacheLayout layout(Geometry({4}), Numerics::kExact);
  EXPECT_EQ(layout.Format(CacheKind::kC4Kv).entry_bytes(), 2048);
  EXPECT_EQ(layout.PageBytes(CacheKind::kC4Kv), 64 * 2048);
  EXPECT_EQ(layout.PageBytes(CacheKind::kC4IndexKeys), 64 * 512);
}

TEST(CacheLayout, PagesOfABlockDoNotOverlap) {
  const CacheLayout layout(Geometry(FlashRatios()), Numerics::kOfficial);
  std::vector<std::byte> memory(1);
  const std::vector<LayerPages> views = layout.Views(memory.data(), kBlockAlignment);
  for (int c = 0; c < kNumCacheClasses; ++c) {
    std::vector<std::pair<int64_t, int64_t>> spans;
    for (const LayerPages& layer : views) {
      for (int k = 0; k < kNumCacheKinds; ++k) {
        const PageView& view = layer[static_cast<size_t>(k)];
        if (view.empty() || ClassOf(static_cast<CacheKind>(k)) != static_cast<CacheClass>(c))
          continue;
        EXPECT_EQ(view.block_stride, kBlockAlignment);
        const int64_t offset = view.base - memory.data();
        spans.emplace_back(offset, offset + layout.PageBytes(static_cast<CacheKind>(k)));
      }
    }
    std::sort(spans.begin(), spans.end());
    for (size_t i = 0; i + 1 < spans.size(); ++i) EXPECT_LE(spans[i].second, spans[i + 1].first);
    ASSERT_FALSE(spans.empty());
    EXPECT_EQ(spans.back().second, layout.BlockBytes(static_cast<CacheClass>(c)));
  }
}

}  // namespace
}  // namespace fathom
