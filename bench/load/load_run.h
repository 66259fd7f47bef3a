// RunLoad: sends the requests of a workload to a server and says what became of them.
//
// A client of its own, of any server with one of the three APIs. One thread, that of the caller,
// for any number of streams.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "bench/load/base_url.h"
#include "bench/load/load_result.h"
#include "bench/load/workload.h"

namespace fathom::load {

struct LoadOptions {
  BaseUrl url;
  std::string api_key;  // may be empty
  // Conversations, which are requests where they have one turn. Absent: until the duration is over.
  std::optional<int64_t> num_conversations;
  // After it nothing new begins; what runs is let finish.
  std::optional<std::chrono::milliseconds> duration;
  // Conversations at once. Absent: no limit.
  std::optional<int> max_concurrency;
  // Arrivals per second, with exponential times between them. Absent: all at once, so that
  // max_concurrency alone decides. Those that find it reached wait outside of what is measured.
  std::optional<double> request_rate;
  uint64_t seed = 0;                             // of arrivals
  std::chrono::milliseconds timeout{600'000};    // without a byte from the server
  const std::atomic<bool>* interrupt = nullptr;  // true ends the run; what runs is cancelled
};

// Fails where nothing could be sent: a host that has no address, a key that is no header.
Result<LoadResult> RunLoad(const LoadOptions& options, const Workload& workload);

}  // namespace fathom::load
