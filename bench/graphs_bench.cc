#include "bench/graphs_bench.h"

#include <memory>
#include <string>
#include <vector>

#include "bench/long_sequence.h"
#include "engine/sequence_runner.h"

namespace fathom::bench {
namespace {

int64_t StepsAt(const ModelBenchOptions& o) { return int64_t{o.num_steps} * o.repeats; }

// Tokens per second at each context.
Result<std::vector<Spread>> Decode(Model& model, const ModelBenchOptions& o) {
  FATHOM_ASSIGN_OR_RETURN(
      const std::unique_ptr<SequenceRunner> runner,
      SequenceRunner::Create(model, o.engine.numerics, GraphsLength(o), o.engine.cache_dtypes));
  LongSequence sequence(*runner, model.config().vocab_size, o.engine.max_batched_tokens,
                        o.computed_tokens);
  std::vector<Spread> speeds;
  for (const int64_t context : o.graph_contexts) {
    FATHOM_RETURN_IF_ERROR(sequence.GoTo(context - 1));
    for (int step = 0; step < kWarmSteps; ++step) {
      FATHOM_RETURN_IF_ERROR(sequence.Decode().status());
    }
    std::vector<double> tokens_per_s;
    for (int repeat = 0; repeat < o.repeats; ++repeat) {
      double ms = 0.0;
      for (int step = 0; step < o.num_steps; ++step) {
        FATHOM_ASSIGN_OR_RETURN(const double step_ms, sequence.Decode());
        ms += step_ms;
      }
      tokens_per_s.push_back(o.num_steps * 1e3 / ms);
    }
    speeds.push_back(SpreadOf(std::move(tokens_per_s)));
  }
  return speeds;
}

}  // namespace

Status CheckGraphs(Backend& backend, const ModelBenchOptions& o) {
  if (o.graph_contexts.empty()) return OkStatus();
  if (RecordingOf(backend) == nullptr) {
    return InvalidArgument("--parts graphs: the " + std::string(backend.name()) +
                           " backend records no steps, the cuda backend does");
  }
  if (o.engine.graphs && o.engine.graphs->mode == GraphMode::kNone) {
    return InvalidArgument(
        "--parts graphs: sets recorded steps against others; leave --enforce-eager and "
        "cudagraph_mode NONE out");
  }
  return OkStatus();
}

int64_t GraphsLength(const ModelBenchOptions& o) {
  return o.graph_contexts.empty() ? 0 : o.graph_contexts.back() + kWarmSteps - 1 + StepsAt(o);
}

Status BenchGraphs(Model& model, const ModelBenchOptions& o, Report& report) {
  FATHOM_RETURN_IF_ERROR(CheckGraphs(model.backend(), o));
  GraphOptions none;
  none.mode = GraphMode::kNone;
  FATHOM_RETURN_IF_ERROR(model.RecordSteps(none));
  FATHOM_ASSIGN_OR_RETURN(const std::vector<Spread> direct, Decode(model, o));
  FATHOM_RETURN_IF_ERROR(model.RecordSteps(o.engine.graphs.value_or(GraphOptions())));
  const StepGraphs& graphs = *model.graphs();
  const int64_t bytes_before = graphs.recording_bytes();
  FATHOM_ASSIGN_OR_RETURN(const std::vector<Spread> recorded, Decode(model, o));

  ReportTable table{
      "graphs",
      {"context_tokens", "direct_tokens_per_s", "direct_low", "direct_high",
       "recorded_tokens_per_s", "recorded_low", "recorded_high", "recorded_over_direct"},
      {}};
  for (size_t i = 0; i < direct.size(); ++i) {
    table.rows.push_back({o.graph_contexts[i], direct[i].median, direct[i].low, direct[i].high,
                          recorded[i].median, recorded[i].low, recorded[i].high,
                          recorded[i].median / direct[i].median});
  }
  report.tables.push_back(std::move(table));
  report.summary.insert(report.summary.end(),
                        {{"graph_recordings", int64_t{graphs.num_recordings()}},
                         {"graph_replays", graphs.num_replays()},
                         {"graph_recording_bytes", graphs.recording_bytes() - bytes_before}});
  return OkStatus();
}

}  // namespace fathom::bench
