// Which experts leave the device: never more or less than asked for, the least used ones, in an
// order that nothing but the counts decides.
#include "model/expert_placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace fathom {
namespace {

int64_t OnHost(const ExpertPlacement& placement, int layers, int experts) {
  int64_t n = 0;
  for (int layer = 0; layer < layers; ++layer) {
    for (int e = 0; e < experts; ++e) n += placement.on_host(layer, e) ? 1 : 0;
  }
  return n;
}

TEST(ExpertPlacement, WithoutCountsEveryLayerLosesAsMany) {
  const ExpertUse use(5, 16, 2);
  for (int64_t n = 0; n <= 80; ++n) {
    const ExpertPlacement placement(use, n);
    EXPECT_EQ(placement.num_on_host(), n);
    EXPECT_EQ(OnHost(placement, 5, 16), n);
    for (int layer = 0; layer < 5; ++layer) {
      int64_t of_layer = 0;
      for (int e = 0; e < 16; ++e) of_layer += placement.on_host(layer, e) ? 1 : 0;
      EXPECT_GE(of_layer, n / 5);
      EXPECT_LE(of_layer, (n + 4) / 5);
    }
  }
}

TEST(ExpertPlacement, TheDefaultHasNoneOutside) {
  const ExpertPlacement placement;
  EXPECT_EQ(placement.num_on_host(), 0);
  EXPECT_FALSE(placement.on_host(3, 7));
}

TEST(ExpertPlacement, NumbersOutOfRangeAreTheNearest) {
  const ExpertUse use(2, 4, 1);
  EXPECT_EQ(ExpertPlacement(use, -3).num_on_host(), 0);
  EXPECT_EQ(OnHost(ExpertPlacement(use, 100), 2, 4), 8);
}

// Properties over random counts, many of them equal.
TEST(ExpertPlacement, TheLeastUsedGoFirstAndMoreContainsLess) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    const int layers = 1 + static_cast<int>(random() % 6);
    const int experts = 1 + static_cast<int>(random() % 24);
    ExpertUse use(layers, experts, 1);
    const unsigned most = round % 3 == 0 ? 3 : 1000;
    for (int layer = 0; layer < layers; ++layer) {
      for (int e = 0; e < experts; ++e) use.Set(layer, e, static_cast<int64_t>(random() % most));
    }
    const int64_t total = int64_t{layers} * experts;
    const auto n = static_cast<int64_t>(random() % static_cast<uint64_t>(total + 1));
    const ExpertPlacement less(use, n), again(use, n), more(use, std::min(total, n + 1));
    int64_t most_used_outside = -1, least_used_inside = INT64_MAX;
    for (int layer = 0; layer < layers; ++layer) {
      for (int e = 0; e < experts; ++e) {
        EXPECT_EQ(less.on_host(layer, e), again.on_host(layer, e));
        EXPECT_TRUE(!less.on_host(layer, e) || more.on_host(layer, e));
        const int64_t count = use.count(layer, e);
        if (less.on_host(layer, e)) {
          most_used_outside = std::max(most_used_outside, count);
        } else {
          least_used_inside = std::min(least_used_inside, count);
        }
      }
    }
    EXPECT_LE(most_used_outside, least_used_inside);
    EXPECT_EQ(OnHost(less, layers, experts), n);
  }
}

TEST(ExpertUse, CountsWhatRowsChoseAndNoIdsThatAreNone) {
  ExpertUse use(2, 3, 2);
  use.Add(1, std::vector<int32_t>{0, 2, 2, -1, 3});
  EXPECT_EQ(use.count(1, 0), 1);
  EXPECT_EQ(use.count(1, 1), 0);
  EXPECT_EQ(use.count(1, 2), 2);
  EXPECT_EQ(use.layer(0)[2], 0);
}

}  // namespace
}  // namespace fathom
