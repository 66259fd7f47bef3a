// StagingRing: the way of small host data to kernels, without waiting for either.
//
// Bytes are placed in pinned memory and copied on the stream to device memory. Each half of the
// pinned memory is written again only after its copies are done: an event behind its last copy says
// so. Both halves go to the same device memory, which needs no such care: copies into it come after
// the kernels that the stream ran before. So what a half begins with is always at the same address.
// Single-threaded.
#pragma once

#include <cuda_runtime_api.h>

#include <cstring>
#include <span>

#include "backend/cuda/memory.h"

namespace fathom::cuda {

class StagingRing {
 public:
  // `what` names the ring in errors.
  StagingRing(const char* what, cudaStream_t stream) : what_(what), stream_(stream) {}
  ~StagingRing();
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  // Two halves of bytes / 2 each; as much as one comes from `memory`.
  Status Allocate(int64_t bytes, DeviceMemory& memory);

  // Begins a half: at least half of the ring is free behind this call.
  Status NextHalf();

  // Copies host data; the address is the device's and holds until the ring comes round, for
  // kernels that are launched before it. kInvalidArgument when it is more than a half.
  template <typename T>
  Result<const T*> Copy(std::span<const T> from) {
    FATHOM_ASSIGN_OR_RETURN(Place place, Reserve(static_cast<int64_t>(from.size_bytes())));
    if (!from.empty()) std::memcpy(place.host, from.data(), from.size_bytes());
    FATHOM_RETURN_IF_ERROR(Send(place));
    return reinterpret_cast<const T*>(place.device);
  }

  // The same for data that is written in place: fill `host`, then Send before the next Reserve.
  struct Place {
    std::byte* host = nullptr;
    std::byte* device = nullptr;
    int64_t bytes = 0;
  };
  Result<Place> Reserve(int64_t bytes);
  Status Send(const Place& place);

 private:
  const char* what_;
  cudaStream_t stream_;
  PinnedBytes pinned_;
  DeviceBuffer device_;
  int64_t half_bytes_ = 0;
  int half_ = 0;
  int64_t used_ = 0;  // of this half
  cudaEvent_t copied_[2] = {};
};

}  // namespace fathom::cuda
