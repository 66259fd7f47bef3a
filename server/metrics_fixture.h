// The server of the tests with its /metrics read back.
#pragma once

#include <chrono>
#include <string>
#include <thread>

#include "server/api_server_fixture.h"
#include "server/exposition_reader.h"

namespace fathom {

class Metrics : public ApiServerTest {
 protected:
  MetricPage Scrape() {
    const Reply reply = Get("/metrics");
    EXPECT_EQ(reply.status, 200);
    return ReadExposition(reply.body);
  }
  // Scrapes until the sample has the value: the end of an aborted request is seen by the engine's
  // thread, after its client.
  MetricPage ScrapeUntil(const char* name, const LabelMap& labels, double value) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (true) {
      MetricPage page = Scrape();
      if (page.Find(name, labels) == value) return page;
      if (std::chrono::steady_clock::now() > deadline) {
        ADD_FAILURE() << name << " is " << page.Find(name, labels).value_or(-1) << ", not "
                      << value;
        return page;
      }
      std::this_thread::yield();
    }
  }
  static double Finished(const MetricPage& page, const char* reason) {
    return page.Value("vllm:request_success_total", {{"finished_reason", reason}});
  }

  // An engine with a pool, in which every number is another.
  static EngineStats Distinct() {
    EngineStats stats;
    stats.num_preemptions = 11;
    stats.prompt_tokens_computed = 1200;
    stats.prompt_tokens_cached = 130;
    stats.prompt_tokens_recomputed = 14;
    stats.generation_tokens = 15;
    stats.prefix_cache_queries = 160;
    stats.prefix_cache_hits = 130;
    stats.prefix_misses = {17, 18, 19, 20};
    stats.rejections = {21};
    for (const double tokens : {1.0, 9.0, 20000.0}) stats.step_tokens.Observe(tokens);
    stats.step_seconds[0].Observe(0.5);
    stats.step_seconds[1].Observe(0.002);
    stats.step_seconds[2].Observe(100.0);
    stats.kv_cache_usage = 0.625;
    for (int i = 0; i < 4; ++i) {
      stats.cache_classes[static_cast<size_t>(i)] = {100 + i, 200 + i, 300 + i, 1000 + i};
    }
    stats.num_slabs = 50;
    stats.num_free_slabs = 22;
    stats.num_resume_points = 23;
    stats.resume_point_bytes = 24;
    return stats;
  }
};

}  // namespace fathom
