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
  const auto measure = [&](bool serial) -> Result<std::vector<Spread>> {
    model.SerialiseStreams(serial);
    if (RecordingOf(model.backend()) != nullptr) {
      FATHOM_RETURN_IF_ERROR(model.RecordSteps(o.engine.graphs.value_or(GraphOptions())));
    }
    return AnswerSpeeds(model, o.lane_contexts, o);
  };
  FATHOM_ASSIGN_OR_RETURN(const std::vector<Spread> serial, measure(true));
  FATHOM_ASSIGN_OR_RETURN(const std::vector<Spread> lanes, measure(false));
  report.tables.push_back(
      SpeedsTable("streams", "serial", "streams", o.lane_contexts, serial, lanes));
  return OkStatus();
}

}  // namespace fathom::bench
