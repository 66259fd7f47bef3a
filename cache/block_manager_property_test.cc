// Random histories of a BlockManager: see manager_simulation.h. FATHOM_PROPERTY_OPS=n runs n
// operations per geometry instead of the usual number.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "cache/manager_simulation.h"
#include "cache/shrink.h"

namespace fathom {
namespace {

constexpr CacheDTypes kFp8Fp4 = {CacheDType::kFp8, CacheDType::kFp4};
constexpr CacheDTypes kF32 = {CacheDType::kF32, CacheDType::kF32};
constexpr size_t kOpsPerHistory = 1500;

size_t NumHistories() {
  const char* text = std::getenv("FATHOM_PROPERTY_OPS");
#ifdef __SANITIZE_ADDRESS__
  constexpr size_t kUsual = 15'000;  // each is some ten times slower
#else
  constexpr size_t kUsual = 36'000;
#endif
  const size_t num_ops = text == nullptr ? kUsual : std::strtoull(text, nullptr, 10);
  return (num_ops + kOpsPerHistory - 1) / kOpsPerHistory;
}

// Runs the history in a process of its own, so that a failing FATHOM_CHECK is a failure that can
// be shrunk.
SimulationResult SimulateApart(const SimulationConfig& config, const std::vector<Op>& ops) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const SimulationResult result = Simulate(config, ops);
    const std::string text = result.failure.value_or("");
    const bool written =
        write(ends[1], &result.counts, sizeof(result.counts)) == sizeof(result.counts) &&
        write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
    _exit(written ? 0 : 1);
  }
  close(ends[1]);
  SimulationResult result;
  std::string text(4096, ' ');
  const bool ended = read(ends[0], &result.counts, sizeof(result.counts)) == sizeof(result.counts);
  const ssize_t size = ended ? read(ends[0], text.data(), text.size()) : 0;
  close(ends[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  if (status != 0 || !ended) {
    result.failure = "the process ended early";
  } else if (size > 0) {
    result.failure = text.substr(0, static_cast<size_t>(size));
  }
  return result;
}

SimulationCounts RunHistories(const SimulationConfig& config, uint32_t first_seed) {
  SimulationCounts sum;
  for (uint32_t i = 0; i < NumHistories(); ++i) {
    const std::vector<Op> ops = RandomOps(first_seed + i, kOpsPerHistory);
    const SimulationResult result = SimulateApart(config, ops);
    if (result.failure) {
      const std::vector<Op> few = Shrink<Op>(
          ops, [&](const auto& part) { return SimulateApart(config, part).failure.has_value(); });
      ADD_FAILURE() << "seed " << first_seed + i << ": " << *result.failure
                    << "\nshorter: " << *SimulateApart(config, few).failure << "\n"
                    << ToString(few);
      return sum;
    }
    sum.steps += result.counts.steps;
    sum.hits += result.counts.hits;
    sum.unaligned_hits += result.counts.unaligned_hits;
    sum.copies += result.counts.copies;
    sum.evictions += result.counts.evictions;
    sum.refusals += result.counts.refusals;
  }
  std::printf("%zu histories: %lld steps, %lld hits (%lld unaligned), %lld copies, ",
              NumHistories(), static_cast<long long>(sum.steps), static_cast<long long>(sum.hits),
              static_cast<long long>(sum.unaligned_hits), static_cast<long long>(sum.copies));
  std::printf("%lld evictions, %lld refusals\n", static_cast<long long>(sum.evictions),
              static_cast<long long>(sum.refusals));
  return sum;
}

SimulationConfig AllClasses(int64_t num_slabs) {
  return {{{0, 4, 128}, 80, 16, 32, 128}, kFp8Fp4, num_slabs};
}

void ExpectBusy(const SimulationCounts& sum) {
  EXPECT_GT(sum.hits, 100);
  EXPECT_GT(sum.unaligned_hits, 50);
  EXPECT_GT(sum.copies, 100);
  EXPECT_GT(sum.evictions, 100);
}

TEST(BlockManagerProperty, AmpleMemoryReusesEverything) {
  SimulationConfig config = AllClasses(1500);
  config.ample = true;
  config.check_every = 50;
  const SimulationCounts sum = RunHistories(config, 1000);
  EXPECT_GT(sum.hits, 100);
  EXPECT_EQ(sum.evictions, 0);
  EXPECT_EQ(sum.refusals, 0);
}
TEST(BlockManagerProperty, FewSlabs) { ExpectBusy(RunHistories(AllClasses(9), 2000)); }
TEST(BlockManagerProperty, SomeSlabs) { ExpectBusy(RunHistories(AllClasses(24), 3000)); }
TEST(BlockManagerProperty, GeometryOfTheBundledModel) {
  ExpectBusy(
      RunHistories({{{0, 0, 4, 128, 4, 128, 4, 128, 0}, 128, 64, 128, 64}, kFp8Fp4, 9}, 4000));
}
TEST(BlockManagerProperty, OnlyRatio4AndASmallWindow) {
  ExpectBusy(RunHistories({{{4, 4}, 80, 16, 32, 8}, kF32, 5}, 5000));
}
TEST(BlockManagerProperty, OnlyRatio128) {
  ExpectBusy(RunHistories({{{128, 0}, 512, 64, 128, 128}, kF32, 8}, 6000));
}
TEST(BlockManagerProperty, WindowOnlyWhichCachesNothing) {
  const SimulationCounts sum = RunHistories({{{0, 0, 0}, 512, 64, 128, 128}, kFp8Fp4, 2}, 7000);
  EXPECT_EQ(sum.hits, 0);
  EXPECT_GT(sum.copies, 100);
}
TEST(BlockManagerProperty, AWindowOfOnePosition) {
  ExpectBusy(RunHistories({{{0, 4, 128}, 80, 16, 32, 1}, kF32, 9}, 8000));
  EXPECT_GT(RunHistories({{{0, 0}, 512, 64, 128, 1}, kFp8Fp4, 2}, 9000).steps, 1000);
}

// ---- the means themselves ----------------------------------------------------------------------

TEST(Shrink, LeavesOutWhatTheFailureDoesNotNeed) {
  const std::vector<Op> ops = RandomOps(1, 1000);
  int runs = 0;
  // Fails where a fork is followed by two truncations.
  const auto fails = [&](const std::vector<Op>& part) {
    ++runs;
    int found = 0;
    for (const Op& op : part) {
      if (found == 0 ? op.kind == OpKind::kFork : op.kind == OpKind::kTruncate) ++found;
    }
    return found >= 3;
  };
  ASSERT_TRUE(fails(ops));
  const std::vector<Op> few = Shrink<Op>(ops, fails);
  ASSERT_EQ(few.size(), 3U);
  EXPECT_EQ(few[0].kind, OpKind::kFork);
  EXPECT_EQ(few[1].kind, OpKind::kTruncate);
  EXPECT_LT(runs, 200);
  EXPECT_NE(ToString(few).find("{OpKind::kFork, "), std::string::npos);
}

// A backend that does something wrong is found, by few operations.
TEST(Shrink, FindsShortHistoriesOfABrokenBackend) {
  for (const Sabotage sabotage :
       {Sabotage::kNoCopies, Sabotage::kNoStates, Sabotage::kWrongToken}) {
    SimulationConfig config = AllClasses(24);
    config.sabotage = sabotage;
    const std::vector<Op> ops = RandomOps(5, kOpsPerHistory);
    const auto fails = [&](const std::vector<Op>& part) {
      return Simulate(config, part).failure.has_value();
    };
    ASSERT_TRUE(fails(ops));
    const std::vector<Op> few = Shrink<Op>(ops, fails);
    EXPECT_TRUE(fails(few));
    EXPECT_LE(few.size(), 8U) << ToString(few);
    config.sabotage = Sabotage::kNone;
    EXPECT_FALSE(fails(few));
  }
}

}  // namespace
}  // namespace fathom
