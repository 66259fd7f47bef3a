#include "server/rate_limit.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

using namespace std::chrono_literals;

const RateLimit::Clock::time_point kStart{1h};

TEST(RateLimit, AMinutesRequestsMayComeAtOnceThenOneAsTimePasses) {
  RateLimit limit(1, 6);  // one every 10 s
  for (int i = 0; i < 6; ++i) EXPECT_EQ(limit.Refuse(0, kStart), std::nullopt) << i;
  EXPECT_EQ(limit.Refuse(0, kStart), 10);
  EXPECT_EQ(limit.Refuse(0, kStart + 4500ms), 6);
  EXPECT_EQ(limit.Refuse(0, kStart + 10'001ms), std::nullopt);
  EXPECT_EQ(limit.Refuse(0, kStart + 10'001ms), 10);
  // However long nothing came, no more than a minute's are saved.
  for (int i = 0; i < 6; ++i) EXPECT_EQ(limit.Refuse(0, kStart + 24h), std::nullopt) << i;
  EXPECT_EQ(limit.Refuse(0, kStart + 24h), 10);
}

TEST(RateLimit, KeysDoNotTakeEachOthersShare) {
  RateLimit limit(2, 1);
  EXPECT_EQ(limit.Refuse(0, kStart), std::nullopt);
  EXPECT_EQ(limit.Refuse(0, kStart), 60);
  EXPECT_EQ(limit.Refuse(1, kStart), std::nullopt);
}

TEST(RateLimit, AWaitIsAtLeastASecond) {
  RateLimit limit(1, 6000);
  for (int i = 0; i < 6000; ++i) ASSERT_EQ(limit.Refuse(0, kStart), std::nullopt);
  EXPECT_EQ(limit.Refuse(0, kStart), 1);
}

TEST(RateLimit, TimeThatStepsBackGivesAndTakesNothing) {
  RateLimit limit(1, 1);
  EXPECT_EQ(limit.Refuse(0, kStart), std::nullopt);
  EXPECT_EQ(limit.Refuse(0, kStart - 1h), 60);
  EXPECT_EQ(limit.Refuse(0, kStart), 60);
}

TEST(RateLimit, ZeroIsNoLimit) {
  RateLimit limit(1, 0);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(limit.Refuse(0, kStart), std::nullopt);
}

}  // namespace
}  // namespace fathom
