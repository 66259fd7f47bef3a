// Recorder: what a stream is asked for, captured as CUDA graphs. Needs the CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "backend/cuda/device_plan.h"
#include "base/status.h"

namespace fathom::cuda {

// Owns the graphs. Single-threaded; the device is set by the caller.
class Recorder {
 public:
  Recorder() = default;
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  [[nodiscard]] bool recording() const { return recording_; }
  // Told by operations that take more of the plan than its rows.
  void UseWholePlan() { uses_whole_plan_ = true; }

  Status Begin(cudaStream_t stream);
  // `shape` is the begun plan's. Ends the capture in any case.
  Result<int> End(cudaStream_t stream, const PlanShape& shape);
  Status Replay(int recording, cudaStream_t stream, const PlanShape& shape) const;
  [[nodiscard]] int64_t bytes() const { return bytes_; }

 private:
  struct Recording {
    cudaGraphExec_t graph = nullptr;
    PlanShape shape;
    bool uses_whole_plan = false;
  };
  std::vector<Recording> recordings_;
  bool recording_ = false;
  bool uses_whole_plan_ = false;
  int64_t bytes_ = 0;
};

}  // namespace fathom::cuda
