// The CUDA runtime that backend/cuda calls, over the host's memory: one device, one stream, and
// nothing under way when a call returns.
#include <cuda_runtime_api.h>
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "backend/cuda/emulation/recording.h"

namespace {

constexpr size_t kDeviceBytes = size_t{8} << 30;
size_t bytes_in_use = 0;

cudaError_t Allocate(void** data, size_t bytes) {
  constexpr size_t kAlignment = 256;
  if (bytes > kDeviceBytes - bytes_in_use) return cudaErrorMemoryAllocation;
  *data = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (*data == nullptr) return cudaErrorMemoryAllocation;
  bytes_in_use += malloc_usable_size(*data);
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
  *free_bytes = kDeviceBytes - bytes_in_use;
  *total_bytes = kDeviceBytes;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** data, size_t bytes) { return Allocate(data, bytes); }
cudaError_t cudaFree(void* data) {
  bytes_in_use -= malloc_usable_size(data);  // 0 for nullptr
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned /*flags*/) {
  return Allocate(data, bytes);
}
cudaError_t cudaFreeHost(void* data) { return cudaFree(data); }
cudaError_t cudaHostRegister(void* /*data*/, size_t /*bytes*/, unsigned /*flags*/) {
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned /*flags*/) {
  *device = host;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind /*kind*/,
                            cudaStream_t /*stream*/) {
  fathom::emulation::RunOrRecord([=] {
    if (bytes > 0) std::memmove(to, from, bytes);
  });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t /*stream*/) {
  fathom::emulation::RunOrRecord([=] { std::memset(data, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  *stream = nullptr;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t /*stream*/) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t /*stream*/) {
  return fathom::emulation::Recording() ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  *event = nullptr;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t /*event*/) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t /*event*/, cudaStream_t /*stream*/) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t /*stream*/, cudaEvent_t /*event*/,
                                unsigned /*flags*/) {
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t /*event*/) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "emulated error";
}

}  // extern "C"
