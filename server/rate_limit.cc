#include "server/rate_limit.h"

#include <algorithm>
#include <cmath>

namespace fathom {

RateLimit::RateLimit(size_t num_keys, int requests_per_minute)
    : per_minute_(requests_per_minute),
      buckets_(requests_per_minute > 0 ? num_keys : 0, {per_minute_, Clock::time_point()}) {}

std::optional<int> RateLimit::Refuse(size_t key_index, Clock::time_point now) {
  if (key_index >= buckets_.size()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  Bucket& bucket = buckets_[key_index];
  // Requests are stamped before they get here, so one may be older than the last that was counted.
  if (now > bucket.filled) {
    const std::chrono::duration<double, std::ratio<60>> minutes = now - bucket.filled;
    bucket.tokens = std::min(per_minute_, bucket.tokens + minutes.count() * per_minute_);
    bucket.filled = now;
  }
  if (bucket.tokens >= 1.0) {
    bucket.tokens -= 1.0;
    return std::nullopt;
  }
  const double seconds = (1.0 - bucket.tokens) * 60.0 / per_minute_;
  return std::max(1, static_cast<int>(std::ceil(seconds)));
}

}  // namespace fathom
