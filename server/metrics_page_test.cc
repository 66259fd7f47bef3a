// GET /metrics: the page itself. The engine's numbers, names, buckets, labels, documentation.
#include <fstream>
#include <limits>
#include <set>
#include <sstream>

#include "server/metrics_fixture.h"

namespace fathom {
namespace {

using ::testing::ElementsAre;

class MetricsPage : public Metrics {};

TEST_F(MetricsPage, ShowWhatTheEngineTells) {
  engine_.SetStats(Distinct());
  const MetricPage page = Scrape();
  EXPECT_EQ(page.Value("vllm:num_preemptions_total"), 11);
  EXPECT_EQ(page.Value("vllm:prompt_tokens_total"), 1330);
  EXPECT_EQ(page.Value("vllm:prompt_tokens_cached_total"), 130);
  EXPECT_EQ(page.Value("vllm:prompt_tokens_recomputed_total"), 14);
  EXPECT_EQ(page.Value("vllm:prompt_tokens_by_source_total", {{"source", "local_compute"}}), 1200);
  EXPECT_EQ(page.Value("vllm:prompt_tokens_by_source_total", {{"source", "local_cache_hit"}}), 130);
  EXPECT_EQ(page.Value("vllm:generation_tokens_total"), 15);
  EXPECT_EQ(page.Value("vllm:prefix_cache_queries_total"), 160);
  EXPECT_EQ(page.Value("vllm:prefix_cache_hits_total"), 130);
  EXPECT_EQ(page.Value("fathom:prefix_miss_total", {{"reason", "disabled"}}), 18);
  EXPECT_EQ(page.Value("fathom:prefix_miss_total", {{"reason", "no_block"}}), 19);
  EXPECT_EQ(page.Value("fathom:prefix_miss_total", {{"reason", "no_resume_point"}}), 20);
  EXPECT_EQ(page.families.at("fathom:prefix_miss_total").samples.size(), 3u);
  EXPECT_EQ(page.Value("vllm:admission_rejections_total"), 21);
  EXPECT_EQ(page.Value("vllm:kv_cache_usage_perc"), 0.625);
  EXPECT_EQ(page.Value("fathom:slab_free"), 22);
  EXPECT_EQ(page.Value("fathom:resume_points"), 23);
  EXPECT_EQ(page.Value("fathom:resume_point_bytes"), 24);
  int index = 0;
  for (const char* name : {"full", "swa", "state4", "state128"}) {
    const LabelMap labels{{"class", name}};
    auto blocks = [&](const char* state) {
      return page.Value("fathom:cache_blocks", {{"class", name}, {"state", state}});
    };
    EXPECT_EQ(blocks("in_use"), 100 + index);
    EXPECT_EQ(blocks("cached"), 200 + index);
    EXPECT_EQ(blocks("free"), 300 + index);
    EXPECT_EQ(page.Value("fathom:cache_bytes", labels), (100 + index) * (1000 + index));
    ++index;
  }
  const char* const kTokens = "vllm:iteration_tokens_total_bucket";
  EXPECT_EQ(page.Value(kTokens, {{"le", "1"}}), 1);
  EXPECT_EQ(page.Value(kTokens, {{"le", "8"}}), 1);
  EXPECT_EQ(page.Value(kTokens, {{"le", "16"}}), 2);
  EXPECT_EQ(page.Value(kTokens, {{"le", "16384"}}), 2);
  EXPECT_EQ(page.Value(kTokens, {{"le", "+Inf"}}), 3);
  EXPECT_EQ(page.Value("vllm:iteration_tokens_total_sum"), 20010);
  EXPECT_EQ(page.Value("vllm:iteration_tokens_total_count"), 3);
  EXPECT_EQ(page.Value("fathom:step_seconds_sum", {{"phase", "prefill"}}), 0.5);
  EXPECT_EQ(page.Value("fathom:step_seconds_sum", {{"phase", "decode"}}), 0.002);
  EXPECT_EQ(page.Value("fathom:step_seconds_sum", {{"phase", "mixed"}}), 100);
}

TEST_F(MetricsPage, LeaveOutThePoolOfAnEngineThatHasNone) {
  engine_.SetStats(Distinct());
  const auto all = Scrape().families;
  EngineStats stats = Distinct();
  stats.num_slabs = 0;
  engine_.SetStats(stats);
  std::set<std::string> missing;
  const auto some = Scrape().families;
  for (const auto& [name, _] : all) {
    if (some.count(name) == 0) missing.insert(name);
  }
  EXPECT_THAT(missing,
              ElementsAre("fathom:cache_blocks", "fathom:cache_bytes", "fathom:prefix_miss_total",
                          "fathom:resume_point_bytes", "fathom:resume_points", "fathom:slab_free",
                          "vllm:kv_cache_usage_perc", "vllm:num_preemptions_total",
                          "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total",
                          "vllm:prompt_tokens_by_source_total", "vllm:prompt_tokens_cached_total",
                          "vllm:prompt_tokens_recomputed_total"));
}

// The bounds that vLLM's dashboards know.
TEST_F(MetricsPage, BucketsAreThoseOfTheSpecification) {
  using Bounds = std::vector<double>;
  const Bounds first = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                        1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
  const Bounds next = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                       .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
  const Bounds request = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                          30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
  const Bounds lengths = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000};  // kMaxModelLen
  const std::map<std::string, Bounds> expected = {
      {"vllm:time_to_first_token_seconds", first},
      {"vllm:inter_token_latency_seconds", next},
      {"vllm:request_time_per_output_token_seconds", next},
      {"vllm:e2e_request_latency_seconds", request},
      {"vllm:request_queue_time_seconds", request},
      {"vllm:request_inference_time_seconds", request},
      {"vllm:request_prefill_time_seconds", request},
      {"vllm:request_decode_time_seconds", request},
      {"vllm:request_prompt_tokens", lengths},
      {"vllm:request_generation_tokens", lengths},
      {"vllm:request_max_num_generation_tokens", lengths},
      {"vllm:request_params_max_tokens", lengths},
      {"vllm:request_prefill_kv_computed_tokens", lengths},
      {"vllm:request_params_n", {1, 2, 5, 10, 20}},
      {"vllm:iteration_tokens_total",
       {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}}};
  std::map<std::string, Bounds> found;
  for (const auto& [name, family] : Scrape().families) {
    if (family.type != "histogram" || name.rfind("vllm:", 0) != 0) continue;
    for (const MetricSample& sample : family.samples) {
      if (sample.name == name + "_bucket") {
        found[name].push_back(std::strtod(sample.labels.at("le").c_str(), nullptr));
      }
    }
    EXPECT_EQ(found[name].back(), std::numeric_limits<double>::infinity()) << name;
    found[name].pop_back();
  }
  EXPECT_EQ(found, expected);
}

TEST_F(MetricsPage, CarryAnyModelName) {
  engine_.SetStats(Distinct());
  options_.served_model_names = {"a \"b\" \\n {c=\"d\",}\n# e\xff/\xc3\xa9", "second"};
  const auto page = Scrape();
  EXPECT_GT(page.families.size(), 30u);
  for (const auto& [name, family] : page.families) {
    EXPECT_FALSE(family.help.empty()) << name;
    for (const MetricSample& sample : family.samples) {
      EXPECT_EQ(sample.labels.at("model_name"), "a \"b\" \\n {c=\"d\",}\n# e\xef\xbf\xbd/\xc3\xa9");
      EXPECT_EQ(sample.labels.at("engine"), "0");
    }
  }
}

// docs/metrics.md has a row per metric: | `name` | type | labels | meaning |.
TEST_F(MetricsPage, AreAllInTheDocumentation) {
  struct Row {
    std::string type;
    std::set<std::string> labels;
    bool operator==(const Row& other) const { return type == other.type && labels == other.labels; }
  };
  std::map<std::string, Row> documented, found;
  std::ifstream file(FATHOM_SOURCE_DIR "/docs/metrics.md");
  ASSERT_TRUE(file.is_open());
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("| `", 0) != 0) continue;
    std::vector<std::string> cells;
    std::istringstream cell_stream(line.substr(1));
    for (std::string cell; std::getline(cell_stream, cell, '|');) cells.push_back(cell);
    ASSERT_EQ(cells.size(), 4u) << line;
    EXPECT_GT(cells[3].size(), 10u) << line;
    const std::string name = cells[0].substr(2, cells[0].find('`', 2) - 2);
    Row row{cells[1].substr(1, cells[1].size() - 2), {}};
    for (size_t at = cells[2].find('`'); at != std::string::npos; at = cells[2].find('`', at)) {
      const size_t end = cells[2].find('`', at + 1);
      row.labels.insert(cells[2].substr(at + 1, end - at - 1));
      at = end + 1;
    }
    EXPECT_TRUE(documented.emplace(name, row).second) << name << " is there twice";
  }
  engine_.SetStats(Distinct());
  for (const auto& [name, family] : Scrape().families) {
    Row row{family.type, {}};
    for (const MetricSample& sample : family.samples) {
      for (const auto& [label, _] : sample.labels) row.labels.insert(label);
    }
    for (const char* everywhere : {"model_name", "engine", "le"}) row.labels.erase(everywhere);
    found.emplace(name, row);
  }
  for (const auto& [name, row] : found) {
    ASSERT_EQ(documented.count(name), 1u) << name << " is missing in docs/metrics.md";
    EXPECT_EQ(documented.at(name).type, row.type) << name;
    EXPECT_EQ(documented.at(name).labels, row.labels) << name;
  }
  for (const auto& [name, _] : documented) {
    EXPECT_EQ(found.count(name), 1u) << name << " is in docs/metrics.md only";
  }
}

}  // namespace
}  // namespace fathom
