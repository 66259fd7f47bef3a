// Kernel launches, and the shared memory of a launch. The emulation has its own version.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

#include "backend/cuda/status.h"

namespace fathom::cuda {

// kernel(args...) on `stream`; `shared_bytes` are what SharedMemory() has. LaunchStatus (status.h)
// says whether it could be launched.
template <typename... Parameters, typename... Args>
void Launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
            cudaStream_t stream, Args&&... args) {
  kernel<<<grid, block, shared_bytes, stream>>>(std::forward<Args>(args)...);
}

// Lets launches of a kernel have more shared memory than the 48 KiB that all may have; nothing to
// do for less, which is most launches.
template <typename... Parameters>
Status AllowSharedMemory(void (*kernel)(Parameters...), size_t bytes) {
  if (bytes <= size_t{48} << 10) return OkStatus();
  FATHOM_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(bytes)));
  return OkStatus();
}

// The block's dynamic shared memory, 16-byte aligned.
template <typename T>
__device__ T* SharedMemory() {
  extern __shared__ uint4 shared_memory[];
  return reinterpret_cast<T*>(shared_memory);
}

}  // namespace fathom::cuda
