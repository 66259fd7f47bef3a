// What became of requests, one by one and all together.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "bench/load/answer_reader.h"
#include "bench/load/latency_histogram.h"

namespace fathom::load {

using Clock = std::chrono::steady_clock;

struct Outcome {
  enum class Kind {
    kOk,
    kCancelled,     // by us, at the end of the run
    kConnect,       // no connection
    kStatus,        // an answer other than 200
    kDisconnected,  // the connection ended before the answer did
    kTimeout,       // nothing came for too long
    kStreamError,   // an error event inside the stream
    kMalformed,     // not HTTP, no event stream, no JSON in it
  };
  Kind kind = Kind::kOk;
  int status = 0;       // of HTTP; 0: none
  std::string message;  // of an error
  AnswerUsage usage;
  std::string text;        // of the answer, where it is kept
  int64_t num_chunks = 0;  // with content
  Clock::time_point start, first_chunk, last_chunk, end;
};

// "connect", "status", ...
std::string_view KindName(Outcome::Kind kind);

struct LoadResult {
  struct Errors {
    int64_t count = 0;
    std::string example;  // the first one's message
  };

  // Requests that succeeded count for times and tokens; only chunk_times has those of all.
  LatencyHistogram first_token, token_times, chunk_times, whole;
  int64_t num_ok = 0;
  int64_t num_failed = 0;
  int64_t num_cancelled = 0;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;  // as usage says, or chunks where there is none
  int64_t num_without_usage = 0;
  int64_t num_chunks = 0;  // of all requests
  int most_at_once = 0;
  std::map<int, int64_t> by_status;      // 0: no answer
  std::map<std::string, Errors> errors;  // by kind, "status 503"
  Clock::duration duration{0};           // from the first request to the last answer
  bool was_stopped = false;

  void Add(const Outcome& outcome);
};

}  // namespace fathom::load
