#include "engine/engine_stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/page_format.h"

namespace fathom {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

static_assert(kCacheClassNames.size() == kNumCacheClasses);
static_assert(kCacheClassNames[static_cast<size_t>(CacheClass::kFull)] == "full");
static_assert(kCacheClassNames[static_cast<size_t>(CacheClass::kSwa)] == "swa");
static_assert(kCacheClassNames[static_cast<size_t>(CacheClass::kState4)] == "state4");
static_assert(kCacheClassNames[static_cast<size_t>(CacheClass::kState128)] == "state128");

constexpr std::array<double, 3> kBounds = {1.0, 8.0, 16.0};

TEST(StatsHistogram, ABoundBelongsToTheBucketBelowIt) {
  StatsHistogram<kBounds> histogram;
  for (const double value : {0.0, 1.0, 1.5, 8.0, 16.0, 16.5, 1e9}) histogram.Observe(value);
  EXPECT_THAT(histogram.counts, ElementsAre(2, 2, 1, 2));
  EXPECT_EQ(histogram.count(), 7);
  EXPECT_EQ(histogram.sum, 0.0 + 1.0 + 1.5 + 8.0 + 16.0 + 16.5 + 1e9);
}

TEST(EngineStats, StartsAtZero) {
  const EngineStats stats;
  EXPECT_THAT(stats.prefix_misses, Each(0));
  EXPECT_THAT(stats.step_tokens.counts, Each(0));
  for (const auto& phase : stats.step_seconds) EXPECT_THAT(phase.counts, Each(0));
}

}  // namespace
}  // namespace fathom
