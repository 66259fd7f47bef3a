// The backends that compute on the host, in both numerics.
#include "backend/cpu/cpu_backend.h"
#include "backend/ops/test_backends.h"
#include "backend/reference/reference_backend.h"

namespace fathom {

std::vector<BackendCase> AllBackends() {
  const auto reference = [](Numerics numerics) -> std::unique_ptr<Backend> {
    return std::make_unique<ReferenceBackend>(numerics);
  };
  const auto cpu = [](Numerics numerics) -> std::unique_ptr<Backend> {
    return std::make_unique<CpuBackend>(numerics, /*num_threads=*/2);
  };
  return {
      {"reference_official", Numerics::kOfficial, reference, {}},
      {"reference_exact", Numerics::kExact, reference, {}},
      {"cpu_official", Numerics::kOfficial, cpu, {}},
      {"cpu_exact", Numerics::kExact, cpu, {}},
  };
}

}  // namespace fathom
