#include "bench/graphs_bench.h"

#include <string>
#include <vector>

#include "bench/answer_speeds.h"

namespace fathom::bench {

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

Status BenchGraphs(Model& model, const ModelBenchOptions& o, Report& report) {
  FATHOM_RETURN_IF_ERROR(CheckGraphs(model.backend(), o));
  GraphOptions none;
  none.mode = GraphMode::kNone;
  FATHOM_RETURN_IF_ERROR(model.RecordSteps(none));
  FATHOM_ASSIGN_OR_RETURN(const std::vector<Spread> direct,
                          AnswerSpeeds(model, o.graph_contexts, o));
  FATHOM_RETURN_IF_ERROR(model.RecordSteps(o.engine.graphs.value_or(GraphOptions())));
  const StepGraphs& graphs = *model.graphs();
  const int64_t bytes_before = graphs.recording_bytes();
  FATHOM_ASSIGN_OR_RETURN(const std::vector<Spread> recorded,
                          AnswerSpeeds(model, o.graph_contexts, o));

  report.tables.push_back(
      SpeedsTable("graphs", "direct", "recorded", o.graph_contexts, direct, recorded));
  report.summary.insert(report.summary.end(),
                        {{"graph_recordings", int64_t{graphs.num_recordings()}},
                         {"graph_replays", graphs.num_replays()},
                         {"graph_recording_bytes", graphs.recording_bytes() - bytes_before}});
  return OkStatus();
}

}  // namespace fathom::bench
