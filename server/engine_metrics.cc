#include "server/engine_metrics.h"

#include <prometheus/metric_family.h>

#include <limits>
#include <string_view>

namespace fathom {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

// vLLM's names for AdmissionRejection.
constexpr std::array<std::string_view, kNumAdmissionRejections> kRejectionNames = {
    "max_num_queued_reqs"};
constexpr std::array<std::string_view, kNumStepPhases> kPhaseNames = {"prefill", "decode", "mixed"};

class FamilyList {
 public:
  explicit FamilyList(const MetricLabels& labels) {
    for (const auto& [name, value] : labels) labels_.push_back({name, value});
  }

  void Begin(MetricType type, std::string name, std::string help) {
    families_.push_back({std::move(name), std::move(help), type, {}});
  }
  // A series of the family begun last.
  ClientMetric& Series(std::initializer_list<ClientMetric::Label> more = {}) {
    ClientMetric metric;
    metric.label = labels_;
    metric.label.insert(metric.label.end(), more);
    return families_.back().metric.emplace_back(std::move(metric));
  }

  void Gauge(std::string name, std::string help, double value) {
    Begin(MetricType::Gauge, std::move(name), std::move(help));
    Series().gauge.value = value;
  }
  void Counter(std::string name, std::string help, int64_t value) {
    Begin(MetricType::Counter, std::move(name), std::move(help));
    Series().counter.value = static_cast<double>(value);
  }

  std::vector<MetricFamily> Take() { return std::move(families_); }

 private:
  std::vector<ClientMetric::Label> labels_;
  std::vector<MetricFamily> families_;
};

template <const auto& kBounds>
ClientMetric::Histogram ToPrometheus(const StatsHistogram<kBounds>& from) {
  ClientMetric::Histogram to;
  uint64_t count = 0;
  for (size_t i = 0; i < from.counts.size(); ++i) {
    count += static_cast<uint64_t>(from.counts[i]);
    const double bound = i < kBounds.size() ? kBounds[i] : std::numeric_limits<double>::infinity();
    to.bucket.push_back({count, bound});
  }
  to.sample_count = count;
  to.sample_sum = from.sum;
  return to;
}

void AddWork(const EngineStats& stats, FamilyList* list) {
  list->Gauge("vllm:num_requests_running", "Requests that are being computed.", stats.num_running);
  list->Gauge("vllm:num_requests_waiting", "Requests in the engine's queue.", stats.num_waiting);
  list->Counter("vllm:prompt_tokens_total", "Prompt tokens, computed or taken from the cache.",
                stats.prompt_tokens_computed + stats.prompt_tokens_cached);
  list->Counter("vllm:generation_tokens_total", "Generated tokens.", stats.generation_tokens);
  list->Begin(MetricType::Counter, "vllm:admission_rejections_total",
              "Requests that were answered with 503, by the limit that they met.");
  for (size_t i = 0; i < stats.rejections.size(); ++i) {
    list->Series({{"reason", std::string(kRejectionNames[i])}}).counter.value =
        static_cast<double>(stats.rejections[i]);
  }
  list->Begin(MetricType::Histogram, "vllm:iteration_tokens_total", "Tokens of one step.");
  list->Series().histogram = ToPrometheus(stats.step_tokens);
  list->Begin(MetricType::Histogram, "fathom:step_seconds", "Duration of one step.");
  for (size_t i = 0; i < stats.step_seconds.size(); ++i) {
    list->Series({{"phase", std::string(kPhaseNames[i])}}).histogram =
        ToPrometheus(stats.step_seconds[i]);
  }
}

void AddPrefixCache(const EngineStats& stats, FamilyList* list) {
  list->Counter("vllm:num_preemptions_total", "Requests that lost their cache to others.",
                stats.num_preemptions);
  list->Counter("vllm:prompt_tokens_cached_total", "Prompt tokens taken from the prefix cache.",
                stats.prompt_tokens_cached);
  list->Counter("vllm:prompt_tokens_recomputed_total",
                "Tokens computed once more after a preemption.", stats.prompt_tokens_recomputed);
  list->Begin(MetricType::Counter, "vllm:prompt_tokens_by_source_total",
              "Prompt tokens by where their cache entries came from.");
  list->Series({{"source", "local_compute"}}).counter.value =
      static_cast<double>(stats.prompt_tokens_computed);
  list->Series({{"source", "local_cache_hit"}}).counter.value =
      static_cast<double>(stats.prompt_tokens_cached);
  list->Counter("vllm:prefix_cache_queries_total", "Tokens looked up in the prefix cache.",
                stats.prefix_cache_queries);
  list->Counter("vllm:prefix_cache_hits_total", "Tokens found in the prefix cache.",
                stats.prefix_cache_hits);
  list->Begin(MetricType::Counter, "fathom:prefix_miss_total",
              "Requests whose prefix hit ended early, by reason.");
  for (size_t i = 1; i < stats.prefix_misses.size(); ++i) {
    list->Series({{"reason", std::string(PrefixMissName(static_cast<PrefixMiss>(i)))}})
        .counter.value = static_cast<double>(stats.prefix_misses[i]);
  }
}

void AddPool(const EngineStats& stats, FamilyList* list) {
  list->Gauge("vllm:kv_cache_usage_perc",
              "Used part of the cache pool, 0 to 1; cached blocks of no request count as free.",
              stats.kv_cache_usage);
  list->Begin(MetricType::Gauge, "fathom:cache_blocks", "Page blocks of a cache class, by state.");
  for (size_t i = 0; i < stats.cache_classes.size(); ++i) {
    const CacheClassStats& cache = stats.cache_classes[i];
    const std::string name(kCacheClassNames[i]);
    for (const auto& [state, blocks] : {std::pair{"in_use", cache.blocks_in_use},
                                        {"cached", cache.blocks_cached},
                                        {"free", cache.blocks_free}}) {
      list->Series({{"class", name}, {"state", state}}).gauge.value = static_cast<double>(blocks);
    }
  }
  list->Begin(MetricType::Gauge, "fathom:cache_bytes", "Bytes of a cache class's blocks in use.");
  for (size_t i = 0; i < stats.cache_classes.size(); ++i) {
    const CacheClassStats& cache = stats.cache_classes[i];
    list->Series({{"class", std::string(kCacheClassNames[i])}}).gauge.value =
        static_cast<double>(cache.blocks_in_use) * static_cast<double>(cache.block_bytes);
  }
  list->Gauge("fathom:slab_free", "Slabs of the cache pool that are lent to no class.",
              static_cast<double>(stats.num_free_slabs));
  list->Gauge("fathom:resume_points", "Positions from which a cached sequence can go on.",
              static_cast<double>(stats.num_resume_points));
  list->Gauge("fathom:resume_point_bytes", "Bytes of the pages that resume points hold.",
              static_cast<double>(stats.resume_point_bytes));
}

}  // namespace

std::vector<MetricFamily> EngineFamilies(const EngineStats& stats, const MetricLabels& labels) {
  FamilyList list(labels);
  AddWork(stats, &list);
  if (stats.num_slabs > 0) {
    AddPrefixCache(stats, &list);
    AddPool(stats, &list);
  }
  return list.Take();
}

}  // namespace fathom
