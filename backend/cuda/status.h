// Errors of the CUDA runtime as Status. Included by backend/cuda only; needs the CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>

#include "base/status.h"

namespace fathom::cuda {

// The call as written, the code's name and its meaning. kOutOfMemory for memory, kUnavailable where
// there is no driver or device, else kInternal.
Status ToStatus(cudaError_t error, const char* call);

// What the launch just before says. A fault while the kernel runs is told by a later call.
Status LaunchStatus(const char* kernel);

}  // namespace fathom::cuda

#define FATHOM_CUDA(call) FATHOM_RETURN_IF_ERROR(::fathom::cuda::ToStatus((call), #call))
