// Launches into the queues of emulated streams (../../../../launch.cuh).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdlib>
#include <tuple>

#include "backend/cuda/emulation/block.h"
#include "backend/cuda/emulation/streams.h"
#include "backend/cuda/status.h"

namespace fathom::cuda {

template <typename... Parameters, typename... Args>
void Launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
            cudaStream_t stream, Args&&... args) {
  const std::tuple<Parameters...> values(args...);
  const auto run = [=] {
    emulation::RunGrid({grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared_bytes,
                       [&] { std::apply(kernel, values); });
  };
  if (emulation::Enqueue(stream, run) != cudaSuccess) std::abort();  // no stream
}

template <typename... Parameters>
Status AllowSharedMemory(void (* /*kernel*/)(Parameters...), size_t /*bytes*/) {
  return OkStatus();
}

template <typename T>
T* SharedMemory() {
  return reinterpret_cast<T*>(emulation::SharedBytes());
}

}  // namespace fathom::cuda
