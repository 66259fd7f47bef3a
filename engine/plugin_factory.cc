#include "engine/plugin_factory.h"

#include <utility>

#include "backend/plugin/plugin_backend.h"
#include "backend/plugin/plugin_library.h"

namespace fathom {
namespace {

Result<std::unique_ptr<PluginBackend>> Load(const std::string& path, Numerics numerics) {
  FATHOM_ASSIGN_OR_RETURN(const FathomBackendTable table, LoadPluginTable(path));
  Result<std::unique_ptr<PluginBackend>> backend = PluginBackend::Create(table, numerics);
  if (backend.ok()) return backend;
  return Status(backend.status().code(),
                "--backend-plugin " + path + ": " + backend.status().message());
}

// Whether operations take the pages of such a cache.
Status CheckCacheFormats(const PluginBackend& backend, const CacheDTypes& dtypes) {
  const CacheLayout layout({}, dtypes);
  const auto has = [&](CacheKind kind) { return backend.Holds(layout.Format(kind).encoding); };
  const auto lacks = [&](const char* option, CacheDType dtype) {
    return Unimplemented(std::string(option) + " " + std::string(CacheDTypeName(dtype)) + ": " +
                         std::string(backend.name()) + " does not have this format");
  };
  if (!has(CacheKind::kSwaKv)) return lacks("--kv-cache-dtype", dtypes.attention);
  if (!has(CacheKind::kC4IndexKeys)) return lacks("--indexer-cache-dtype", dtypes.indexer);
  return OkStatus();
}

Status CheckMemoryOptions(PluginBackend& backend, const LocalEngineOptions& o) {
  const std::string plugin(backend.name());
  if (backend.memory().host_readable()) {
    // vLLM's defaults, which its users write out: they ask for nothing special.
    const double share = o.cache_budget.device_share;
    if (share == 0.9 || share == CacheBudget{}.device_share) return OkStatus();
    return InvalidArgument("--gpu-memory-utilization: " + plugin +
                           " works in the host's memory; size the cache with "
                           "--kv-cache-memory-bytes or --kv-cache-memory-fraction");
  }
  if (o.weights != WeightsMode::kMmap) {
    return InvalidArgument("--weights " + std::string(WeightsModeName(o.weights)) + ": " + plugin +
                           " has a memory of its own, which weights are copied to in any case");
  }
  if (o.cache_budget.fraction != CacheBudget{}.fraction) {
    return InvalidArgument("--kv-cache-memory-fraction: a share of the host's memory, and " +
                           plugin +
                           " has its own; size the cache with --gpu-memory-utilization or "
                           "--kv-cache-memory-bytes");
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<Backend>> MakePluginBackend(const std::string& path, Numerics numerics) {
  FATHOM_ASSIGN_OR_RETURN(std::unique_ptr<PluginBackend> backend, Load(path, numerics));
  return std::unique_ptr<Backend>(std::move(backend));
}

Result<std::unique_ptr<Backend>> MakePluginBackend(const LocalEngineOptions& o) {
  const CacheDTypes dtypes = o.cache_dtypes.value_or(DefaultCacheDTypes(o.numerics));
  FATHOM_RETURN_IF_ERROR(CheckCacheDTypes(dtypes, o.numerics));
  FATHOM_ASSIGN_OR_RETURN(std::unique_ptr<PluginBackend> backend,
                          Load(o.backend_plugin, o.numerics));
  FATHOM_RETURN_IF_ERROR(CheckCacheFormats(*backend, dtypes));
  if (o.fp8_o_proj_inputs && !backend->HasFeature(FATHOM_FEATURE_E4M3_HEADS)) {
    return Unimplemented("--o-proj-activations fp8: " + std::string(backend->name()) +
                         " has bf16 ones only");
  }
  FATHOM_RETURN_IF_ERROR(CheckMemoryOptions(*backend, o));
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace fathom
