#include "bench/device_limits.h"

namespace fathom::bench {

Result<std::unique_ptr<Limits>> MakeDeviceLimits(int) {
  return Unimplemented("--backend cuda: this build has no CUDA backend to measure");
}

}  // namespace fathom::bench
