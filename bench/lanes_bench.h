// The part of `bench model` that sets steps with two lanes (model/step_lanes.h) against steps with
// one, on one loaded model.
#pragma once

#include "base/status.h"
#include "bench/model_bench.h"
#include "bench/report.h"
#include "model/model.h"

namespace fathom::bench {

// kInvalidArgument, naming the option, where the backend or the options have one lane.
Status CheckLanes(Backend& backend, const ModelBenchOptions& options);

// One answer behind each of options.lane_contexts, first with streams serialised, then without,
// which stays: speeds of both in a table. Steps are recorded anew for each, as
// options.engine.graphs asks for. The model takes steps of options.engine.max_batched_tokens and
// sequences of AnswersLength (answer_speeds.h).
Status BenchLanes(Model& model, const ModelBenchOptions& options, Report& report);

}  // namespace fathom::bench
