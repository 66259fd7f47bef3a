// StepBytes against the inventory, and against entries counted by hand.
#include "bench/step_bytes.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "checkpoint/inventory.h"
#include "engine/sequence_runner.h"

namespace fathom::bench {
namespace {

ModelConfig Config(const char* name) {
  auto config = LoadModelConfig(std::string(FATHOM_SOURCE_DIR "/models/") + name);
  EXPECT_TRUE(config.ok()) << config.status().ToString();
  return *config;
}

StepBytes Make(const ModelConfig& config) {
  return {config, CacheLayout(CacheGeometryOf(config), Numerics::kOfficial)};
}

void Route(StepBytes& bytes, int layer, std::vector<int32_t> experts) {
  const std::vector<float> weights(experts.size());
  bytes.OnRoute(layer, {experts.data(), 1, static_cast<int64_t>(experts.size())},
                {weights.data(), 1, static_cast<int64_t>(weights.size())});
}

TEST(StepBytes, OneTokenReadsWhatTheInventorySays) {
  const ModelConfig config = Config("fathom-nano");
  StepBytes bytes = Make(config);
  bytes.BeginStep();
  for (int layer = 0; layer < config.num_layers; ++layer) Route(bytes, layer, {0, 3, 7, 15});
  EXPECT_EQ(bytes.num_experts(), config.num_layers * 4);
  const auto want = static_cast<int64_t>(Total(InventoryOf(config)).bytes_per_token);
  EXPECT_EQ(bytes.WeightBytes(1, true), want);
  const int64_t head = int64_t{2} * config.vocab_size * config.hidden_size;
  EXPECT_EQ(bytes.WeightBytes(1, false), want - head);
}

TEST(StepBytes, AnExpertCountsOnceAStepAndLayer) {
  const ModelConfig config = Config("fathom-nano");
  StepBytes bytes = Make(config);
  bytes.BeginStep();
  const int64_t dense = bytes.WeightBytes(1, true);
  Route(bytes, 1, {2, 2, 3, 4});
  Route(bytes, 2, {2, 3, 4, 5});
  EXPECT_EQ(bytes.num_experts(), 7);
  EXPECT_EQ(bytes.WeightBytes(1, true), dense + 7 * bytes.expert_bytes());
  bytes.BeginStep();
  EXPECT_EQ(bytes.WeightBytes(1, true), dense);
  Route(bytes, 1, {2});
  EXPECT_EQ(bytes.num_experts(), 1);
  // fp4 and a scale for each 32: w1, w2 and w3.
  EXPECT_EQ(bytes.expert_bytes(),
            3 * int64_t{config.moe_intermediate_size} * config.hidden_size * 17 / 32);
}

TEST(StepBytes, ATokenReadsItsWindowAndEntries) {
  ModelConfig config = Config("fathom-nano");
  config.compress_ratios = {0, 4, 128};
  config.index_topk = 64;
  const CacheLayout layout(CacheGeometryOf(config), Numerics::kOfficial);
  const StepBytes bytes(config, layout);
  const int64_t swa = layout.Format(CacheKind::kSwaKv).entry_bytes();
  const int64_t c4 = layout.Format(CacheKind::kC4Kv).entry_bytes();
  const int64_t c128 = layout.Format(CacheKind::kC128Kv).entry_bytes();
  const int64_t key = layout.Format(CacheKind::kC4IndexKeys).entry_bytes();
  EXPECT_EQ(bytes.CacheBytes(0, 1), 0);
  EXPECT_EQ(bytes.CacheBytes(3, 1), 3 * 3 * swa + c4);
  // All 64 entries are attended to: no key has to be looked at.
  EXPECT_EQ(bytes.CacheBytes(255, 1), 3 * 127 * swa + 64 * c4 + 2 * c128);
  EXPECT_EQ(bytes.CacheBytes(259, 1), 3 * 127 * swa + 64 * c4 + 65 * key + 2 * c128);
  // Together they may attend to all of them.
  EXPECT_EQ(bytes.CacheBytes(256, 256), 3 * 127 * swa + 128 * c4 + 128 * key + 4 * c128);
}

}  // namespace
}  // namespace fathom::bench
