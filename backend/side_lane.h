// Backends that do two chains of operations beside each other.
//
// A step of few rows leaves most of a device idle, and some of a layer's operations wait for
// nothing that others compute. They are called for the side lane then. What orders the lanes is
// said by events alone. Apart from Backend because few have it; asked for by SideLaneOf.
#pragma once

#include "backend/backend.h"
#include "base/status.h"

namespace fathom {

enum class Lane { kMain, kSide };

class SideLane {
 public:
  static constexpr int kNumEvents = 8;

  SideLane() = default;
  virtual ~SideLane() = default;
  SideLane(const SideLane&) = delete;
  SideLane& operator=(const SideLane&) = delete;

  // Rows of the largest step that gains by a second lane; 0 where there is none. Known after
  // Prepare.
  [[nodiscard]] virtual int side_lane_rows() const = 0;

  // The lane that operations are called for from here on; kMain before the first call. The side
  // lane has Linear, RmsNorm, CompressInsert and IndexerTopk (not in both lanes at once), on hosts'
  // operands of the plan that was begun last alone. kInvalidArgument from any other operation, from
  // one before the side lane awaited an event of the main lane, and from BeginStep, Prepare and
  // everything about recordings. Copies of memory() are the main lane's.
  virtual Status UseLane(Lane lane) = 0;

  // An event, below kNumEvents, behind what the lane was asked for so far.
  virtual Status Signal(int event) = 0;
  // What the lane is asked for from here on comes after the event. kInvalidArgument unless the
  // other lane signalled it and nobody awaited it since, within the same recording.
  //
  // With Backend::Synchronize and BeginStep the main lane awaits all of the side lane, and events
  // are forgotten. A recording must end joined: the main lane awaited the side lane's last event.
  virtual Status Await(int event) = 0;
};

// nullptr where the backend has one lane.
inline SideLane* SideLaneOf(Backend& backend) { return dynamic_cast<SideLane*>(&backend); }

}  // namespace fathom
