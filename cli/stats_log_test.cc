#include "cli/stats_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log_fields.h"

namespace fathom::cli {
namespace {

std::string Words(const std::optional<std::string>& message) {
  return message ? std::string(SplitLogMessage(*message).words) : "";
}

TEST(StatsLine, SaysWhatHappenedSinceTheLastOne) {
  StatsLine line;
  EngineStats stats;
  stats.num_running = 2;
  stats.num_waiting = 1;
  stats.prompt_tokens_computed = 100;
  stats.prompt_tokens_cached = 20;
  stats.generation_tokens = 30;
  stats.prefix_cache_queries = 80;
  stats.prefix_cache_hits = 20;
  stats.kv_cache_usage = 0.125;
  EXPECT_EQ(Words(line.Next(stats, 10.0)),
            "Avg prompt throughput: 12.0 tokens/s, Avg generation throughput: 3.0 tokens/s, "
            "Running: 2 reqs, Waiting: 1 reqs, KV cache usage: 12.5%, Prefix cache hit rate: "
            "25.0%");
  stats.generation_tokens = 35;
  const auto next = line.Next(stats, 1.0);
  EXPECT_THAT(Words(next), testing::HasSubstr("Avg prompt throughput: 0.0 tokens/s, Avg generation "
                                              "throughput: 5.0 tokens/s"));
  EXPECT_THAT(Words(next), testing::Not(testing::HasSubstr("hit rate")));
}

TEST(StatsLine, IsSilentWhileNothingHappens) {
  StatsLine line;
  EngineStats stats;
  EXPECT_EQ(line.Next(stats, 10.0), std::nullopt);
  stats.generation_tokens = 1;
  EXPECT_NE(line.Next(stats, 10.0), std::nullopt);  // the last line of what has ended
  EXPECT_EQ(line.Next(stats, 10.0), std::nullopt);
  stats.num_waiting = 1;  // stuck is not nothing
  EXPECT_NE(line.Next(stats, 10.0), std::nullopt);
}

TEST(StatsLine, HasItsNumbersForPrograms) {
  StatsLine line;
  EngineStats stats;
  stats.generation_tokens = 30;
  const auto message = line.Next(stats, 10.0);
  ASSERT_TRUE(message);
  const LogMessage split = SplitLogMessage(*message);
  EXPECT_TRUE(split.for_programs);
  ASSERT_EQ(split.fields.size(), 5u);
  EXPECT_EQ(split.fields[1].key, "generation_tokens_per_s");
  EXPECT_EQ(split.fields[1].value, "3");
}

}  // namespace
}  // namespace fathom::cli
