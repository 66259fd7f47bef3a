// The CUDA runtime that backend/cuda calls, over the host's memory: one device, its memory, copies.
// streams.cc has the rest of it.
#include <cuda_runtime_api.h>
#include <malloc.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/cuda/emulation/streams.h"

namespace {

using fathom::emulation::Enqueue;
using fathom::emulation::IsCaptured;

constexpr size_t kDeviceBytes = size_t{8} << 30;

// Ranges that copies go to and from without waiting.
struct Memory {
  std::mutex mutex;  // guards everything
  size_t bytes_in_use = 0;
  std::map<const std::byte*, size_t> ranges;
};

Memory& TheMemory() {
  static Memory* const memory = new Memory;
  return *memory;
}

// Whether the host's pages there are the system's to move: neither allocated nor registered.
bool IsPageable(const void* data) {
  Memory& memory = TheMemory();
  const std::lock_guard lock(memory.mutex);
  const auto* const at = static_cast<const std::byte*>(data);
  auto range = memory.ranges.upper_bound(at);
  if (range == memory.ranges.begin()) return true;
  --range;
  return static_cast<size_t>(at - range->first) >= range->second;
}

cudaError_t Allocate(void** data, size_t bytes) {
  constexpr size_t kAlignment = 256;
  Memory& memory = TheMemory();
  const std::lock_guard lock(memory.mutex);
  if (bytes > kDeviceBytes - memory.bytes_in_use) return cudaErrorMemoryAllocation;
  *data = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (*data == nullptr) return cudaErrorMemoryAllocation;
  memory.bytes_in_use += malloc_usable_size(*data);
  memory.ranges[static_cast<const std::byte*>(*data)] = bytes;
  // As after other programs: nothing that a test would take for zeros.
  std::memset(*data, 0xFE, std::min(bytes, size_t{64} << 20));
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr /*attribute*/, int /*device*/) {
  *value = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  *properties = {};
  std::strcpy(properties->name, "emulation");
  properties->major = 9;
  properties->totalGlobalMem = kDeviceBytes;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  const std::lock_guard lock(TheMemory().mutex);
  *free_bytes = kDeviceBytes - TheMemory().bytes_in_use;
  *total_bytes = kDeviceBytes;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** data, size_t bytes) { return Allocate(data, bytes); }
cudaError_t cudaFree(void* data) {
  if (data == nullptr) return cudaSuccess;
  static_cast<void>(cudaDeviceSynchronize());
  Memory& memory = TheMemory();
  const std::lock_guard lock(memory.mutex);
  memory.bytes_in_use -= malloc_usable_size(data);
  memory.ranges.erase(static_cast<const std::byte*>(data));
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned /*flags*/) {
  return Allocate(data, bytes);
}
cudaError_t cudaFreeHost(void* data) { return cudaFree(data); }
cudaError_t cudaHostRegister(void* data, size_t bytes, unsigned /*flags*/) {
  const std::lock_guard lock(TheMemory().mutex);
  TheMemory().ranges[static_cast<const std::byte*>(data)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned /*flags*/) {
  *device = host;
  return cudaSuccess;
}
// Pageable bytes are read at the call and written before it returns; a capture keeps where they
// are.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind /*kind*/,
                            cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  const bool captured = IsCaptured(stream);
  cudaError_t error = cudaSuccess;
  if (captured || !IsPageable(from)) {
    error = Enqueue(stream, [=] { std::memmove(to, from, bytes); });
  } else {
    const auto* const begin = static_cast<const std::byte*>(from);
    const auto staged = std::make_shared<const std::vector<std::byte>>(begin, begin + bytes);
    error = Enqueue(stream, [=] { std::memcpy(to, staged->data(), bytes); });
  }
  if (error != cudaSuccess || captured || !IsPageable(to)) return error;
  return cudaStreamSynchronize(stream);
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  return Enqueue(stream, [=] { std::memset(data, value, bytes); });
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "emulated error";
}

}  // extern "C"
