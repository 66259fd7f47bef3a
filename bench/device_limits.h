// The limits of the GPU behind --backend cuda: device_limits.cc is compiled with FATHOM_CUDA and
// device_limits_absent.cc without.
#pragma once

#include <memory>

#include "base/status.h"
#include "bench/limits.h"

namespace fathom::bench {

// Takes a quarter of the GPU's free memory at most, as DeviceProbes::Create. Its table has, beside
// reads and fp32, copies within the memory, products of the matrix unit and launches of kernels.
// `device` as the CUDA runtime counts. kUnimplemented in a build without the backend.
Result<std::unique_ptr<Limits>> MakeDeviceLimits(int device = 0);

}  // namespace fathom::bench
