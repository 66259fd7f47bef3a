// BlockPool: which block comes next, and where it lies.
#include "cache/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

namespace fathom {
namespace {

constexpr CacheDTypes kFp8Fp4 = {CacheDType::kFp8, CacheDType::kFp4};
constexpr CacheClass kClasses[] = {CacheClass::kFull, CacheClass::kSwa, CacheClass::kState4,
                                   CacheClass::kState128};

CachePlanner SmallPlanner() {
  return CachePlanner(CacheLayout({{0, 4, 128}, 80, 16, 32, 128}, kFp8Fp4));
}
CachePlanner FlashPlanner() {
  CacheGeometry g = {{0, 0}, 512, 64, 128, 128, 1};
  for (int layer = 2; layer < 43; ++layer) g.ratios.push_back(layer % 2 == 0 ? 4 : 128);
  g.ratios.push_back(0);
  return CachePlanner(CacheLayout(g, kFp8Fp4));
}

std::vector<BlockId> Take(BlockPool& pool, CacheClass cache_class, int64_t n) {
  std::vector<BlockId> blocks;
  for (int64_t i = 0; i < n; ++i) blocks.push_back(pool.Allocate(cache_class));
  return blocks;
}

// A block that only a lease holds.
BlockId Cached(BlockPool& pool, CacheClass cache_class) {
  const BlockId block = pool.Allocate(cache_class);
  pool.Lease(block);
  pool.Unref(block);
  return block;
}

TEST(BlockPool, TakesFromTheFullestSlabThatHasRoom) {
  const CachePlanner planner = SmallPlanner();
  const int64_t per_slab = planner.BlocksPerSlab(CacheClass::kFull);
  ASSERT_GT(per_slab, 4);
  BlockPool pool(planner, 4);
  const std::vector<BlockId> blocks = Take(pool, CacheClass::kFull, 3 * per_slab);
  EXPECT_EQ(pool.num_free_slabs(), 1);
  const auto slab = [&](int64_t i) {
    return pool.SlabOf(blocks[static_cast<size_t>(i * per_slab)]);
  };
  const auto give_back = [&](int64_t i, int64_t n) {
    for (int64_t b = i * per_slab; b < i * per_slab + n; ++b) {
      pool.Unref(blocks[static_cast<size_t>(b)]);
    }
  };
  give_back(0, 3);
  give_back(1, 1);
  give_back(2, 2);
  // One from the slab with one free block, two from that with two, then the emptiest.
  std::vector<int32_t> from;
  for (int i = 0; i < 6; ++i) from.push_back(pool.SlabOf(pool.Allocate(CacheClass::kFull)));
  EXPECT_EQ(from, (std::vector<int32_t>{slab(1), slab(2), slab(2), slab(0), slab(0), slab(0)}));
  EXPECT_EQ(pool.num_free_slabs(), 1) << "no slab is lent while others have room";
}

TEST(BlockPool, AnEmptySlabGoesToWhicheverClassNeedsIt) {
  const CachePlanner planner = SmallPlanner();
  BlockPool pool(planner, 1);
  for (const CacheClass first : kClasses) {
    const std::vector<BlockId> blocks = Take(pool, first, planner.BlocksPerSlab(first));
    EXPECT_EQ(pool.num_free_slabs(), 0);
    EXPECT_EQ(std::set<BlockId>(blocks.begin(), blocks.end()).size(), blocks.size());
    EXPECT_FALSE(std::count(blocks.begin(), blocks.end(), kNoBlock));
    for (const CacheClass other : kClasses) EXPECT_EQ(pool.Allocate(other), kNoBlock);
    for (const BlockId block : blocks) {
      EXPECT_EQ(pool.ClassOfBlock(block), first);
      EXPECT_EQ(pool.num_free_slabs(), 0);
      pool.Unref(block);
    }
    EXPECT_EQ(pool.num_free_slabs(), 1);
    EXPECT_EQ(pool.Use(first).free, 0) << "blocks of slabs that are not lent are nobody's";
  }
}

TEST(BlockPool, AClassWithoutLayersHasNoBlocks) {
  const CachePlanner planner(CacheLayout({{0, 0}, 512, 64, 128, 128}, kFp8Fp4));
  BlockPool pool(planner, 2);
  EXPECT_EQ(pool.Allocate(CacheClass::kFull), kNoBlock);
  EXPECT_EQ(pool.num_free_slabs(), 2);
  EXPECT_NE(pool.Allocate(CacheClass::kSwa), kNoBlock);
}

TEST(BlockPool, CachedBlocksAreOrderedByLastUse) {
  BlockPool pool(SmallPlanner(), 2);
  const std::vector<BlockId> b = Take(pool, CacheClass::kState4, 4);
  for (const BlockId block : b) pool.Lease(block);
  EXPECT_EQ(pool.OldestCached(CacheClass::kState4), kNoBlock) << "in use";
  for (const size_t i : {2U, 0U, 3U, 1U}) pool.Unref(b[i]);
  EXPECT_EQ(pool.Use(CacheClass::kState4).cached, 4);
  EXPECT_EQ(pool.OldestCached(CacheClass::kState4), b[2]);
  EXPECT_EQ(pool.OldestCached(CacheClass::kFull), kNoBlock);
  EXPECT_LT(pool.LastUsed(b[2]), pool.LastUsed(b[0]));
  pool.Touch(b[2]);
  EXPECT_EQ(pool.OldestCached(CacheClass::kState4), b[0]);
  pool.Ref(b[0]);
  EXPECT_EQ(pool.OldestCached(CacheClass::kState4), b[3]);
  pool.Touch(b[0]);  // in use: no effect
  pool.Unref(b[0]);
  pool.Lease(b[3]);
  pool.Unlease(b[3]);
  EXPECT_EQ(pool.OldestCached(CacheClass::kState4), b[3]) << "a second lease is no use";
  std::vector<BlockId> order;
  for (BlockId block; (block = pool.OldestCached(CacheClass::kState4)) != kNoBlock;) {
    order.push_back(block);
    pool.Unlease(block);
  }
  EXPECT_EQ(order, (std::vector<BlockId>{b[3], b[1], b[2], b[0]}));
  EXPECT_EQ(pool.num_free_slabs(), 2);
}

TEST(BlockPool, DrainedSlabsAreOrderedByWhenTheyWereDrained) {
  const CachePlanner planner = SmallPlanner();
  BlockPool pool(planner, 3);
  // A slab each: two classes and, for the second slab of one, a full first one.
  const std::vector<BlockId> first =
      Take(pool, CacheClass::kFull, planner.BlocksPerSlab(CacheClass::kFull));
  const BlockId second = pool.Allocate(CacheClass::kFull);
  const BlockId swa = pool.Allocate(CacheClass::kSwa);
  for (const BlockId b : {first[0], first[1], second, swa}) pool.Lease(b);
  EXPECT_EQ(pool.OldestDrainedSlab(), kNoIndex);
  pool.Unref(swa);
  for (const BlockId b : first) pool.Unref(b);
  pool.Unref(second);
  EXPECT_EQ(pool.OldestDrainedSlab(), pool.SlabOf(swa));
  EXPECT_EQ(pool.OwnerOf(pool.SlabOf(swa)), CacheClass::kSwa);
  EXPECT_LT(pool.DrainedSince(pool.SlabOf(swa)), pool.DrainedSince(pool.SlabOf(second)));
  pool.Touch(swa);
  EXPECT_EQ(pool.OldestDrainedSlab(), pool.SlabOf(first[0]));
  pool.Ref(first[1]);
  EXPECT_EQ(pool.OldestDrainedSlab(), pool.SlabOf(second));
  EXPECT_EQ(pool.InUseIn(pool.SlabOf(first[0])), 1);
  EXPECT_EQ(pool.CachedBlockIn(pool.SlabOf(second)), second);
  pool.Unlease(second);
  EXPECT_EQ(pool.OldestDrainedSlab(), pool.SlabOf(swa));
  EXPECT_EQ(pool.num_free_slabs(), 1);
  pool.Unref(first[1]);
  pool.Unlease(swa);
  EXPECT_EQ(pool.OldestDrainedSlab(), pool.SlabOf(first[0]));
}

// Every block inside its slab, none over another, numbers of 31 bits and back.
void CheckOffsets(const CachePlanner& planner, int64_t num_slabs, int64_t unit_bytes) {
  BlockPool pool(planner, num_slabs);
  EXPECT_EQ(pool.memory_bytes(), num_slabs * planner.slab_bytes());
  EXPECT_EQ(pool.unit_bytes(), unit_bytes);
  std::vector<std::pair<int64_t, int64_t>> spans;
  int64_t highest = 0;
  for (int64_t i = 0; i < 400; ++i) {
    const CacheClass c = kClasses[i % 4];
    const BlockId block = pool.Allocate(c);
    ASSERT_NE(block, kNoBlock);
    const int32_t number = pool.Number(block);
    ASSERT_GE(number, 0);
    EXPECT_EQ(pool.FromNumber(number), block);
    const int64_t begin = number * pool.unit_bytes();
    EXPECT_EQ(begin % kBlockAlignment, 0);
    EXPECT_EQ(begin / planner.slab_bytes(), pool.SlabOf(block));
    spans.emplace_back(begin, begin + planner.layout().BlockBytes(c));
    EXPECT_EQ((spans.back().second - 1) / planner.slab_bytes(), pool.SlabOf(block));
    highest = std::max(highest, spans.back().second);
  }
  std::sort(spans.begin(), spans.end());
  for (size_t i = 1; i < spans.size(); ++i) EXPECT_LE(spans[i - 1].second, spans[i].first);
  // The first blocks lent are the highest, so that every day meets offsets beyond 32 bits.
  EXPECT_GT(highest, pool.memory_bytes() - planner.slab_bytes());
}

TEST(BlockPool, OffsetsHave64Bits) {
  const CachePlanner flash = FlashPlanner();
  const auto slabs = [&](int64_t gib) { return (gib << 30) / flash.slab_bytes(); };
  CheckOffsets(flash, slabs(1), 64);
  CheckOffsets(flash, slabs(6), 64);
  CheckOffsets(flash, slabs(127), 64);
  CheckOffsets(flash, slabs(200), 128);
  CheckOffsets(flash, slabs(600), 512);
  const CachePlanner small = SmallPlanner();
  CheckOffsets(small, (int64_t{5} << 30) / small.slab_bytes(), 64);
}

TEST(BlockPool, MemoryThatTablesCannotAddressIsKnownBefore) {
  for (const CachePlanner& planner : {FlashPlanner(), SmallPlanner()}) {
    const int64_t most = BlockPool::MaxSlabs(planner);
    EXPECT_GT(most * planner.slab_bytes(), int64_t{120} << 30);
    EXPECT_LE(most, int64_t{1} << 31);
  }
  EXPECT_GT(BlockPool::MaxSlabs(FlashPlanner()) * FlashPlanner().slab_bytes(), int64_t{1} << 40);
}

TEST(BlockPoolDeathTest, ReferencesAndLeasesAreReturnedOnce) {
  BlockPool pool(SmallPlanner(), 1);
  const BlockId block = pool.Allocate(CacheClass::kFull);
  EXPECT_DEATH(pool.Unlease(block), "lease returned twice");
  pool.Unref(block);
  EXPECT_DEATH(pool.Unref(block), "reference returned twice");
  EXPECT_DEATH(pool.Ref(block), "no content");
  EXPECT_DEATH(pool.Lease(block), "no content");
  const BlockId cached = Cached(pool, CacheClass::kSwa);
  pool.Ref(cached);
  EXPECT_EQ(pool.refs(cached), 1);
}

}  // namespace
}  // namespace fathom
