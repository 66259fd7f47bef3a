// The limits of what a backend computes on.
#pragma once

#include <memory>

#include "base/status.h"
#include "bench/limits.h"

namespace fathom::bench {

// Of the host with `threads` threads (MachineLimits), or of that GPU (MakeDeviceLimits).
Result<std::unique_ptr<Limits>> MakeLimits(bool on_host, int threads, int cuda_device);

}  // namespace fathom::bench
