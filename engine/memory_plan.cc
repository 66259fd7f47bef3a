#include "engine/memory_plan.h"

#include <algorithm>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/scratch.h"
#include "base/host_memory.h"
#include "model/model.h"

namespace fathom {
namespace {

int64_t RoundUp(int64_t bytes, int64_t granularity) {
  return (bytes + granularity - 1) / granularity * granularity;
}

std::string Gb(int64_t bytes) {
  return bytes < 0 ? "-" + Gigabytes(static_cast<uint64_t>(-bytes))
                   : Gigabytes(static_cast<uint64_t>(bytes));
}

// How many experts the device has no room for, beside everything else and the cache.
int64_t ExpertsWithoutRoom(const MemoryPlan& plan, int64_t cache_bytes, int64_t granularity,
                           int64_t usable_bytes) {
  const int64_t expert = plan.weights.expert_bytes;
  if (expert == 0) return 0;  // too narrow for an fp4 group
  // The buffer of weights is rounded up: with one grain less it still fits.
  const int64_t room =
      usable_bytes - plan.step_bytes - cache_bytes - plan.weights.fixed_bytes - (granularity - 1);
  return plan.weights.num_experts - std::clamp<int64_t>(room / expert, 0, plan.weights.num_experts);
}

}  // namespace

BackendBuffers BackendBuffersFor(std::string_view backend, const BackendLimits& limits) {
  if (backend != "cuda") return {};
  // A half in whole multiples of the alignment, as StagingRing takes it.
  const auto ring = [](int64_t bytes) {
    constexpr int64_t kAlignment = DeviceMemory::kAlignment;
    return bytes / 2 / kAlignment * kAlignment;
  };
  const CudaOptions options;
  cuda::Scratch scratch;
  BackendBuffers buffers;
  buffers.bytes = {ring(options.operand_bytes), ring(options.plan_bytes),
                   cuda::LayOutScratch(limits, options, nullptr, scratch).bytes()};
  buffers.granularity = int64_t{2} << 20;  // of cudaMalloc
  return buffers;
}

MemoryPlan LayOutMemory(const ModelConfig& config, const MemoryDemand& demand,
                        const MemoryBudget& budget) {
  std::vector<int64_t> model_buffers = Model::DeviceBuffers(config, demand.max_rows);
  if (demand.counts_experts) {
    model_buffers.push_back(int64_t{config.num_layers} * demand.max_rows *
                            config.num_experts_per_token * int64_t{sizeof(int32_t)});
  }
  MemoryPlan plan;
  plan.weights = WeightSizesOf(config);
  int64_t granularity = 1;
  const auto set_step_bytes = [&](const BackendLimits& limits) {
    const BackendBuffers own = BackendBuffersFor(demand.backend, limits);
    granularity = own.granularity;
    plan.step_bytes = 0;
    for (const int64_t bytes : model_buffers) plan.step_bytes += RoundUp(bytes, granularity);
    for (const int64_t bytes : own.bytes) plan.step_bytes += RoundUp(bytes, granularity);
  };

  const int64_t expert = plan.weights.expert_bytes;
  if (demand.offload.bytes) {
    plan.num_host_experts = expert == 0 ? 0
                                        : std::clamp<int64_t>(*demand.offload.bytes / expert, 0,
                                                              plan.weights.num_experts);
    set_step_bytes(
        BackendLimitsFor(config, demand.max_rows, demand.max_positions, plan.num_host_experts));
  } else {
    // The backend may take room on the device for experts that come from the host, as many as a
    // layer has there: the more are outside, the fewer have room. The least number of a layer that
    // is enough; with one less, more would have to leave than all layers give. So it is what
    // BackendLimitsFor makes of num_host_experts.
    BackendLimits limits = BackendLimitsFor(config, demand.max_rows, demand.max_positions);
    limits.host_expert_bytes = expert;
    for (;; ++limits.host_experts_per_layer) {
      set_step_bytes(limits);
      if (!budget.has_pinned_memory) break;
      plan.num_host_experts =
          ExpertsWithoutRoom(plan, demand.cache_bytes, granularity, budget.usable_bytes);
      if (plan.num_host_experts <= int64_t{limits.host_experts_per_layer} * config.num_layers) {
        break;
      }
    }
  }
  plan.host_weight_bytes = plan.num_host_experts * expert;
  plan.device_weight_bytes = RoundUp(plan.weights.total() - plan.host_weight_bytes, granularity);
  plan.cache_bytes = budget.usable_bytes - plan.device_weight_bytes - plan.step_bytes;
  return plan;
}

Result<MemoryPlan> PlanMemory(const ModelConfig& config, const MemoryDemand& demand,
                              const MemoryBudget& budget) {
  const MemoryPlan plan = LayOutMemory(config, demand, budget);
  const std::string experts = std::to_string(plan.num_host_experts) + " of " +
                              std::to_string(plan.weights.num_experts) + " routed experts";
  const int64_t needed = plan.device_weight_bytes + plan.step_bytes + demand.least_cache_bytes;
  if (needed > budget.limit_bytes) {
    std::string message = budget.device.name + " has " + Gb(budget.device.free_bytes) + " of " +
                          Gb(budget.device.total_bytes) + " free";
    if (budget.limit_bytes < budget.device.free_bytes) {
      message += ", of which --gpu-memory-utilization lets " + Gb(budget.limit_bytes) + " be used";
    }
    message += "; the weights take " + Gb(plan.device_weight_bytes) + " of it";
    if (plan.num_host_experts > 0) message += " (" + experts + " are in host memory)";
    message += ", steps of " + std::to_string(demand.max_rows) + " tokens " + Gb(plan.step_bytes) +
               ", and the cache needs at least " + Gb(demand.least_cache_bytes) +
               "; end other programs that use it, lower --kv-cache-memory-bytes, --max-model-len "
               "or --max-num-batched-tokens";
    if (budget.has_pinned_memory && plan.num_device_experts() > 0) {
      message += ", raise --expert-offload or leave it out";
    }
    return OutOfMemory(message + ", take a smaller model, or compute with --backend cpu");
  }
  if (budget.host_bytes && plan.host_weight_bytes > *budget.host_bytes) {
    return OutOfMemory("--expert-offload: " + experts + " take " + Gb(plan.host_weight_bytes) +
                       " of host memory, and " + Gb(*budget.host_bytes) + " is available" +
                       (demand.offload.bytes
                            ? std::string("; lower it")
                            : "; the device has no room for them beside a cache of " +
                                  Gb(demand.cache_bytes) +
                                  ": lower --kv-cache-memory-bytes or --max-model-len"));
  }
  return plan;
}

}  // namespace fathom
