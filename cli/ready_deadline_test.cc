#include "cli/ready_deadline.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace fathom::cli {
namespace {

using std::chrono::milliseconds;

TEST(ReadyDeadlineDeathTest, EndsAProcessThatIsNotReadyInTime) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const ReadyDeadline deadline(milliseconds(1));
        while (true) ::pause();
      },
      testing::ExitedWithCode(1), "not ready after");
}

TEST(ReadyDeadline, LetsGoOfWhatIsReady) {
  { const ReadyDeadline deadline(std::chrono::hours(1)); }
  { const ReadyDeadline none(milliseconds(0)); }
}

}  // namespace
}  // namespace fathom::cli
