// What the sequences of this folder take from a CudaBackend. Needs the CUDA runtime.
#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "backend/cuda/state.h"

namespace fathom {

struct UnfusedAccess {
  static CudaBackend::State& StateOf(CudaBackend& backend) { return *backend.state_; }
};

namespace cuda {

// Device memory of a sequence: intermediate tensors and indices.
class SequenceMemory {
 public:
  explicit SequenceMemory(CudaBackend& backend) : memory_(backend.memory()) {}

  template <typename T>
  Result<T*> Room(int64_t count) {
    FATHOM_ASSIGN_OR_RETURN(DeviceBuffer buffer, memory_.Allocate(std::max<int64_t>(
                                                     count * static_cast<int64_t>(sizeof(T)), 1)));
    buffers_.push_back(std::move(buffer));
    return reinterpret_cast<T*>(buffers_.back().data());
  }
  template <typename T>
  Result<T*> Put(const std::vector<T>& values) {
    FATHOM_ASSIGN_OR_RETURN(T* const data, Room<T>(static_cast<int64_t>(values.size())));
    FATHOM_RETURN_IF_ERROR(memory_.CopyIn(reinterpret_cast<std::byte*>(data),
                                          std::as_bytes(std::span<const T>(values))));
    return data;
  }

 private:
  DeviceMemory& memory_;
  std::vector<DeviceBuffer> buffers_;
};

}  // namespace cuda
}  // namespace fathom
