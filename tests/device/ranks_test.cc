// A model is told of its rank: where parts of a layer come together the communicator is asked, and
// more ranks than one are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "backend/reference/reference_backend.h"
#include "engine/engine_core.h"
#include "engine/sequence_runner.h"
#include "tests/device/planned_step.h"

namespace fathom {
namespace {

using ::testing::HasSubstr;

// Sees what it is asked for, and gives back a multiple of it.
class SeeingRank final : public Communicator {
 public:
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int num_ranks() const override { return num; }
  Status AllReduceSum(TensorView<float> values) override {
    seen.emplace_back(values.elements().begin(), values.elements().end());
    for (float& v : values.elements()) v *= factor;
    return failure;
  }
  int num = 1;
  float factor = 1.0f;
  Status failure;
  std::vector<std::vector<float>> seen;
};

class Sublayers final : public ForwardObserver {
 public:
  void OnTensor(int /*layer*/, std::string_view name, TensorView<const float> values) override {
    if (name != "attn_out" && name != "ffn_out") return;
    seen.emplace_back(values.elements().begin(), values.elements().end());
  }
  std::vector<std::vector<float>> seen;
};

class Ranks : public testing::Test {
 protected:
  // The last row's logits of five tokens.
  Result<std::vector<float>> Logits(Communicator* communicator, ForwardObserver* observer) {
    const Checkpoint checkpoint = TinyA();
    ReferenceBackend backend(Numerics::kOfficial);
    FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                            Model::Create(checkpoint, backend, 8, 64, {}, communicator));
    FATHOM_ASSIGN_OR_RETURN(const auto runner,
                            SequenceRunner::Create(*model, Numerics::kOfficial, 64));
    num_layers_ = model->config().num_layers;
    std::vector<float> logits(static_cast<size_t>(model->config().vocab_size));
    const std::vector<TokenId> tokens = {3, 1, 4, 1, 5};
    FATHOM_RETURN_IF_ERROR(runner->Step(tokens, SequenceRunner::Logits::kLast, logits, observer));
    return logits;
  }
  int num_layers_ = 0;
};

TEST_F(Ranks, BothSublayersOfEveryLayerAreReduced) {
  SeeingRank rank;
  Sublayers sublayers;
  const auto logits = Logits(&rank, &sublayers);
  ASSERT_TRUE(logits.ok()) << logits.status().ToString();
  EXPECT_EQ(rank.seen.size(), static_cast<size_t>(2 * num_layers_));
  EXPECT_EQ(rank.seen, sublayers.seen);
  const auto alone = Logits(nullptr, nullptr);
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(*logits, *alone);
}

TEST_F(Ranks, WhatIsReducedIsWhatGoesOn) {
  SeeingRank rank;
  rank.factor = 2.0f;
  Sublayers sublayers;
  const auto logits = Logits(&rank, &sublayers);
  ASSERT_TRUE(logits.ok());
  for (size_t i = 0; i < rank.seen.size(); ++i) {
    for (float& v : rank.seen[i]) v *= 2.0f;
  }
  EXPECT_EQ(rank.seen, sublayers.seen);
  EXPECT_NE(*logits, Logits(nullptr, nullptr).value());
}

TEST_F(Ranks, AFailedReductionEndsTheStep) {
  SeeingRank rank;
  rank.failure = Unavailable("the other rank is gone");
  const auto logits = Logits(&rank, nullptr);
  EXPECT_EQ(logits.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(rank.seen.size(), 1u);
}

TEST_F(Ranks, SeveralAreRefused) {
  SeeingRank rank;
  rank.num = 2;
  const Status status = Logits(&rank, nullptr).status();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(), HasSubstr("rank 0 of 2"));

  LocalEngineOptions options;
  options.backend = "reference";
  options.max_model_len = 64;
  options.cache_budget.bytes = int64_t{8} << 20;
  options.communicator = std::make_shared<SeeingRank>();
  EXPECT_TRUE(EngineCore::Create(TinyA(), {}, options).ok());
  auto two = std::make_shared<SeeingRank>();
  two->num = 2;
  options.communicator = two;
  const auto core = EngineCore::Create(TinyA(), {}, options);
  ASSERT_FALSE(core.ok());
  EXPECT_THAT(core.status().message(), HasSubstr("rank 0 of 2"));
}

TEST(CudaDevice, IsForTheCudaBackendAlone) {
  LocalEngineOptions options;
  options.cuda_device = 1;
  options.max_model_len = 64;
  const auto core = EngineCore::Create(TinyA(), {}, options);
  ASSERT_FALSE(core.ok());
  EXPECT_EQ(core.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(core.status().message(), HasSubstr("--cuda-device 1"));
}

}  // namespace
}  // namespace fathom
