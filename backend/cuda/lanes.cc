#include "backend/cuda/lanes.h"

#include <algorithm>
#include <string>

#include "backend/cuda/status.h"

namespace fathom::cuda {

Lanes::~Lanes() {
  for (const Event& event : events_) {
    if (event.event != nullptr) static_cast<void>(cudaEventDestroy(event.event));
  }
  if (joined_ != nullptr) static_cast<void>(cudaEventDestroy(joined_));
  if (side_ != nullptr) static_cast<void>(cudaStreamDestroy(side_));
}

Status Lanes::Create() {
  FATHOM_CUDA(cudaStreamCreateWithFlags(&side_, cudaStreamNonBlocking));
  FATHOM_CUDA(cudaEventCreateWithFlags(&joined_, cudaEventDisableTiming));
  for (Event& event : events_) {
    FATHOM_CUDA(cudaEventCreateWithFlags(&event.event, cudaEventDisableTiming));
  }
  return OkStatus();
}

void Lanes::Prepare(const Scratch& scratch) {
  // What kernels load at once.
  constexpr int64_t kAlignment = 16;
  scratch_ = scratch;
  const bool aligned =
      scratch.input_cols * static_cast<int64_t>(sizeof(*scratch.inputs)) % kAlignment == 0 &&
      scratch.packed_cols * static_cast<int64_t>(sizeof(*scratch.packed)) % kAlignment == 0;
  side_rows_ = aligned ? std::min(kSideLaneRows, scratch.rows / 2) : 0;
  Forget();
}

Status Lanes::Enter() {
  if (!on_side()) return OkStatus();
  if (!side_awaited_) {
    return InvalidArgument(
        "cuda backend: an operation of the side lane before it awaited the main lane");
  }
  last_signal_ = -1;
  return OkStatus();
}

Lanes::Room Lanes::room() const {
  const int64_t front = scratch_.rows - side_rows_;
  if (on_side()) {
    return {side_, side_rows_, scratch_.inputs + front * scratch_.input_cols,
            scratch_.packed + front * scratch_.packed_cols};
  }
  return {main_, under_way_ ? front : scratch_.rows, scratch_.inputs, scratch_.packed};
}

Status Lanes::Use(fathom::Lane lane) {
  if (lane == fathom::Lane::kSide && side_rows_ == 0) {
    return InvalidArgument("cuda backend: scratch memory has no rows for a side lane");
  }
  lane_ = lane;
  return OkStatus();
}

Status Lanes::Signal(int event) {
  FATHOM_RETURN_IF_ERROR(CheckNumber(event));
  if (on_side()) {
    FATHOM_RETURN_IF_ERROR(Enter());
    last_signal_ = event;
  } else {
    under_way_ = true;
  }
  Event& e = events_[static_cast<size_t>(event)];
  FATHOM_CUDA(cudaEventRecord(e.event, stream()));
  e.pending = true;
  e.by = lane_;
  return OkStatus();
}

Status Lanes::Await(int event) {
  FATHOM_RETURN_IF_ERROR(CheckNumber(event));
  Event& e = events_[static_cast<size_t>(event)];
  if (!e.pending || e.by == lane_) {
    return InvalidArgument("cuda backend: event " + std::to_string(event) +
                           " was not signalled by the other lane");
  }
  FATHOM_CUDA(cudaStreamWaitEvent(stream(), e.event, 0));
  e.pending = false;
  if (on_side()) {
    side_awaited_ = true;
    last_signal_ = -1;
  } else if (event == last_signal_ &&
             std::none_of(events_.begin(), events_.end(), [](const Event& other) {
               return other.pending && other.by == fathom::Lane::kMain;
             })) {
    End();
  }
  return OkStatus();
}

Status Lanes::Join() {
  if (side_awaited_) {
    FATHOM_CUDA(cudaEventRecord(joined_, side_));
    FATHOM_CUDA(cudaStreamWaitEvent(main_, joined_, 0));
  }
  Forget();
  return OkStatus();
}

void Lanes::Forget() {
  for (Event& event : events_) event.pending = false;
  End();
}

void Lanes::End() {
  under_way_ = side_awaited_ = false;
  last_signal_ = -1;
}

Status Lanes::Wait() {
  if (side_ != nullptr) FATHOM_CUDA(cudaStreamSynchronize(side_));
  return OkStatus();
}

Status Lanes::CheckNumber(int event) {
  if (event >= 0 && event < SideLane::kNumEvents) return OkStatus();
  return InvalidArgument("cuda backend: event " + std::to_string(event) + " of " +
                         std::to_string(SideLane::kNumEvents));
}

}  // namespace fathom::cuda
