// Experts in memory of the host that a device reads: where they lie is what the plan says, and
// changes no bit. Without a GPU (guarded_backend.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_core.h"
#include "engine/expert_use_file.h"
#include "engine/sequence_runner.h"
#include "tests/device/guarded_backend.h"
#include "tests/test_data.h"

namespace fathom {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kRows = 40;
constexpr int64_t kLength = 80;
constexpr int64_t kPlenty = int64_t{1} << 30;

Checkpoint TinyA() { return Checkpoint::Open(ProjectPath("tests/data/tiny-a/checkpoint")).value(); }

LocalEngineOptions OnDevice(int64_t device_bytes, int64_t host_bytes,
                            OffloadingBackend** made = nullptr) {
  LocalEngineOptions options;
  options.make_backend = [device_bytes, host_bytes, made](Numerics numerics) {
    auto backend = std::make_unique<OffloadingBackend>(numerics, device_bytes, host_bytes);
    if (made != nullptr) *made = backend.get();
    return Result<std::unique_ptr<Backend>>(std::move(backend));
  };
  options.max_batched_tokens = 64;
  options.max_num_seqs = 4;
  options.max_model_len = 512;
  return options;
}

LocalEngineOptions OnReference() {
  LocalEngineOptions options;
  options.backend = "reference";
  return options;
}

// Bits of the logits of all positions.
std::vector<uint32_t> Logits(const LocalEngineOptions& options) {
  Checkpoint checkpoint = TinyA();
  auto local = LocalModel::Load(checkpoint, options, kRows, kLength);
  EXPECT_TRUE(local.ok()) << local.status().ToString();
  if (!local.ok()) return {};
  auto runner = SequenceRunner::Create((*local)->model(), Numerics::kOfficial, kLength);
  EXPECT_TRUE(runner.ok()) << runner.status().ToString();
  const auto vocab = static_cast<size_t>(checkpoint.config().vocab_size);
  std::vector<uint32_t> bits;
  std::vector<float> logits(kRows * vocab);
  for (int64_t begin = 0; begin < kLength; begin += kRows) {
    std::vector<TokenId> tokens;
    for (int64_t i = begin; i < begin + kRows; ++i) {
      tokens.push_back(
          static_cast<TokenId>((i * i * 31 + i * 7 + 3) % checkpoint.config().vocab_size));
    }
    const Status status = (*runner)->Step(tokens, SequenceRunner::Logits::kAll, logits);
    EXPECT_TRUE(status.ok()) << status.ToString();
    for (const float x : logits) bits.push_back(std::bit_cast<uint32_t>(x));
  }
  return bits;
}

class Record : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::path(::testing::TempDir()) /
                 ("fathom_offload_" + std::to_string(getpid()));
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::filesystem::path directory_;
};

TEST(Offload, ExpertsLieWhereThePlanSaysAndChangeNoBit) {
  const std::vector<uint32_t> want = Logits(OnReference());
  const WeightSizes sizes = WeightSizesOf(TinyA().config());
  for (const int64_t n : {int64_t{0}, int64_t{1}, sizes.num_experts / 2, sizes.num_experts}) {
    OffloadingBackend* backend = nullptr;
    LocalEngineOptions options = OnDevice(kPlenty, kPlenty, &backend);
    options.expert_offload = {true, n * sizes.expert_bytes};
    EXPECT_EQ(Logits(options), want) << n << " experts in host memory";

    Checkpoint checkpoint = TinyA();
    const auto local = LocalModel::Load(checkpoint, options, kRows, kLength);
    ASSERT_TRUE(local.ok()) << local.status().ToString();
    const WeightsReport& report = (*local)->weights();
    EXPECT_EQ(report.plan->num_host_experts, n);
    EXPECT_EQ(report.pinned_bytes, n * sizes.expert_bytes);
    EXPECT_EQ(report.device_bytes, sizes.total() - n * sizes.expert_bytes);
    // What the plan counts on is what the backend is prepared for.
    const ModelConfig& config = (*local)->model().config();
    const BackendLimits planned = BackendLimitsFor(config, kRows, kLength, n);
    EXPECT_EQ(backend->limits().num_expert_layers, config.num_layers);
    EXPECT_EQ(backend->limits().host_experts_per_layer, planned.host_experts_per_layer);
    EXPECT_EQ(backend->limits().host_expert_bytes, planned.host_expert_bytes);
    EXPECT_GE(planned.host_experts_per_layer * config.num_layers, n);
    EXPECT_LT(planned.host_experts_per_layer * config.num_layers, n + config.num_layers);
    EXPECT_EQ(planned.host_expert_bytes, n == 0 ? 0 : sizes.expert_bytes);
    int64_t outside = 0;
    for (const LayerWeights& layer : (*local)->model().weights().layers) {
      for (const ExpertWeights& expert : layer.ffn.routed) {
        const bool held = backend->pinned_memory().Holds(expert.w1.data);
        for (const WeightView* w : {&expert.w1, &expert.w2, &expert.w3}) {
          EXPECT_EQ(backend->pinned_memory().Holds(w->data), held);
          EXPECT_EQ(backend->pinned_memory().Holds(w->scale), held);
        }
        outside += held ? 1 : 0;
      }
      EXPECT_FALSE(backend->pinned_memory().Holds(layer.ffn.shared.w1.data));
    }
    EXPECT_EQ(outside, n);
  }
}

TEST(Offload, ExpertsOfEveryLayerAreToldOnceAndAnnouncedInEveryStep) {
  OffloadingBackend* backend = nullptr;
  Checkpoint checkpoint = TinyA();
  const auto local =
      LocalModel::Load(checkpoint, OnDevice(kPlenty, kPlenty, &backend), kRows, kLength);
  ASSERT_TRUE(local.ok()) << local.status().ToString();
  std::vector<const ExpertWeights*> layers;
  for (const LayerWeights& layer : (*local)->model().weights().layers) {
    layers.push_back(layer.ffn.routed.data());
  }
  EXPECT_THAT(backend->told(), testing::ElementsAreArray(layers));
  EXPECT_TRUE(backend->prefetched().empty());
  auto runner = SequenceRunner::Create((*local)->model(), Numerics::kOfficial, kLength);
  ASSERT_TRUE(runner.ok());
  std::vector<float> logits(static_cast<size_t>(checkpoint.config().vocab_size));
  const std::vector<TokenId> tokens = {1, 2, 3};
  ASSERT_TRUE((*runner)->Step(tokens, SequenceRunner::Logits::kLast, logits).ok());
  EXPECT_THAT(backend->prefetched(), testing::ElementsAreArray(layers));
}

// What the engine takes of the device is what was planned, to the rounding of its buffers.
TEST(Offload, TheLoaderTakesWhatThePlanSays) {
  const WeightSizes sizes = WeightSizesOf(TinyA().config());
  constexpr int64_t kTotal = int64_t{64} << 20;
  for (const bool counts : {false, true}) {
    for (const int64_t n : {int64_t{0}, sizes.num_experts / 3}) {
      OffloadingBackend* backend = nullptr;
      LocalEngineOptions options = OnDevice(kTotal, kPlenty, &backend);
      options.expert_offload = {true, n * sizes.expert_bytes};
      Checkpoint checkpoint = TinyA();
      auto local = LocalModel::Open(options);
      ASSERT_TRUE(local.ok());
      if (counts) {
        options.record_expert_use = std::filesystem::path(::testing::TempDir()) / "unused.json";
      }
      ASSERT_TRUE((*local)->LoadModel(checkpoint, options, kRows, kLength).ok());
      const MemoryPlan& plan = *(*local)->weights().plan;
      const MemoryState state = backend->memory().State().value();
      const int64_t used = state.total_bytes - state.free_bytes;
      EXPECT_EQ(used, plan.device_weight_bytes + plan.step_bytes);
      const MemoryState host = backend->pinned_memory().State().value();
      EXPECT_EQ(host.total_bytes - host.free_bytes, plan.host_weight_bytes);
      EXPECT_EQ(plan.cache_bytes,
                UsableDeviceBytes(options.cache_budget, {"", kTotal, kTotal}) - used);
      // Few buffers: weights and what a step needs.
      EXPECT_LE(backend->memory().num_buffers(), 6);
    }
  }
}

TEST(Offload, AutomaticallyJustEnoughLeaveForTheCache) {
  const ModelConfig config = TinyA().config();
  const WeightSizes sizes = WeightSizesOf(config);
  LocalEngineOptions options = OnDevice(kPlenty, kPlenty);
  const CacheDemand cache = CacheDemandOf(config, options, 1, options.max_model_len).value();
  MemoryDemand demand;
  demand.backend = "offloading";
  demand.max_rows = options.max_batched_tokens;
  demand.max_positions = options.max_model_len;
  MemoryBudget budget;
  budget.has_pinned_memory = true;
  const int64_t step = LayOutMemory(config, demand, budget).step_bytes;
  // Room for all but about three experts beside the cache.
  const double usable = static_cast<double>(sizes.total() - 3 * sizes.expert_bytes + step +
                                            cache.wanted_bytes + 4096);
  OffloadingBackend* backend = nullptr;
  options = OnDevice(static_cast<int64_t>(std::ceil(usable / 0.92)), kPlenty, &backend);
  const auto core = EngineCore::Create(TinyA(), {}, options);
  ASSERT_TRUE(core.ok()) << core.status().ToString();
  EXPECT_GE((*core)->weights().plan->num_host_experts, 3);
  EXPECT_LE((*core)->weights().plan->num_host_experts, 4);
  EXPECT_EQ((*core)->cache_size().max_model_len, 512);
  // The same with 0 asked for, or with a backend that has no such memory, is refused.
  options.expert_offload = {true, 0};
  EXPECT_EQ(EngineCore::Create(TinyA(), {}, options).status().code(), StatusCode::kOutOfMemory);
}

TEST(Offload, WhatDoesNotFitIsRefusedBeforeAnythingIsCopied) {
  const WeightSizes sizes = WeightSizesOf(TinyA().config());
  // The memories outlive the engine that fails, to tell what was done to them.
  const auto refused = [&](LocalEngineOptions options) {
    auto local = LocalModel::Open(options);
    EXPECT_TRUE(local.ok());
    Checkpoint checkpoint = TinyA();
    const auto cache = DeviceCacheDemand(checkpoint.config(), options);
    EXPECT_TRUE(cache.ok()) << cache.status().ToString();
    Status status = (*local)->LoadModel(checkpoint, options, options.max_batched_tokens,
                                        options.max_model_len, *cache);
    auto& backend = dynamic_cast<OffloadingBackend&>((*local)->backend());
    EXPECT_EQ(backend.memory().num_buffers(), 0);
    EXPECT_EQ(backend.memory().bytes_in(), 0);
    return status;
  };
  // A cache larger than the device.
  LocalEngineOptions options = OnDevice(int64_t{64} << 20, kPlenty);
  options.cache_budget.bytes = int64_t{64} << 20;
  EXPECT_THAT(refused(options).message(),
              AllOf(HasSubstr("guarded memory has 0.07 GB"), HasSubstr("--kv-cache-memory-bytes")));
  // Experts for which the host has no room.
  options = OnDevice(int64_t{64} << 20, sizes.expert_bytes);
  options.expert_offload = {true, 2 * sizes.expert_bytes};
  EXPECT_THAT(refused(options).message(), HasSubstr("--expert-offload: 2 of"));
  // A profile that is none.
  options = OnDevice(int64_t{64} << 20, kPlenty);
  options.expert_profile = ProjectPath("tests/data/tiny-a/checkpoint/config.json");
  EXPECT_EQ(refused(options).code(), StatusCode::kDataLoss);
  // A record that could not be written at the end.
  options = OnDevice(int64_t{64} << 20, kPlenty);
  options.record_expert_use = "/no/such/folder/use.json";
  EXPECT_THAT(refused(options).message(), HasSubstr("--record-expert-use"));
}

TEST(Offload, BackendsWithOneMemoryRefuseTheOptionsByName) {
  for (const bool profile : {false, true}) {
    LocalEngineOptions options = OnReference();
    if (profile) {
      options.expert_profile = "use.json";
    } else {
      options.expert_offload = {true, {}};
    }
    const Status status = LocalModel::Open(options).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr(profile ? "--expert-profile" : "--expert-offload"),
                      HasSubstr("the reference backend")));
  }
  LocalEngineOptions none = OnReference();
  none.expert_offload = {true, 0};
  EXPECT_TRUE(LocalModel::Open(none).ok());
}

TEST_F(Record, HostAndDeviceCountTheSameAndTheLeastUsedLeaveFirst) {
  const ModelConfig config = TinyA().config();
  LocalEngineOptions on_host = OnReference();
  on_host.record_expert_use = directory_ / "host.json";
  LocalEngineOptions on_device = OnDevice(kPlenty, kPlenty);
  on_device.record_expert_use = directory_ / "device.json";
  EXPECT_EQ(Logits(on_host), Logits(on_device));
  const ExpertUse host = ReadExpertUse(on_host.record_expert_use, config).value();
  const ExpertUse device = ReadExpertUse(on_device.record_expert_use, config).value();
  for (int layer = 0; layer < config.num_layers; ++layer) {
    int64_t sum = 0;
    for (int e = 0; e < config.num_experts; ++e) {
      EXPECT_EQ(host.count(layer, e), device.count(layer, e));
      sum += host.count(layer, e);
    }
    EXPECT_EQ(sum, kLength * config.num_experts_per_token);
  }

  OffloadingBackend* backend = nullptr;
  LocalEngineOptions options = OnDevice(kPlenty, kPlenty, &backend);
  options.expert_profile = on_host.record_expert_use;
  const int64_t n = WeightSizesOf(config).num_experts / 2;
  options.expert_offload = {true, n * WeightSizesOf(config).expert_bytes};
  Checkpoint checkpoint = TinyA();
  const auto local = LocalModel::Load(checkpoint, options, kRows, kLength);
  ASSERT_TRUE(local.ok()) << local.status().ToString();
  const ExpertPlacement want(host, n);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const auto& experts = (*local)->model().weights().layers[static_cast<size_t>(layer)].ffn.routed;
    for (int e = 0; e < config.num_experts; ++e) {
      EXPECT_EQ(backend->pinned_memory().Holds(experts[static_cast<size_t>(e)].w2.data),
                want.on_host(layer, e));
    }
  }
}

}  // namespace
}  // namespace fathom
