// DeviceMemory: where a backend's operations find their operands, and how bytes get there.
//
// Whoever owns weights, activations or cache pages takes one buffer per purpose at start
// (Backend::memory()), lays its views out in it and copies what the host has. Operations never
// allocate from it. Buffers of one memory are used by one thread at a time and do not outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/status.h"

namespace fathom {

class DeviceMemory;

// One piece of memory, given back at the end of its life. Content is unspecified at first.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : owner_(std::exchange(other.owner_, nullptr)),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() { Free(); }

  // An address for operations; only DeviceMemory::CopyIn and CopyOut may be sure to reach it from
  // the host.
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] int64_t bytes() const { return bytes_; }

 private:
  friend class DeviceMemory;
  DeviceBuffer(DeviceMemory* owner, std::byte* data, int64_t bytes)
      : owner_(owner), data_(data), bytes_(bytes) {}
  void Free();

  DeviceMemory* owner_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// How much memory there is, for whoever sizes buffers and tells the user.
struct MemoryState {
  std::string name;  // "host memory", "GPU 0 (NVIDIA H200)"
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;  // now; what other processes take counts
};

class DeviceMemory {
 public:
  static constexpr int64_t kAlignment = 256;

  DeviceMemory() = default;
  virtual ~DeviceMemory() = default;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // At least one byte, aligned to kAlignment. kOutOfMemory when it cannot be had.
  Result<DeviceBuffer> Allocate(int64_t bytes);

  // Copies to and from addresses inside buffers, after all operations called before. The host's
  // bytes may be used again when the call returns.
  virtual Status CopyIn(std::byte* to, std::span<const std::byte> from) = 0;
  virtual Status CopyOut(std::span<std::byte> to, const std::byte* from) = 0;
  // Copies between two places inside buffers that do not overlap, in the order of operations; may
  // return before it is done.
  virtual Status CopyWithin(std::byte* to, const std::byte* from, int64_t bytes) = 0;

  // Whether the host may use the addresses as its own. Then there is nothing to copy: what the host
  // has can be an operand where it is.
  [[nodiscard]] virtual bool host_readable() const = 0;
  [[nodiscard]] virtual Result<MemoryState> State() const = 0;

 protected:
  virtual Result<std::byte*> AllocateBytes(int64_t bytes) = 0;
  virtual void FreeBytes(std::byte* data) = 0;

 private:
  friend class DeviceBuffer;
};

// Ordinary memory of the process, for backends that compute on the host.
class HostDeviceMemory final : public DeviceMemory {
 public:
  Status CopyIn(std::byte* to, std::span<const std::byte> from) override;
  Status CopyOut(std::span<std::byte> to, const std::byte* from) override;
  Status CopyWithin(std::byte* to, const std::byte* from, int64_t bytes) override;
  [[nodiscard]] bool host_readable() const override { return true; }
  [[nodiscard]] Result<MemoryState> State() const override;

 protected:
  Result<std::byte*> AllocateBytes(int64_t bytes) override;
  void FreeBytes(std::byte* data) override;
};

}  // namespace fathom
