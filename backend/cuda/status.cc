#include "backend/cuda/status.h"

#include <string>

namespace fathom::cuda {

Status ToStatus(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return OkStatus();
  // Errors of a call are kept until they are read once; those of the device stay.
  static_cast<void>(cudaGetLastError());
  const std::string message =
      std::string(call) + ": " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error);
  switch (error) {
    case cudaErrorMemoryAllocation:
      return OutOfMemory(message);
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInitializationError:
    case cudaErrorDevicesUnavailable:
      return Unavailable(message);
    default:
      return Internal(message);
  }
}

Status LaunchStatus(const char* kernel) { return ToStatus(cudaGetLastError(), kernel); }

}  // namespace fathom::cuda
