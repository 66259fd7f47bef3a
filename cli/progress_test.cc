#include "cli/progress.h"

#include <gtest/gtest.h>

namespace fathom::cli {
namespace {

using Seconds = std::chrono::duration<double>;

TEST(ProgressLine, ShowsShareRateAndTimeLeft) {
  EXPECT_EQ(ProgressLine("writing", 1'000'000'000, 4'000'000'000, Seconds(2)),
            "writing  [#####---------------]  25%  1.00 of 4.00 GB  500 MB/s  0:06 left");
  EXPECT_EQ(ProgressLine("x", 50'000'000, 100'000'000, Seconds(100)),
            "x  [##########----------]  50%  50 of 100 MB  0 MB/s  1:40 left");
  EXPECT_EQ(ProgressLine("x", 1'000'000, 8'001'000'000, Seconds(1)),
            "x  [--------------------]   0%  0.00 of 8.00 GB  1 MB/s  2:13:20 left");
}

TEST(ProgressLine, HasNoRateBeforeTheFirstByteAndEndsFull) {
  EXPECT_EQ(ProgressLine("x", 0, 2'000'000, Seconds(3)),
            "x  [--------------------]   0%  0 of 2 MB");
  EXPECT_EQ(ProgressLine("x", 2'000'000, 2'000'000, Seconds(2)),
            "x  [####################] 100%  2 of 2 MB  1 MB/s  0:00 left");
  EXPECT_EQ(ProgressLine("x", 0, 0, Seconds(0)), "x  [####################] 100%  0 of 0 MB");
}

}  // namespace
}  // namespace fathom::cli
