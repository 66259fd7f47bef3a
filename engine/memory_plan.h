// MemoryPlan: what a model takes of a device and of the host beside it, before anything is loaded.
//
// The loader follows it (LocalModel::LoadModel) and `fathom plan --gpu` prints it, so that both say
// the same. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "backend/device_memory.h"
#include "base/status.h"
#include "checkpoint/config.h"
#include "model/weight_sizes.h"

namespace fathom {

// Routed experts that lie in memory of the host, for a device that reads them there.
struct ExpertOffload {
  bool asked = false;  // an option says so; else what a backend can do is done silently
  // At most so many bytes of them, in whole experts; absent: as many as it takes for the rest and
  // the wanted cache to fit on the device.
  std::optional<int64_t> bytes;
};

struct MemoryDemand {
  std::string_view backend;  // by name: what it takes for itself
  int max_rows = 0;          // as Model::Create
  int64_t max_positions = 0;
  // Of the cache: what experts make room for, and without which there is no point in loading.
  int64_t cache_bytes = 0;
  int64_t least_cache_bytes = 0;
  ExpertOffload offload;
  bool counts_experts = false;  // Model::CountExpertUse
};

struct MemoryBudget {
  MemoryState device;
  int64_t usable_bytes = 0;  // of its free ones: what experts have to leave room in
  // What must be enough in the end; more than usable_bytes where the user gave the cache its size.
  int64_t limit_bytes = 0;
  bool has_pinned_memory = false;     // the backend reads memory of the host
  std::optional<int64_t> host_bytes;  // of it; absent where the system does not say
};

struct MemoryPlan {
  WeightSizes weights;
  int64_t num_host_experts = 0;
  int64_t device_weight_bytes = 0;
  int64_t host_weight_bytes = 0;
  int64_t step_bytes = 0;  // on the device: activations, tables, scratch, staging
  int64_t cache_bytes =
      0;  // what the budget's usable bytes have left; below 0 where they have none

  [[nodiscard]] int64_t num_device_experts() const {
    return weights.num_experts - num_host_experts;
  }
};

// What a backend allocates in its own memory for runs within the limits, buffer by buffer, and what
// the device rounds each buffer up to. Known for "cuda"; others take nothing.
struct BackendBuffers {
  std::vector<int64_t> bytes;
  int64_t granularity = 4096;
};
BackendBuffers BackendBuffersFor(std::string_view backend, const BackendLimits& limits);

// The same whether or not it fits; never more experts in host memory than there are.
MemoryPlan LayOutMemory(const ModelConfig& config, const MemoryDemand& demand,
                        const MemoryBudget& budget);
// kOutOfMemory, with the sizes and what would help, where the device has no room for weights, step
// and the least cache, or the host none for the experts.
Result<MemoryPlan> PlanMemory(const ModelConfig& config, const MemoryDemand& demand,
                              const MemoryBudget& budget);

}  // namespace fathom
