#include "bench/make_limits.h"

#include <utility>

#include "bench/device_limits.h"
#include "bench/machine_limits.h"

namespace fathom::bench {

Result<std::unique_ptr<Limits>> MakeLimits(bool on_host, int threads, int cuda_device) {
  if (!on_host) return MakeDeviceLimits(cuda_device);
  FATHOM_ASSIGN_OR_RETURN(std::unique_ptr<MachineLimits> limits, MachineLimits::Create(threads));
  return std::unique_ptr<Limits>(std::move(limits));
}

}  // namespace fathom::bench
