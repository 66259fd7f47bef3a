// Memory of one GPU: what CudaBackend::memory() hands out. Needs the CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <map>

#include "backend/device_memory.h"

namespace fathom::cuda {

// Copies go through the stream, so they come after the operations launched on it. Single-threaded.
class GpuMemory final : public DeviceMemory {
 public:
  GpuMemory(int device, cudaStream_t stream) : device_(device), stream_(stream) {}

  Status CopyIn(std::byte* to, std::span<const std::byte> from) override;
  Status CopyOut(std::span<std::byte> to, const std::byte* from) override;
  Status CopyWithin(std::byte* to, const std::byte* from, int64_t bytes) override;
  [[nodiscard]] bool host_readable() const override { return false; }
  [[nodiscard]] Result<MemoryState> State() const override;

 protected:
  Result<std::byte*> AllocateBytes(int64_t bytes) override;
  void FreeBytes(std::byte* data) override;

 private:
  int device_;
  cudaStream_t stream_;
};

// Page-locked memory of the host that the GPU reads at the host's addresses, over the bus: what
// CudaBackend::pinned_memory() hands out. Copies are the host's, at once, and not for bytes that
// operations under way read. Single-threaded but for the bytes.
class PinnedMemory final : public DeviceMemory {
 public:
  explicit PinnedMemory(int device) : device_(device) {}

  Status CopyIn(std::byte* to, std::span<const std::byte> from) override;
  Status CopyOut(std::span<std::byte> to, const std::byte* from) override;
  Status CopyWithin(std::byte* to, const std::byte* from, int64_t bytes) override;
  [[nodiscard]] bool host_readable() const override { return true; }
  // The host's.
  [[nodiscard]] Result<MemoryState> State() const override;
  // The buffer that the byte lies in; empty where it is none of this memory.
  [[nodiscard]] std::span<const std::byte> BufferOf(const void* data) const;

 protected:
  Result<std::byte*> AllocateBytes(int64_t bytes) override;
  void FreeBytes(std::byte* data) override;

 private:
  int device_;
  std::map<const std::byte*, int64_t> buffers_;  // bytes by address
};

// Page-locked memory for staging. Movable; freed at the end.
class PinnedBytes {
 public:
  PinnedBytes() = default;
  PinnedBytes(PinnedBytes&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  PinnedBytes& operator=(PinnedBytes&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  PinnedBytes(const PinnedBytes&) = delete;
  PinnedBytes& operator=(const PinnedBytes&) = delete;
  ~PinnedBytes();
  static Result<PinnedBytes> Create(int64_t bytes);

  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
};

}  // namespace fathom::cuda
