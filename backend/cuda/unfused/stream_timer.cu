#include "backend/cuda/unfused/stream_timer.h"

#include <cuda_runtime.h>

#include <utility>

#include "backend/cuda/status.h"
#include "backend/cuda/unfused/access.h"

namespace fathom::cuda {
namespace {

// A millisecond or so at first; what the host takes to queue calls is found by doubling.
constexpr long long kFirstHold = 1 << 21;
constexpr long long kLongestHold = 1 << 28;

__global__ void HoldKernel(long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

}  // namespace

struct StreamTimer::State {
  explicit State(CudaBackend& backend_in)
      : backend(backend_in), stream(UnfusedAccess::StateOf(backend_in).stream) {}
  ~State() {
    static_cast<void>(cudaStreamSynchronize(stream));
    if (begin != nullptr) static_cast<void>(cudaEventDestroy(begin));
    if (end != nullptr) static_cast<void>(cudaEventDestroy(end));
  }

  CudaBackend& backend;
  cudaStream_t stream;
  cudaEvent_t begin = nullptr, end = nullptr;
  long long hold = kFirstHold;
};

StreamTimer::StreamTimer(std::unique_ptr<State> state) : state_(std::move(state)) {}
StreamTimer::~StreamTimer() = default;

Result<std::unique_ptr<StreamTimer>> StreamTimer::Create(CudaBackend& backend) {
  FATHOM_RETURN_IF_ERROR(UnfusedAccess::StateOf(backend).Enter());
  auto state = std::make_unique<State>(backend);
  FATHOM_CUDA(cudaEventCreate(&state->begin));
  FATHOM_CUDA(cudaEventCreate(&state->end));
  return std::unique_ptr<StreamTimer>(new StreamTimer(std::move(state)));
}

Result<StreamTimer::Time> StreamTimer::Run(const std::function<Status()>& call, int calls) {
  State& s = *state_;
  for (;;) {
    FATHOM_RETURN_IF_ERROR(s.backend.Synchronize());
    HoldKernel<<<1, 1, 0, s.stream>>>(s.hold);
    FATHOM_RETURN_IF_ERROR(LaunchStatus("HoldKernel"));
    FATHOM_CUDA(cudaEventRecord(s.begin, s.stream));
    for (int i = 0; i < calls; ++i) FATHOM_RETURN_IF_ERROR(call());
    FATHOM_CUDA(cudaEventRecord(s.end, s.stream));
    const cudaError_t begun = cudaEventQuery(s.begin);
    Time time;
    time.queued_ahead = begun == cudaErrorNotReady;
    if (time.queued_ahead) {
      static_cast<void>(cudaGetLastError());  // that it is not ready is remembered as an error
    } else {
      FATHOM_CUDA(begun);
    }
    FATHOM_CUDA(cudaEventSynchronize(s.end));
    if (!time.queued_ahead && s.hold < kLongestHold) {
      s.hold *= 2;
      continue;
    }
    float ms = 0.0f;
    FATHOM_CUDA(cudaEventElapsedTime(&ms, s.begin, s.end));
    time.seconds = static_cast<double>(ms) * 1e-3;
    return time;
  }
}

}  // namespace fathom::cuda
