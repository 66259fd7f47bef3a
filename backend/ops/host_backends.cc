// The backends that compute on the host, in both numerics. The example plug-in is one of them: it
// tests the table of operations, and the table's users have a right example. In its place their own
// can be tested, which FATHOM_TEST_PLUGIN names.
#include <cstdlib>

#include "backend/cpu/cpu_backend.h"
#include "backend/ops/test_backends.h"
#include "backend/plugin/plugin_backend.h"
#include "backend/plugin/plugin_library.h"
#include "backend/reference/reference_backend.h"

namespace fathom {

std::vector<BackendCase> AllBackends() {
  const auto reference = [](Numerics numerics) -> std::unique_ptr<Backend> {
    return std::make_unique<ReferenceBackend>(numerics);
  };
  const auto cpu = [](Numerics numerics) -> std::unique_ptr<Backend> {
    return std::make_unique<CpuBackend>(numerics, /*num_threads=*/2);
  };
  const auto plugin = [](Numerics numerics) -> std::unique_ptr<Backend> {
    const char* const named = std::getenv("FATHOM_TEST_PLUGIN");
    const char* const example = FATHOM_BINARY_DIR "/plugins/libexample_backend.so";
    const FathomBackendTable table = LoadPluginTable(named == nullptr ? example : named).value();
    return PluginBackend::Create(table, numerics).value();
  };
  return {
      {"reference_official", Numerics::kOfficial, reference, {}},
      {"reference_exact", Numerics::kExact, reference, {}},
      {"cpu_official", Numerics::kOfficial, cpu, {}},
      {"cpu_exact", Numerics::kExact, cpu, {}},
      {"plugin_official", Numerics::kOfficial, plugin, {}},
      {"plugin_exact", Numerics::kExact, plugin, {}},
  };
}

}  // namespace fathom
