#include "backend/cuda/staging.h"

#include <string>

#include "backend/cuda/status.h"

namespace fathom::cuda {

StagingRing::~StagingRing() {
  for (cudaEvent_t event : copied_) {
    if (event != nullptr) static_cast<void>(cudaEventDestroy(event));
  }
}

Status StagingRing::Allocate(int64_t bytes, DeviceMemory& memory) {
  constexpr int64_t kAlignment = DeviceMemory::kAlignment;
  half_bytes_ = bytes / 2 / kAlignment * kAlignment;
  if (half_bytes_ < kAlignment) {
    return InvalidArgument(std::string("cuda backend: ") + what_ + ": " + std::to_string(bytes) +
                           " bytes are too few");
  }
  FATHOM_ASSIGN_OR_RETURN(pinned_, PinnedBytes::Create(2 * half_bytes_));
  FATHOM_ASSIGN_OR_RETURN(device_, memory.Allocate(half_bytes_));
  for (cudaEvent_t& event : copied_) {
    if (event == nullptr) {
      FATHOM_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    }
  }
  half_ = 0;
  used_ = 0;
  return OkStatus();
}

Status StagingRing::NextHalf() {
  FATHOM_CUDA(cudaEventRecord(copied_[half_], stream_));
  half_ = 1 - half_;
  // An event that was never recorded counts as done.
  FATHOM_CUDA(cudaEventSynchronize(copied_[half_]));
  used_ = 0;
  return OkStatus();
}

Result<StagingRing::Place> StagingRing::Reserve(int64_t bytes) {
  constexpr int64_t kAlignment = DeviceMemory::kAlignment;
  if (bytes > half_bytes_) {
    return InvalidArgument(std::string("cuda backend: ") + what_ + ": " + std::to_string(bytes) +
                           " bytes exceed the " + std::to_string(half_bytes_) +
                           " that its pinned memory has room for");
  }
  if (bytes > half_bytes_ - used_) FATHOM_RETURN_IF_ERROR(NextHalf());
  const Place place = {pinned_.data() + half_ * half_bytes_ + used_, device_.data() + used_, bytes};
  used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return place;
}

Status StagingRing::Send(const Place& place) {
  if (place.bytes == 0) return OkStatus();
  FATHOM_CUDA(cudaMemcpyAsync(place.device, place.host, static_cast<size_t>(place.bytes),
                              cudaMemcpyHostToDevice, stream_));
  return OkStatus();
}

}  // namespace fathom::cuda
