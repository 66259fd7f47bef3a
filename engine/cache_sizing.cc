#include "engine/cache_sizing.h"

#include <algorithm>

#include "base/host_memory.h"
#include "cache/block_pool.h"
#include "engine/sequence_runner.h"

namespace fathom {

Result<CachePlanner> PlannerFor(const ModelConfig& config, Numerics numerics,
                                const std::optional<CacheDTypes>& dtypes) {
  const CacheDTypes chosen = dtypes.value_or(DefaultCacheDTypes(numerics));
  FATHOM_RETURN_IF_ERROR(CheckCacheDTypes(chosen, numerics));
  return CachePlanner(CacheLayout(CacheGeometryOf(config), chosen));
}

int64_t FreeHostMemory() { return ReadHostMemory().available_bytes; }

Result<int64_t> HostCacheBytes(const CacheBudget& budget, int64_t free_memory) {
  if (budget.bytes < 0 || !(budget.fraction > 0.0 && budget.fraction <= 1.0)) {
    return InvalidArgument(
        "kv-cache-memory-bytes must not be negative, and a fraction of memory "
        "lies in (0, 1]");
  }
  int64_t bytes = budget.bytes;
  if (bytes == 0) {
    bytes = static_cast<int64_t>(static_cast<double>(free_memory) * budget.fraction);
    if (free_memory == 0) {
      return InvalidArgument(
          "this system does not say how much memory is free; give --kv-cache-memory-bytes");
    }
  }
  // Address space alone would be lent for much more, and the machine would stop when it is used.
  if (const int64_t machine = ReadHostMemory().total_bytes; machine > 0 && bytes > machine) {
    return InvalidArgument("kv-cache-memory-bytes " + std::to_string(bytes) +
                           " is more than this machine's memory of " + std::to_string(machine));
  }
  return bytes;
}

Status CheckDeviceBudget(const CacheBudget& budget) {
  if (budget.bytes >= 0 && budget.device_share > 0.0 && budget.device_share <= 1.0) {
    return OkStatus();
  }
  return InvalidArgument(
      "kv-cache-memory-bytes must not be negative, and gpu-memory-utilization lies in (0, 1]");
}

int64_t UsableDeviceBytes(const CacheBudget& budget, const MemoryState& device) {
  const auto share =
      static_cast<int64_t>(static_cast<double>(device.total_bytes) * budget.device_share);
  return share - (device.total_bytes - device.free_bytes);
}

Result<int64_t> DeviceCacheBytes(const CacheBudget& budget, const MemoryState& device) {
  FATHOM_RETURN_IF_ERROR(CheckDeviceBudget(budget));
  const std::string sizes = device.name + " has " + std::to_string(device.free_bytes) + " of " +
                            std::to_string(device.total_bytes) +
                            " bytes free behind weights and activations";
  if (budget.bytes > device.free_bytes) {
    return InvalidArgument("kv-cache-memory-bytes " + std::to_string(budget.bytes) +
                           " does not fit: " + sizes);
  }
  if (budget.bytes > 0) return budget.bytes;
  const int64_t bytes = UsableDeviceBytes(budget, device);
  if (bytes <= 0) {
    const int64_t usable = bytes + device.total_bytes - device.free_bytes;
    return InvalidArgument("--gpu-memory-utilization leaves nothing for the cache: " +
                           std::to_string(usable) + " bytes may be used, and " + sizes +
                           "; raise it, lower --max-num-batched-tokens, or end other programs that "
                           "use the device");
  }
  return bytes;
}

Result<CacheSize> SizeCache(const CachePlanner& planner, int64_t bytes, int64_t wanted_len,
                            int64_t model_len, int max_sequences, bool prefix_caching) {
  CacheSize size;
  size.num_slabs = std::min(bytes / planner.slab_bytes(), BlockPool::MaxSlabs(planner));
  const int64_t available = size.num_slabs * planner.slab_bytes();
  const int64_t asked = wanted_len > 0 ? wanted_len : model_len;
  const int64_t fits = planner.MaxLength(1, available, asked);
  const std::string amounts = "a sequence of " + std::to_string(asked) +
                              " tokens: " + std::to_string(planner.BytesFor(1, asked)) +
                              " bytes of cache needed, " + std::to_string(bytes) +
                              " available, of which " + std::to_string(available) +
                              " in whole slabs; what fits is " + std::to_string(fits) + " tokens";
  if (fits < 2 || (wanted_len > 0 && fits < wanted_len)) {
    return InvalidArgument((wanted_len > 0 ? "max-model-len: " : "cache memory: ") + amounts +
                           (fits < 2 ? " (raise --kv-cache-memory-bytes, to at least " +
                                           std::to_string(planner.BytesFor(1, 2)) + ")"
                                     : std::string(" (lower --max-model-len or raise "
                                                   "--kv-cache-memory-bytes)")));
  }
  size.max_model_len = std::min(asked, fits);
  if (fits < asked) {
    size.note = amounts + ", so the maximum length is lowered to " + std::to_string(fits) +
                " (raise --kv-cache-memory-bytes for more)";
  }
  if (!prefix_caching) {
    size.num_slabs = std::min(
        size.num_slabs, planner.BytesFor(max_sequences, size.max_model_len) / planner.slab_bytes());
  }
  size.slab_bytes = planner.slab_bytes();
  size.num_sequences =
      planner.MaxSequences(size.max_model_len, size.num_slabs * planner.slab_bytes());
  return size;
}

}  // namespace fathom
