#include "cache/sequence_cache.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace fathom {
namespace {

CacheLayout SmallLayout() { return {{{0, 4, 128}, 128, 64, 128, 16}, Numerics::kOfficial}; }

TEST(SequenceCache, KeepsWindowsAndGivesBackWhatLiesBehind) {
  const CacheLayout layout = SmallLayout();
  auto cache = SequenceCache::Create(layout, 5000, 100);
  ASSERT_TRUE(cache.ok()) << cache.status().ToString();
  std::mt19937 random(7);
  Position at = 0;
  while (at < 5000) {
    const Position end = std::min<Position>(5000, at + 1 + static_cast<int>(random() % 100));
    ASSERT_TRUE((*cache)->BeginStep(at, end).ok());
    for (int c = 0; c < kNumCacheClasses; ++c) {
      const auto cache_class = static_cast<CacheClass>(c);
      const BlockTable table = (*cache)->Table(cache_class);
      const int per_block = CacheLayout::PositionsPerBlock(cache_class);
      const int window = layout.WindowPositions(cache_class);
      const Position first = window == 0 ? 0 : std::max(0, at - window + 1);
      std::set<int32_t> ids;
      for (int64_t block = 0; block < table.num_blocks; ++block) {
        const bool needed = block >= first / per_block && block <= (end - 1) / per_block;
        EXPECT_EQ(table.blocks[block] != kNoBlock, needed) << block;
        if (needed) {
          EXPECT_TRUE(ids.insert(table.blocks[block]).second) << "one owner per block";
        }
      }
      EXPECT_EQ((*cache)->NumBlocks(cache_class), static_cast<int64_t>(ids.size()));
    }
    at = end;
  }
  EXPECT_EQ((*cache)->length(), 5000);
  EXPECT_EQ((*cache)->BeginStep(5000, 5001).code(), StatusCode::kOutOfMemory);
  (*cache)->Clear();
  for (int c = 0; c < kNumCacheClasses; ++c) {
    EXPECT_EQ((*cache)->NumBlocks(static_cast<CacheClass>(c)), 0);
  }
  EXPECT_TRUE((*cache)->BeginStep(0, 100).ok());
}

TEST(SequenceCache, RefusesStepsThatDoNotFollow) {
  auto cache = SequenceCache::Create(SmallLayout(), 1000, 10);
  ASSERT_TRUE(cache.ok());
  EXPECT_EQ((*cache)->BeginStep(1, 2).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ((*cache)->BeginStep(0, 11).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ((*cache)->BeginStep(0, 0).code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(SequenceCache::Create(SmallLayout(), 0, 10).ok());
}

}  // namespace
}  // namespace fathom
