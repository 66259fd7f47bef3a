#include "model/expert_prefetch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace fathom {
namespace {

using Bytes = std::span<const std::byte>;

// The bundled model, and what of it was asked for.
class ExpertPrefetchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto checkpoint = Checkpoint::Open(FATHOM_SOURCE_DIR "/models/fathom-nano");
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
    checkpoint_ = std::make_unique<Checkpoint>(std::move(checkpoint).value());
    auto weights = ModelWeights::Build(*checkpoint_);
    ASSERT_TRUE(weights.ok()) << weights.status().ToString();
    weights_ = std::move(weights).value();
    hints_.in_memory = [this](Bytes range) {
      ++looked_;
      return resident_ || read_.contains(range.data());
    };
    hints_.will_need = [this](Bytes range) { asked_.push_back(range); };
  }

  ExpertPrefetch Make(uint64_t max_bytes = uint64_t{1} << 40) {
    return ExpertPrefetch(*weights_, max_bytes, hints_);
  }
  // The first layer that is, or is not, routed by token id.
  [[nodiscard]] int Layer(bool hashed) const {
    const ModelConfig& config = checkpoint_->config();
    int layer = 0;
    while (config.IsHashLayer(layer) != hashed) ++layer;
    return layer;
  }
  // Whether all six tensors of an expert were asked for.
  [[nodiscard]] bool Asked(int layer, int expert) const {
    const std::string name =
        "layers." + std::to_string(layer) + ".ffn.experts." + std::to_string(expert) + ".";
    return std::all_of(std::begin(kTensors), std::end(kTensors), [&](const char* tensor) {
      const Bytes data = checkpoint_->Find(name + tensor)->data;
      return std::any_of(asked_.begin(), asked_.end(), [&](Bytes range) {
        return range.data() <= data.data() &&
               data.data() + data.size() <= range.data() + range.size();
      });
    });
  }
  [[nodiscard]] uint64_t AskedBytes() const {
    uint64_t bytes = 0;
    for (const Bytes range : asked_) bytes += range.size();
    return bytes;
  }
  [[nodiscard]] uint64_t ExpertBytes(int layer) const {
    uint64_t bytes = 0;
    for (const char* tensor : kTensors) {
      bytes += checkpoint_->Find("layers." + std::to_string(layer) + ".ffn.experts.0." + tensor)
                   ->data.size();
    }
    return bytes;
  }
  static constexpr const char* kTensors[] = {"w1.weight", "w1.scale",  "w2.weight",
                                             "w2.scale",  "w3.weight", "w3.scale"};

  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<ModelWeights> weights_;
  PageHints hints_;
  bool resident_ = false;
  std::set<const std::byte*> read_;
  int looked_ = 0;
  std::vector<Bytes> asked_;
};

TEST_F(ExpertPrefetchTest, ChosenExpertsAreAskedForOnceAndNoOthers) {
  ExpertPrefetch prefetch = Make();
  const int layer = Layer(false);
  const std::vector<int32_t> experts = {3, 1, 1, 3, 3, 5};
  prefetch.Routed(layer, {experts.data(), 3, 2});
  for (int e = 0; e < checkpoint_->config().num_experts; ++e) {
    EXPECT_EQ(Asked(layer, e), e == 1 || e == 3 || e == 5) << "expert " << e;
    EXPECT_FALSE(Asked(layer + 1, e));
  }
  // Three experts, with at most a page of gap between neighbours.
  EXPECT_GE(AskedBytes(), 3 * ExpertBytes(layer));
  EXPECT_LE(AskedBytes(), 3 * (ExpertBytes(layer) + 5 * 4096));
}

TEST_F(ExpertPrefetchTest, WhatIsInMemoryIsNotAskedFor) {
  ExpertPrefetch prefetch = Make();
  const int layer = Layer(false);
  const std::vector<int32_t> experts = {0, 2};
  prefetch.Routed(layer, {experts.data(), 1, 2});
  const size_t first = asked_.size();
  ASSERT_GT(first, 0u);
  for (const Bytes range : asked_) read_.insert(range.data());
  prefetch.Routed(layer, {experts.data(), 1, 2});
  EXPECT_EQ(asked_.size(), first);
  read_.erase(asked_.front().data());  // dropped again
  prefetch.Routed(layer, {experts.data(), 1, 2});
  EXPECT_EQ(asked_.size(), first + 1);
}

TEST_F(ExpertPrefetchTest, HashRoutedExpertsAreKnownFromTheTokens) {
  ExpertPrefetch prefetch = Make();
  const int layer = Layer(true);
  const std::vector<TokenId> tokens = {7, 300, 7};
  prefetch.BeginStep(tokens);
  std::set<int64_t> expected;
  for (const TokenId token : tokens) {
    const auto row = weights_->layers[static_cast<size_t>(layer)].ffn.hash_table.row(token);
    expected.insert(row.begin(), row.end());
  }
  ASSERT_LT(expected.size(), static_cast<size_t>(checkpoint_->config().num_experts));
  for (int e = 0; e < checkpoint_->config().num_experts; ++e) {
    EXPECT_EQ(Asked(layer, e), expected.contains(e)) << "expert " << e;
    EXPECT_FALSE(Asked(Layer(false), e));
  }
  // Their routing brings nothing new.
  const int looked = looked_;
  const std::vector<int32_t> experts = {0, 1};
  prefetch.Routed(layer, {experts.data(), 1, 2});
  EXPECT_EQ(looked_, looked);
}

TEST_F(ExpertPrefetchTest, TokensOutsideTheVocabularyAreLeftToTheOperations) {
  ExpertPrefetch prefetch = Make();
  const std::vector<TokenId> tokens = {-1, checkpoint_->config().vocab_size, 1 << 30};
  prefetch.BeginStep(tokens);
  EXPECT_TRUE(asked_.empty());
}

TEST_F(ExpertPrefetchTest, NoMoreThanFitsIsAskedForAtOnce) {
  const int layer = Layer(false);
  const uint64_t most = 3 * (ExpertBytes(layer) + 5 * 4096);
  ExpertPrefetch prefetch = Make(most);
  std::vector<int32_t> all(static_cast<size_t>(checkpoint_->config().num_experts));
  std::iota(all.begin(), all.end(), 0);
  const auto rows = static_cast<int64_t>(all.size());
  prefetch.Routed(layer, {all.data(), rows, 1});
  EXPECT_TRUE(Asked(layer, 0) && Asked(layer, 1) && Asked(layer, 2));
  EXPECT_LE(AskedBytes(), most);
  EXPECT_FALSE(Asked(layer, static_cast<int>(rows) - 1));
  // The next layer has the same room again.
  asked_.clear();
  prefetch.Routed(layer + 1, {all.data(), rows, 1});
  EXPECT_TRUE(Asked(layer + 1, 0));
}

TEST_F(ExpertPrefetchTest, SaysWhetherAllExpertsAreInMemory) {
  ExpertPrefetch prefetch = Make();
  EXPECT_FALSE(prefetch.AllInMemory());
  resident_ = true;
  EXPECT_TRUE(prefetch.AllInMemory());
  EXPECT_TRUE(asked_.empty());
}

}  // namespace
}  // namespace fathom
