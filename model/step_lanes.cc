#include "model/step_lanes.h"

namespace fathom {

static_assert(kLaneEdges.size() <= SideLane::kNumEvents);

Status StepLanes::Pass(LaneEvent event) {
  const auto number = static_cast<int>(event);
  const LaneEdge& edge = kLaneEdges[static_cast<size_t>(number)];
  if (!two_ || (edge.pieces_only && !pieces_)) return OkStatus();
  const auto in_lane = [&](Lane lane, auto call) -> Status {
    if (lane == Lane::kMain) return call();
    return OnSide(call);
  };
  FATHOM_RETURN_IF_ERROR(in_lane(edge.signals, [&] { return backend_->Signal(number); }));
  return in_lane(edge.awaits, [&] { return backend_->Await(number); });
}

}  // namespace fathom
