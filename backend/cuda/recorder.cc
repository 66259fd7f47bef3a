#include "backend/cuda/recorder.h"

#include <algorithm>
#include <string>

#include "backend/cuda/status.h"

namespace fathom::cuda {
namespace {

Result<int64_t> FreeBytes() {
  size_t free = 0, total = 0;
  FATHOM_CUDA(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(free);
}

}  // namespace

Recorder::~Recorder() {
  // Nobody could use an error here.
  for (const Recording& recording : recordings_) {
    static_cast<void>(cudaGraphExecDestroy(recording.graph));
  }
}

Status Recorder::Begin(cudaStream_t stream) {
  if (recording_) return InvalidArgument("cuda backend: a recording within another one");
  // Of this thread alone: others may allocate meanwhile.
  FATHOM_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  recording_ = true;
  uses_whole_plan_ = false;
  return OkStatus();
}

Result<int> Recorder::End(cudaStream_t stream, const PlanShape& shape) {
  if (!recording_) return InvalidArgument("cuda backend: no recording to end");
  recording_ = false;
  cudaGraph_t graph = nullptr;
  FATHOM_CUDA(cudaStreamEndCapture(stream, &graph));
  FATHOM_ASSIGN_OR_RETURN(const int64_t free_before, FreeBytes());
  Recording recording = {nullptr, shape, uses_whole_plan_};
  const cudaError_t error = cudaGraphInstantiate(&recording.graph, graph, 0);
  static_cast<void>(cudaGraphDestroy(graph));
  FATHOM_RETURN_IF_ERROR(ToStatus(error, "cudaGraphInstantiate"));
  recordings_.push_back(recording);
  // Now, rather than with the first replay.
  FATHOM_CUDA(cudaGraphUpload(recording.graph, stream));
  FATHOM_ASSIGN_OR_RETURN(const int64_t free_now, FreeBytes());
  bytes_ += std::max<int64_t>(0, free_before - free_now);
  return static_cast<int>(recordings_.size()) - 1;
}

Status Recorder::Replay(int recording, cudaStream_t stream, const PlanShape& shape) const {
  if (recording < 0 || recording >= static_cast<int>(recordings_.size())) {
    return InvalidArgument("cuda backend: recording " + std::to_string(recording) + " of " +
                           std::to_string(recordings_.size()));
  }
  const Recording& r = recordings_[static_cast<size_t>(recording)];
  if (r.uses_whole_plan ? !(shape == r.shape) : shape.rows != r.shape.rows) {
    return InvalidArgument("cuda backend: recording " + std::to_string(recording) +
                           " is of a plan of another shape (rows: " + std::to_string(r.shape.rows) +
                           ", now " + std::to_string(shape.rows) + ")");
  }
  FATHOM_CUDA(cudaGraphLaunch(r.graph, stream));
  return OkStatus();
}

}  // namespace fathom::cuda
