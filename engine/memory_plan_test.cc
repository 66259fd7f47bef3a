// The plan of a device's memory: properties over random sizes, and the published models on a card.
#include "engine/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/mapped_file.h"
#include "model/model.h"

namespace fathom {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;

ModelConfig Preset(const std::string& name) {
  const std::string path = std::string(FATHOM_SOURCE_DIR) + "/models/presets/" + name + ".json";
  Result<MappedFile> file = MappedFile::Open(path);
  EXPECT_TRUE(file.ok()) << path;
  return ParseModelConfig(
             {reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()}, path)
      .value();
}

MemoryBudget Budget(int64_t bytes) {
  MemoryBudget budget;
  budget.device = {"a card", bytes, bytes};
  budget.usable_bytes = budget.limit_bytes = bytes;
  budget.has_pinned_memory = true;
  return budget;
}

MemoryDemand Demand(int64_t cache_bytes) {
  MemoryDemand demand;
  demand.backend = "cuda";
  demand.max_rows = 512;
  demand.max_positions = 65536;
  demand.cache_bytes = demand.least_cache_bytes = cache_bytes;
  return demand;
}

int64_t OnDevice(const MemoryPlan& plan) { return plan.device_weight_bytes + plan.step_bytes; }

TEST(MemoryPlan, AutomaticPlacementNeverExceedsAndLeavesNoExpertOutsideThatHasRoom) {
  std::mt19937_64 random(5);
  const ModelConfig flash = Preset("flash"), tiny = Preset("tiny");
  for (int round = 0; round < 200; ++round) {
    const bool large = round % 2 == 0;
    const ModelConfig& config = large ? flash : tiny;
    const int64_t whole = WeightSizesOf(config).total() + (int64_t{1} << 30);
    const auto pick = [&](int64_t most) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(most));
    };
    MemoryDemand demand = Demand(pick(whole / 4));
    if (round % 3 == 0) demand.max_rows = 4096;  // experts of the host are brought to the device
    const MemoryBudget budget = Budget(pick(2 * whole));
    const Result<MemoryPlan> plan = PlanMemory(config, demand, budget);
    const MemoryPlan out = LayOutMemory(config, demand, budget);
    EXPECT_EQ(out.weights.total(),
              out.weights.fixed_bytes + out.weights.num_experts * out.weights.expert_bytes);
    if (!plan.ok()) {
      // Even without any expert.
      EXPECT_EQ(out.num_device_experts(), 0);
      EXPECT_GT(OnDevice(out) + demand.cache_bytes, budget.limit_bytes);
      continue;
    }
    EXPECT_LE(OnDevice(*plan) + demand.cache_bytes, budget.usable_bytes);
    EXPECT_GE(plan->cache_bytes, demand.cache_bytes);
    if (plan->num_host_experts > 0) {
      // With one expert more, but for the rounding of weights and scratch, the cache would not fit.
      EXPECT_LT(plan->cache_bytes - plan->weights.expert_bytes - (int64_t{6} << 20),
                demand.cache_bytes);
    }
    // The same again; and with more memory never more outside.
    EXPECT_EQ(PlanMemory(config, demand, budget)->num_host_experts, plan->num_host_experts);
    const MemoryBudget more = Budget(budget.usable_bytes + pick(whole));
    EXPECT_LE(PlanMemory(config, demand, more)->num_host_experts, plan->num_host_experts);
    MemoryDemand larger = demand;
    larger.cache_bytes += pick(whole);
    EXPECT_GE(LayOutMemory(config, larger, budget).num_host_experts, plan->num_host_experts);
  }
}

// The backend's own buffers for experts that come from the host are in the plan, whether it chose
// their number or was given it.
TEST(MemoryPlan, LongStepsLeaveRoomForTheHostsExpertsOfALayer) {
  const ModelConfig flash = Preset("flash");
  const auto own = [&](const MemoryDemand& demand, int64_t num_host_experts) {
    const BackendBuffers buffers = BackendBuffersFor(
        "cuda", BackendLimitsFor(flash, demand.max_rows, demand.max_positions, num_host_experts));
    int64_t sum = 0;
    for (const int64_t bytes : buffers.bytes) {
      sum += (bytes + buffers.granularity - 1) / buffers.granularity * buffers.granularity;
    }
    return sum;
  };
  for (const int rows : {512, 4096}) {
    MemoryDemand demand = Demand(kGiB);
    demand.max_rows = rows;
    const MemoryPlan none = LayOutMemory(flash, demand, Budget(400 * kGiB));
    ASSERT_EQ(none.num_host_experts, 0);
    const MemoryPlan plan = LayOutMemory(flash, demand, Budget(120 * kGiB));
    ASSERT_GT(plan.num_host_experts, 0);
    EXPECT_EQ(plan.step_bytes - none.step_bytes,
              own(demand, plan.num_host_experts) - own(demand, 0));
    const int64_t per_layer = (plan.num_host_experts + flash.num_layers - 1) / flash.num_layers;
    const int64_t staged = rows == 512 ? 0 : per_layer * plan.weights.expert_bytes;
    EXPECT_GE(plan.step_bytes - none.step_bytes, staged);
    // And a table of all experts.
    EXPECT_LE(plan.step_bytes - none.step_bytes, staged == 0 ? 0 : staged + (int64_t{4} << 20));
    demand.offload = {true, plan.host_weight_bytes};
    const MemoryPlan asked = LayOutMemory(flash, demand, Budget(120 * kGiB));
    EXPECT_EQ(asked.num_host_experts, plan.num_host_experts);
    EXPECT_EQ(asked.step_bytes, plan.step_bytes);
  }
}

TEST(MemoryPlan, BytesAskedForAreWholeExpertsAndNeverMore) {
  const ModelConfig flash = Preset("flash");
  for (const int64_t gib : {0, 1, 10, 40, 1000}) {
    MemoryDemand demand = Demand(kGiB);
    demand.offload = {true, gib * kGiB};
    const MemoryPlan plan = LayOutMemory(flash, demand, Budget(300 * kGiB));
    EXPECT_LE(plan.host_weight_bytes, gib * kGiB);
    if (plan.num_host_experts < plan.weights.num_experts) {
      EXPECT_GT(plan.host_weight_bytes + plan.weights.expert_bytes, gib * kGiB);
    }
  }
}

TEST(MemoryPlan, WithoutMemoryOfTheHostNothingIsOutside) {
  MemoryBudget budget = Budget(60 * kGiB);
  budget.has_pinned_memory = false;
  EXPECT_EQ(LayOutMemory(Preset("flash"), Demand(kGiB), budget).num_host_experts, 0);
  const Status status = PlanMemory(Preset("flash"), Demand(kGiB), budget).status();
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
  EXPECT_THAT(status.message(), testing::Not(HasSubstr("--expert-offload")));
}

TEST(MemoryPlan, FlashOnAnH200KeepsMostExpertsThere) {
  MemoryBudget budget = Budget(149557477376);
  budget.usable_bytes = budget.limit_bytes = 137592879185;
  const Result<MemoryPlan> plan = PlanMemory(Preset("flash"), Demand(4 * kGiB), budget);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(plan->weights.num_experts, 43 * 256);
  // 4096 * 2048 * 3 weights of half a byte and their scales.
  EXPECT_EQ(plan->weights.expert_bytes, 13369344);
  EXPECT_GT(plan->num_host_experts, 0);
  EXPECT_LT(plan->num_host_experts, 2200);
}

TEST(MemoryPlan, WhatDoesNotFitIsRefusedWithTheSizes) {
  const ModelConfig pro = Preset("pro");
  MemoryBudget budget = Budget(80 * kGiB);
  budget.usable_bytes = budget.limit_bytes = 10 * kGiB;
  EXPECT_THAT(PlanMemory(pro, Demand(kGiB), budget).status().message(),
              AllOf(HasSubstr("a card has 85.90 GB"), HasSubstr("--gpu-memory-utilization"),
                    HasSubstr("the weights take"), HasSubstr("1.07 GB"),
                    HasSubstr("--max-num-batched-tokens")));
  // Too few experts outside, by the user's wish.
  MemoryDemand few = Demand(kGiB);
  few.offload = {true, kGiB};
  EXPECT_THAT(PlanMemory(Preset("flash"), few, Budget(80 * kGiB)).status().message(),
              HasSubstr("raise --expert-offload"));
  // The host has no room for them.
  MemoryBudget small_host = Budget(100 * kGiB);
  small_host.host_bytes = 8 * kGiB;
  EXPECT_THAT(PlanMemory(Preset("flash"), Demand(kGiB), small_host).status().message(),
              AllOf(HasSubstr("--expert-offload"), HasSubstr("8.59 GB is available")));
  // A cache of given size may use what the share leaves out.
  MemoryBudget given = Budget(170 * kGiB);
  given.usable_bytes = 100 * kGiB;
  MemoryDemand none = Demand(kGiB);
  none.offload = {true, 0};
  EXPECT_TRUE(PlanMemory(Preset("flash"), none, given).ok());
}

}  // namespace
}  // namespace fathom
