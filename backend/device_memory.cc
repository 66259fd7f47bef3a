#include "backend/device_memory.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include "base/host_memory.h"

namespace fathom {

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  if (this != &other) {
    Free();
    owner_ = std::exchange(other.owner_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

void DeviceBuffer::Free() {
  if (data_ != nullptr) owner_->FreeBytes(data_);
  data_ = nullptr;
}

Result<DeviceBuffer> DeviceMemory::Allocate(int64_t bytes) {
  if (bytes < 1) {
    return InvalidArgument("memory of " + std::to_string(bytes) + " bytes: at least 1 is needed");
  }
  FATHOM_ASSIGN_OR_RETURN(std::byte* const data, AllocateBytes(bytes));
  return DeviceBuffer(this, data, bytes);
}

Status HostDeviceMemory::CopyIn(std::byte* to, std::span<const std::byte> from) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
  return OkStatus();
}

Status HostDeviceMemory::CopyOut(std::span<std::byte> to, const std::byte* from) {
  if (!to.empty()) std::memcpy(to.data(), from, to.size());
  return OkStatus();
}

Status HostDeviceMemory::CopyWithin(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  return OkStatus();
}

Result<MemoryState> HostDeviceMemory::State() const {
  const HostMemory memory = ReadHostMemory();
  return MemoryState{"host memory", memory.total_bytes, memory.available_bytes};
}

Result<std::byte*> HostDeviceMemory::AllocateBytes(int64_t bytes) {
  constexpr int64_t kAddresses = int64_t{1} << 47;  // of a process; more cannot be padded either
  std::byte* data = nullptr;
  if (bytes <= kAddresses) {
    const int64_t padded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    data = static_cast<std::byte*>(
        std::aligned_alloc(static_cast<size_t>(kAlignment), static_cast<size_t>(padded)));
  }
  if (data == nullptr) return OutOfMemory("host memory of " + std::to_string(bytes) + " bytes");
  return data;
}

void HostDeviceMemory::FreeBytes(std::byte* data) { std::free(data); }

}  // namespace fathom
