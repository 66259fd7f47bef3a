#include "bench/lanes_bench.h"

#include <string>
#include <utility>
#include <vector>

#include "backend/side_lane.h"
#include "bench/answer_speeds.h"

namespace fathom::bench {

Status CheckLanes(Backend& backend, const ModelBenchOptions& o) {
  if (o.lane_contexts.empty()) return OkStatus();
  if (SideLaneOf(backend) == nullptr) {
    return InvalidArgument("--parts streams: the " + std::string(backend.name()) +
                           " backend has one stream, the cuda backend two");
  }
  if (o.engine.serial_streams) {
    return InvalidArgument(
        "--parts streams: sets two streams against one; leave --serial-streams out");
  }
  return OkStatus();
}

Status BenchLanes(Model& model, const ModelBenchOptions& o, Report& report) {
  FATHOM_RETURN_IF_ERROR(CheckLanes(model.backend(), o));
  if (SideLaneOf(model.backend())->side_lane_rows() == 0) {
    return InvalidArgument("--parts streams: steps of --max-num-batched-tokens " +
                           std::to_string(model.max_rows()) + " leave a second stream no rows");
  }
  const auto measure = [&](bool serial) -> Result<std::vector<Spread>> {
    model.SerialiseStreams(serial);
    if (RecordingOf(model.backend()) == nullptr) return AnswerSpeeds(model, o.lane_contexts, o);
    const GraphOptions graphs = o.engine.graphs.value_or(GraphOptions());
    FATHOM_RETURN_IF_ERROR(model.RecordSteps(graphs));
    FATHOM_ASSIGN_OR_RETURN(std::vector<Spread> speeds, AnswerSpeeds(model, o.lane_contexts, o));
    if (model.graphs()->mode() != graphs.mode) {
      return OutOfMemory("--parts streams: no room for recorded steps; --enforce-eager");
    }
    return speeds;
  };
  FATHOM_ASSIGN_OR_RETURN(const std::vector<Spread> serial, measure(true));
  FATHOM_ASSIGN_OR_RETURN(const std::vector<Spread> lanes, measure(false));
  report.tables.push_back(
      SpeedsTable("streams", "serial", "streams", o.lane_contexts, serial, lanes));
  return OkStatus();
}

}  // namespace fathom::bench
