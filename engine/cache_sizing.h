// Cache sizing: how much memory the cache gets at load, and how long sequences may be in it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "backend/device_memory.h"
#include "base/status.h"
#include "cache/planner.h"
#include "checkpoint/config.h"

namespace fathom {

// Bytes and blocks of a model's cache, without MTP blocks; `dtypes` absent: what goes with the
// numerics. kInvalidArgument for formats that do not.
Result<CachePlanner> PlannerFor(const ModelConfig& config, Numerics numerics,
                                const std::optional<CacheDTypes>& dtypes);

struct CacheBudget {
  int64_t bytes = 0;       // 0: one of the shares
  double fraction = 0.25;  // (0, 1], of the host's free memory
  // (0, 1], of all of a device's memory: what the cache may fill it to, weights and scratch
  // included.
  double device_share = 0.92;
};

struct CacheSize {
  int64_t num_slabs = 0;
  int64_t slab_bytes = 0;
  int64_t max_model_len = 0;  // tokens of one sequence
  int64_t num_sequences = 0;  // of that length that fit together, whatever they do
  std::string note;           // what start-up says where the length is not the model's; else empty
};

// Memory that this process can have (base/host_memory.h); 0 when the system does not say.
int64_t FreeHostMemory();

// The bytes that a budget means on the host, of which `free_memory` is free. kInvalidArgument when
// the machine has less, or does not say.
Result<int64_t> HostCacheBytes(const CacheBudget& budget, int64_t free_memory);
// kInvalidArgument for a budget that no device could have.
Status CheckDeviceBudget(const CacheBudget& budget);
// What the budget's share lets a device's free memory be filled with; 0 or less: nothing.
int64_t UsableDeviceBytes(const CacheBudget& budget, const MemoryState& device);
// The same on a device that holds all but the cache. kInvalidArgument when that leaves nothing.
Result<int64_t> DeviceCacheBytes(const CacheBudget& budget, const MemoryState& device);

// Memory for at least one sequence of the longest length out of `bytes`. `wanted_len` is what the
// user asked for: kInvalidArgument, with what would fit, when it does not. 0: `model_len`, lowered
// to what fits. The number of slabs is never more than `max_sequences` of that length can use,
// unless prefixes are cached.
Result<CacheSize> SizeCache(const CachePlanner& planner, int64_t bytes, int64_t wanted_len,
                            int64_t model_len, int max_sequences, bool prefix_caching);

}  // namespace fathom
