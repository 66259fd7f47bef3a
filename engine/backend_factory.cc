#include "backend/cpu/cpu_backend.h"
#include "backend/reference/reference_backend.h"
#include "base/parallel.h"
#include "engine/engine_core.h"

namespace fathom {

Result<std::unique_ptr<Backend>> MakeBackend(const std::string& name, Numerics numerics,
                                             int num_threads) {
  if (name == "cpu") {
    const int threads = num_threads > 0 ? num_threads : DefaultThreadCount();
    return std::unique_ptr<Backend>(new CpuBackend(numerics, threads));
  }
  if (name == "reference") return std::unique_ptr<Backend>(new ReferenceBackend(numerics));
  return InvalidArgument("backend '" + name + "': known backends are cpu and reference");
}

}  // namespace fathom
