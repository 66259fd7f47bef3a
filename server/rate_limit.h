// RateLimit: how many requests a minute each API key may send.
//
// One token bucket per key: full it holds a minute's requests, so that short bursts pass; it
// refills evenly. Internally synchronised.
#pragma once

#include <chrono>
#include <cstddef>
#include <mutex>
#include <optional>
#include <vector>

namespace fathom {

class RateLimit {
 public:
  using Clock = std::chrono::steady_clock;

  // `requests_per_minute` 0: no limit.
  RateLimit(size_t num_keys, int requests_per_minute);

  // Counts a request of key `key_index` at `now`. If that key has none left: nothing is counted,
  // and after how many seconds it has one again, at least 1.
  std::optional<int> Refuse(size_t key_index, Clock::time_point now);

 private:
  struct Bucket {
    double tokens;
    Clock::time_point filled;
  };
  const double per_minute_;
  std::mutex mutex_;  // guards what follows
  std::vector<Bucket> buckets_;
};

}  // namespace fathom
