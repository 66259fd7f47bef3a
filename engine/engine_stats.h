// EngineStats: what an engine has counted since its start, and what it holds now.
//
// A copy of plain values: Engine::stats makes it, /metrics shows it (docs/metrics.md). Everything
// is zero by default, and stays zero in an engine that lacks the part it belongs to.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "cache/prefix_miss.h"

namespace fathom {

// Why Submit answered kUnavailable although the request was good.
enum class AdmissionRejection { kQueueFull };
inline constexpr int kNumAdmissionRejections = 1;

// What the rows of a step belong to: prompts, running requests, or both.
enum class StepPhase { kPrefill, kDecode, kMixed };
inline constexpr int kNumStepPhases = 3;

inline constexpr std::array<double, 13> kStepTokensBounds = {1,   8,    16,   32,   64,   128,  256,
                                                             512, 1024, 2048, 4096, 8192, 16384};
inline constexpr std::array<double, 13> kStepSecondsBounds = {
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0};

// A histogram with fixed bounds. `counts[i]` values were at most `kBounds[i]` and above the bound
// before it; the last count is of those above all bounds.
template <const auto& kBounds>
struct StatsHistogram {
  std::array<int64_t, kBounds.size() + 1> counts{};
  double sum = 0.0;

  void Observe(double value) {
    size_t bucket = 0;
    while (bucket < kBounds.size() && value > kBounds[bucket]) ++bucket;
    ++counts[bucket];
    sum += value;
  }
  [[nodiscard]] int64_t count() const {
    int64_t total = 0;
    for (const int64_t n : counts) total += n;
    return total;
  }
};

// Page blocks of one cache class, each in exactly one of three states.
struct CacheClassStats {
  int64_t blocks_in_use = 0;  // of running requests
  int64_t blocks_cached = 0;  // of nobody, content kept for reuse
  int64_t blocks_free = 0;    // in slabs of the class, without content
  int64_t block_bytes = 0;
};

// Order of EngineStats::cache_classes: that of CacheClass (backend/page_format.h).
inline constexpr std::array<std::string_view, 4> kCacheClassNames = {"full", "swa", "state4",
                                                                     "state128"};

struct EngineStats {
  int num_running = 0;
  int num_waiting = 0;

  // Counters, since the engine's start.
  int64_t num_steps = 0;  // that ended, however they did; with work in hand it grows
  int64_t num_preemptions = 0;
  // A prompt token counts once, as computed or as cached, when it is there for the first time.
  int64_t prompt_tokens_computed = 0;
  int64_t prompt_tokens_cached = 0;
  int64_t prompt_tokens_recomputed = 0;  // computed again after preemptions, besides the above
  int64_t generation_tokens = 0;
  int64_t prefix_cache_queries = 0;                           // tokens that were looked up
  int64_t prefix_cache_hits = 0;                              // tokens that were found
  std::array<int64_t, kNumPrefixMisses> prefix_misses{};      // requests, by PrefixMiss
  std::array<int64_t, kNumAdmissionRejections> rejections{};  // by AdmissionRejection
  StatsHistogram<kStepTokensBounds> step_tokens;              // rows of each step
  std::array<StatsHistogram<kStepSecondsBounds>, kNumStepPhases> step_seconds;  // by StepPhase

  // The cache. Without a pool (`num_slabs` is 0) none of it, nor the prefix counters, means
  // anything.
  double kv_cache_usage = 0.0;  // 0 to 1: used bytes over pool bytes; cached blocks count as free
  std::array<CacheClassStats, kCacheClassNames.size()> cache_classes{};
  int64_t num_slabs = 0;
  int64_t num_free_slabs = 0;  // lent to no class
  int64_t num_resume_points = 0;
  int64_t resume_point_bytes = 0;
};

}  // namespace fathom
