#include "bench/load/latency_histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace fathom::load {
namespace {

// Values below 2 * kPerDoubling have a bucket each; those above share one with the values that
// have the same leading kBits + 1 bits.
constexpr int kBits = 6;
constexpr uint64_t kPerDoubling = uint64_t{1} << kBits;
constexpr size_t kNumBuckets = (64 - kBits + 1) << kBits;

size_t BucketOf(uint64_t value) {
  const int shift = std::max(0, static_cast<int>(std::bit_width(value)) - kBits - 1);
  return (static_cast<size_t>(shift) << kBits) + static_cast<size_t>(value >> shift);
}

double MiddleOf(size_t bucket) {
  const auto shift = static_cast<int>(bucket >> kBits) - 1;
  if (shift <= 0) return static_cast<double>(bucket);
  const uint64_t leading = kPerDoubling + (bucket & (kPerDoubling - 1));
  return std::ldexp(static_cast<double>(leading) + 0.5, shift);
}

}  // namespace

LatencyHistogram::LatencyHistogram() : buckets_(kNumBuckets) {}

void LatencyHistogram::Add(Duration duration) {
  const int64_t ns = std::max<int64_t>(duration.count(), 0);
  min_ns_ = count_ == 0 ? ns : std::min(min_ns_, ns);
  max_ns_ = std::max(max_ns_, ns);
  sum_ns_ += static_cast<double>(ns);
  ++count_;
  ++buckets_[BucketOf(static_cast<uint64_t>(ns))];
}

double LatencyHistogram::mean_ms() const {
  return count_ == 0 ? 0.0 : sum_ns_ / static_cast<double>(count_) * 1e-6;
}

double LatencyHistogram::max_ms() const { return static_cast<double>(max_ns_) * 1e-6; }

double LatencyHistogram::PercentileMs(double share) const {
  if (count_ == 0) return 0.0;
  const auto wanted = static_cast<int64_t>(std::ceil(share * static_cast<double>(count_)));
  const int64_t rank = std::clamp<int64_t>(wanted, 1, count_);
  if (rank == count_) return max_ms();
  int64_t seen = 0;
  size_t bucket = 0;
  while ((seen += buckets_[bucket]) < rank) ++bucket;
  return std::clamp(MiddleOf(bucket), static_cast<double>(min_ns_), static_cast<double>(max_ns_)) *
         1e-6;
}

}  // namespace fathom::load
