// StreamTimer: how long the device takes for calls that a backend launches, without the host's time
// for launching them.
//
// A kernel that waits holds the stream until all calls are queued; device events stand before the
// first one and behind the last. So kernels follow each other as closely as the device starts them,
// whoever launches more of them. Single-threaded. This header needs no CUDA.
#pragma once

#include <functional>
#include <memory>

#include "backend/cuda/cuda_backend.h"

namespace fathom::cuda {

class StreamTimer {
 public:
  // For calls on `backend`, which must outlive it.
  static Result<std::unique_ptr<StreamTimer>> Create(CudaBackend& backend);
  ~StreamTimer();
  StreamTimer(const StreamTimer&) = delete;
  StreamTimer& operator=(const StreamTimer&) = delete;

  struct Time {
    double seconds = 0.0;  // of all calls
    // The device had not begun when the last call was queued. Else calls that wait for the device,
    // or are too many for its queue, have had the host's time in them.
    bool queued_ahead = false;
  };
  // Calls `call` so many times in a row and waits.
  Result<Time> Run(const std::function<Status()>& call, int calls);

 private:
  struct State;
  explicit StreamTimer(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace fathom::cuda
