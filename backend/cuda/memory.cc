#include "backend/cuda/memory.h"

#include <cstring>
#include <string>

#include "backend/cuda/status.h"
#include "base/host_memory.h"

namespace fathom::cuda {

Status GpuMemory::CopyIn(std::byte* to, std::span<const std::byte> from) {
  if (from.empty()) return OkStatus();
  FATHOM_CUDA(cudaSetDevice(device_));
  FATHOM_CUDA(cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyDefault, stream_));
  FATHOM_CUDA(cudaStreamSynchronize(stream_));
  return OkStatus();
}

Status GpuMemory::CopyOut(std::span<std::byte> to, const std::byte* from) {
  if (to.empty()) return OkStatus();
  FATHOM_CUDA(cudaSetDevice(device_));
  FATHOM_CUDA(cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDefault, stream_));
  FATHOM_CUDA(cudaStreamSynchronize(stream_));
  return OkStatus();
}

Status GpuMemory::CopyWithin(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes <= 0) return OkStatus();
  FATHOM_CUDA(cudaSetDevice(device_));
  FATHOM_CUDA(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream_));
  return OkStatus();
}

Result<MemoryState> GpuMemory::State() const {
  FATHOM_CUDA(cudaSetDevice(device_));
  size_t free = 0, total = 0;
  FATHOM_CUDA(cudaMemGetInfo(&free, &total));
  cudaDeviceProp properties = {};
  FATHOM_CUDA(cudaGetDeviceProperties(&properties, device_));
  return MemoryState{"GPU " + std::to_string(device_) + " (" + properties.name + ")",
                     static_cast<int64_t>(total), static_cast<int64_t>(free)};
}

Result<std::byte*> GpuMemory::AllocateBytes(int64_t bytes) {
  FATHOM_CUDA(cudaSetDevice(device_));
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(bytes));
  if (error != cudaSuccess) {
    const std::string what =
        "GPU " + std::to_string(device_) + ": memory of " + std::to_string(bytes) + " bytes";
    return ToStatus(error, what.c_str());
  }
  return static_cast<std::byte*>(data);
}

void GpuMemory::FreeBytes(std::byte* data) {
  // Nobody could use an error here; a broken device tells it at the next operation.
  static_cast<void>(cudaSetDevice(device_));
  static_cast<void>(cudaFree(data));
}

Status PinnedMemory::CopyIn(std::byte* to, std::span<const std::byte> from) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
  return OkStatus();
}

Status PinnedMemory::CopyOut(std::span<std::byte> to, const std::byte* from) {
  if (!to.empty()) std::memcpy(to.data(), from, to.size());
  return OkStatus();
}

Status PinnedMemory::CopyWithin(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  return OkStatus();
}

Result<MemoryState> PinnedMemory::State() const {
  const HostMemory memory = ReadHostMemory();
  return MemoryState{"host memory", memory.total_bytes, memory.available_bytes};
}

Result<std::byte*> PinnedMemory::AllocateBytes(int64_t bytes) {
  FATHOM_CUDA(cudaSetDevice(device_));
  void* data = nullptr;
  const std::string what = "page-locked host memory of " + std::to_string(bytes) + " bytes";
  const cudaError_t error =
      cudaHostAlloc(&data, static_cast<size_t>(bytes), cudaHostAllocMapped | cudaHostAllocPortable);
  if (error != cudaSuccess) return ToStatus(error, what.c_str());
  void* seen = nullptr;
  const cudaError_t mapped = cudaHostGetDevicePointer(&seen, data, 0);
  if (mapped == cudaSuccess && seen == data) {
    auto* const begin = static_cast<std::byte*>(data);
    buffers_[begin] = bytes;
    return begin;
  }
  static_cast<void>(cudaFreeHost(data));
  if (mapped != cudaSuccess) return ToStatus(mapped, what.c_str());
  return Unimplemented(what + ": this GPU sees it at another address than the host");
}

std::span<const std::byte> PinnedMemory::BufferOf(const void* data) const {
  const auto* const at = static_cast<const std::byte*>(data);
  auto buffer = buffers_.upper_bound(at);
  if (buffer == buffers_.begin()) return {};
  --buffer;
  if (at - buffer->first >= buffer->second) return {};
  return {buffer->first, static_cast<size_t>(buffer->second)};
}

void PinnedMemory::FreeBytes(std::byte* data) {
  buffers_.erase(data);
  static_cast<void>(cudaSetDevice(device_));
  static_cast<void>(cudaFreeHost(data));
}

PinnedBytes::~PinnedBytes() {
  if (data_ != nullptr) static_cast<void>(cudaFreeHost(data_));
}

Result<PinnedBytes> PinnedBytes::Create(int64_t bytes) {
  void* data = nullptr;
  FATHOM_CUDA(cudaHostAlloc(&data, static_cast<size_t>(bytes), cudaHostAllocDefault));
  PinnedBytes pinned;
  pinned.data_ = static_cast<std::byte*>(data);
  return pinned;
}

}  // namespace fathom::cuda
