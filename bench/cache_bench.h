// Operations of the block manager per second: steps of many long sequences, a prompt of a million
// tokens, lookups, and requests that come and go in memory full of cached prefixes.
//
// Accounting only; there is no memory behind the blocks.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "bench/report.h"
#include "checkpoint/config.h"

namespace fathom::bench {

struct CacheBenchOptions {
  int num_sequences = 1000;          // that decode
  int64_t sequence_tokens = 60'000;  // of each
  int64_t long_tokens = 1 << 20;     // of the one long prompt
  int num_short_requests = 400;      // that come and go
  int max_resume_points = 10'000;    // of prompts shorter than a block
  int repeats = 5;
};

// kInvalidArgument for more tokens than this benchmark keeps in memory, or sequences that the
// model has no positions for.
Result<Report> BenchCache(const ModelConfig& config, const CacheBenchOptions& options);

}  // namespace fathom::bench
