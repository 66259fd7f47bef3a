// Backends that record what they are asked for and do it again in one call.
//
// Where a launch costs about as much as the work that it starts, a step of few tokens is mostly
// launches; done again, a recording has none of them. Apart from Backend because few have it; asked
// for by RecordingOf.
#pragma once

#include "backend/backend.h"
#include "base/status.h"

namespace fathom {

class RecordsSteps {
 public:
  RecordsSteps() = default;
  virtual ~RecordsSteps() = default;
  RecordsSteps(const RecordsSteps&) = delete;
  RecordsSteps& operator=(const RecordsSteps&) = delete;

  // Operations called from here to EndRecording are not done but kept, copies within memory()
  // included. What they take from the host must be spans of the plan that was begun last, and
  // tables of experts that were told (AddExperts): kInvalidArgument from the operation else.
  virtual Status BeginRecording() = 0;
  // The number of the recording; also after an operation failed, to go on without one.
  virtual Result<int> EndRecording() = 0;
  // Does what was recorded, for the plan that was begun last. It has as many rows as the one that
  // was recorded, and where operations took more than its token ids and positions, all of its
  // arrays but those of block numbers are as long: kInvalidArgument else. Nothing else is checked
  // that the operations would have checked.
  virtual Status Replay(int recording) = 0;
  // Bytes that recordings have taken of the device so far.
  [[nodiscard]] virtual int64_t recording_bytes() const = 0;
};

// nullptr where the backend does not.
inline RecordsSteps* RecordingOf(Backend& backend) { return dynamic_cast<RecordsSteps*>(&backend); }

}  // namespace fathom
