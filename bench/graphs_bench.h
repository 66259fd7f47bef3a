// The part of `bench model` that sets recorded steps (model/step_graphs.h) against direct ones, on
// one loaded model.
#pragma once

#include "base/status.h"
#include "bench/model_bench.h"
#include "bench/report.h"
#include "model/model.h"

namespace fathom::bench {

// kInvalidArgument, naming the option, where the backend or the options record no steps.
Status CheckGraphs(Backend& backend, const ModelBenchOptions& options);

// One answer behind each of options.graph_contexts, first with no step recorded, then with those
// that options.engine.graphs asks for, which stay: speeds of both in a table, and in the summary
// what was recorded and done again. The model takes steps of options.engine.max_batched_tokens and
// sequences of AnswersLength (answer_speeds.h).
Status BenchGraphs(Model& model, const ModelBenchOptions& options, Report& report);

}  // namespace fathom::bench
