// LatencyHistogram: percentiles of any number of durations in fixed memory.
//
// Durations are counted in buckets, 64 for every doubling, so a percentile is within 1 % of the
// true value; mean, least and greatest are exact. Single-threaded.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace fathom::load {

class LatencyHistogram {
 public:
  using Duration = std::chrono::nanoseconds;

  LatencyHistogram();
  void Add(Duration duration);  // below zero counts as zero

  [[nodiscard]] int64_t count() const { return count_; }
  // All in milliseconds, 0 where nothing was added.
  [[nodiscard]] double mean_ms() const;
  [[nodiscard]] double max_ms() const;
  // The least value that at least `share` (0 to 1) of all are not above.
  [[nodiscard]] double PercentileMs(double share) const;

 private:
  std::vector<int64_t> buckets_;
  int64_t count_ = 0;
  double sum_ns_ = 0.0;
  int64_t min_ns_ = 0;
  int64_t max_ns_ = 0;
};

}  // namespace fathom::load
