// Tokens per second of one answer on a loaded model, for parts of `bench model` that set two ways
// of doing the same steps against each other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "bench/model_bench.h"
#include "bench/report.h"
#include "model/model.h"

namespace fathom::bench {

// Behind each of `contexts`, ascending, over options.repeats repetitions. The model takes steps of
// options.engine.max_batched_tokens and sequences of AnswersLength(contexts, options).
Result<std::vector<Spread>> AnswerSpeeds(Model& model, const std::vector<int64_t>& contexts,
                                         const ModelBenchOptions& options);

// Tokens of the longest sequence; 0 without contexts.
int64_t AnswersLength(const std::vector<int64_t>& contexts, const ModelBenchOptions& options);

// Speeds of both ways at each context, in columns named after them, and `second` over `first`.
ReportTable SpeedsTable(const std::string& table, const std::string& first,
                        const std::string& second, const std::vector<int64_t>& contexts,
                        const std::vector<Spread>& first_speeds,
                        const std::vector<Spread>& second_speeds);

}  // namespace fathom::bench
