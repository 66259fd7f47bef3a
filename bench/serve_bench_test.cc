#include "bench/serve_bench.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

namespace fathom::bench {
namespace {

using Json = nlohmann::json;

TEST(ServeReport, HasRatesAndShares) {
  ServeBenchOptions options;
  options.load.url = {"h", "8000", "/v1x"};
  options.load.max_concurrency = 4;
  options.workload.model = "m";
  options.workload_name = "random";
  load::LoadResult result;
  load::Outcome outcome;
  outcome.status = 200;
  outcome.usage = {true, 100, 60, 50};
  outcome.num_chunks = 50;
  outcome.first_chunk = outcome.start + std::chrono::milliseconds(10);
  outcome.last_chunk = outcome.end = outcome.start + std::chrono::milliseconds(108);
  result.Add(outcome);
  result.Add(outcome);
  outcome.kind = load::Outcome::Kind::kStatus;
  outcome.status = 503;
  outcome.message = "full \xff";
  result.Add(outcome);
  result.duration = std::chrono::seconds(2);

  const Json json = Json::parse(ReportJson(ServeReport(options, result, 0.002)), nullptr, false);
  EXPECT_EQ(json["bench"], "serve");
  EXPECT_EQ(json["conditions"]["base_url"], "http://h:8000/v1x");
  EXPECT_EQ(json["conditions"]["concurrency"], 4);
  const Json& summary = json["summary"];
  EXPECT_EQ(summary["requests_ok"], 2);
  EXPECT_EQ(summary["requests_failed"], 1);
  EXPECT_EQ(summary["requests_per_s"], 1.0);
  EXPECT_EQ(summary["output_tokens_per_s"], 50.0);
  EXPECT_EQ(summary["total_tokens_per_s"], 150.0);
  EXPECT_EQ(summary["prefix_hit_rate"], 0.6);
  EXPECT_EQ(summary["server_cpu_us_per_token"], 20.0);
  EXPECT_EQ(json["tables"]["errors"][0]["kind"], "status 503");
  EXPECT_EQ(json["tables"]["answers"].size(), 2U);
  const Json& times = json["tables"]["times of requests"];
  ASSERT_EQ(times.size(), 4U);
  EXPECT_EQ(times[0]["mean_ms"], 10.0);
  EXPECT_EQ(times[2]["mean_ms"], 2.0);
  EXPECT_EQ(times[3]["max_ms"], 108.0);
}

TEST(ServeReport, OfNothingIsZero) {
  const Json json = Json::parse(ReportJson(ServeReport({}, {}, std::nullopt)), nullptr, false);
  EXPECT_EQ(json["summary"]["output_tokens_per_s"], 0.0);
  EXPECT_EQ(json["summary"]["prefix_hit_rate"], 0.0);
  EXPECT_FALSE(json["summary"].contains("server_cpu_s"));
  EXPECT_FALSE(json["tables"].contains("errors"));
}

TEST(ProcessCpuSeconds, GrowsWithWork) {
  const auto before = ProcessCpuSeconds(getpid());
  ASSERT_TRUE(before.ok());
  Result<double> after = before;
  volatile uint64_t work = 0;
  // Ticks are hundredths of seconds.
  while (after.ok() && *after - *before < 0.02) {
    for (int i = 0; i < 1'000'000; ++i) work = work + 1;
    after = ProcessCpuSeconds(getpid());
  }
  EXPECT_TRUE(after.ok());
  EXPECT_FALSE(ProcessCpuSeconds(-1).ok());
}

}  // namespace
}  // namespace fathom::bench
