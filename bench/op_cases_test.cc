// OpCases: every case runs, on every backend, and its bytes are those of the matrices it names.
#include "bench/op_cases.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <set>
#include <string>

#include "engine/engine_core.h"
#include "tests/device/guarded_backend.h"

namespace fathom::bench {
namespace {

class OpCasesTest : public ::testing::TestWithParam<const char*> {
 protected:
  OpCasesTest() : pool_(2) {
    auto config = LoadModelConfig(FATHOM_SOURCE_DIR "/models/fathom-nano");
    EXPECT_TRUE(config.ok()) << config.status().ToString();
    config_ = *config;
    if (GetParam() == std::string("guarded")) {
      backend_ = std::make_unique<GuardedBackend>(Numerics::kOfficial);
    } else {
      auto backend = MakeBackend(GetParam(), Numerics::kOfficial, 2);
      EXPECT_TRUE(backend.ok());
      backend_ = std::move(*backend);
    }
    weights_.emplace(pool_, backend_->memory(), int64_t{8} << 20);
    EXPECT_TRUE(backend_->Prepare(BackendLimitsFor(config_, 20, 600)).ok());
  }
  std::unique_ptr<OpCases> Make(int rows, int64_t context, std::vector<std::string> only = {}) {
    auto cases = OpCases::Create(config_, *backend_, *weights_, rows, context, only);
    EXPECT_TRUE(cases.ok()) << cases.status().ToString();
    return cases.ok() ? std::move(*cases) : nullptr;
  }

  ModelConfig config_;
  ThreadPool pool_;
  std::unique_ptr<Backend> backend_;
  std::optional<WeightMemory> weights_;
};

TEST_P(OpCasesTest, AllRunOverAndOver) {
  // No context, none of a whole window, and one where everything there is takes part.
  for (const int64_t context : {1, 100, 511}) {
    for (const int rows : {1, 20}) {
      const auto cases = Make(rows, context);
      ASSERT_NE(cases, nullptr);
      std::set<std::string> operations;
      for (const OpCase& op : cases->cases()) {
        operations.insert(op.operation);
        for (int run = 0; run < 3; ++run) {
          const Status status = op.run();
          EXPECT_TRUE(status.ok()) << op.operation << ", " << op.what << ": " << status.ToString();
        }
        EXPECT_GE(op.flop, 0.0);
        EXPECT_GT(op.activation_bytes, 0) << op.operation;
      }
      const std::vector<std::string> names = OpCases::Names();
      std::set<std::string> expected(names.begin(), names.end());
      if (!backend_->samples()) expected.erase("sample");
      EXPECT_EQ(operations, expected);
    }
  }
}

TEST_P(OpCasesTest, AnOperationThatTheBackendLacksIsRefusedByName) {
  const std::vector<std::string> only = {"sample"};
  const auto cases = OpCases::Create(config_, *backend_, *weights_, 1, 100, only);
  if (backend_->samples()) {
    ASSERT_TRUE(cases.ok()) << cases.status().ToString();
    EXPECT_EQ((*cases)->cases().size(), 4U);
  } else {
    EXPECT_EQ(cases.status().code(), StatusCode::kUnimplemented);
    EXPECT_NE(cases.status().message().find("sample"), std::string::npos);
  }
}

TEST_P(OpCasesTest, BytesAreThoseOfTheModel) {
  const int64_t dim = config_.hidden_size, width = config_.moe_intermediate_size;
  const auto moe = Make(1, 511, {"moe"});
  ASSERT_EQ(moe->cases().size(), 1U);
  const int64_t expert = 3 * dim * width * 17 / 32;
  const int64_t shared = 3 * (dim * width + dim * width / (128 * 128));
  EXPECT_EQ(moe->cases()[0].weight_bytes, config_.num_experts_per_token * expert + shared);
  EXPECT_EQ(moe->cases()[0].flop,
            6.0 * static_cast<double>(dim * width) * (config_.num_experts_per_token + 1));
  // 20 tokens of 4 experts use all 16.
  EXPECT_EQ(Make(20, 511, {"moe"})->cases()[0].weight_bytes, config_.num_experts * expert + shared);

  const auto attention = Make(1, 511, {"sparse_attention"});
  ASSERT_EQ(attention->cases().size(), 3U);
  const int64_t entry =
      PageFormat{EntryEncoding::kE4m3Rope, config_.head_dim, config_.rope_dim, 1}.entry_bytes();
  EXPECT_EQ(attention->cases()[0].cache_bytes, 127 * entry);
  EXPECT_EQ(attention->cases()[1].cache_bytes, (127 + config_.index_topk) * entry);
  EXPECT_EQ(attention->cases()[2].cache_bytes, (127 + 4) * entry);
}

TEST_P(OpCasesTest, NoRoomForAMatrixIsAnError) {
  WeightMemory small(pool_, backend_->memory(), int64_t{64} << 10);
  const std::vector<std::string> only = {"linear"};
  const auto cases = OpCases::Create(config_, *backend_, small, 1, 100, only);
  ASSERT_FALSE(cases.ok());
  EXPECT_EQ(cases.status().code(), StatusCode::kInvalidArgument);
}

// A device's operands are in its memory, not the host's; the guarded backend's are out of its
// reach.
INSTANTIATE_TEST_SUITE_P(Backends, OpCasesTest, ::testing::Values("cpu", "reference", "guarded"));

TEST(OpCasesOnADevice, NoRoomForOperandsIsAnErrorOfTheDevice) {
  const auto config = LoadModelConfig(FATHOM_SOURCE_DIR "/models/fathom-nano");
  ASSERT_TRUE(config.ok());
  ThreadPool pool(1);
  for (const int64_t room : {int64_t{1} << 20, int64_t{3} << 20}) {
    GuardedBackend backend(Numerics::kOfficial, room);
    ASSERT_TRUE(backend.Prepare(BackendLimitsFor(*config, 20, 600)).ok());
    WeightMemory weights(pool, backend.memory(), int64_t{4} << 20);
    const auto cases = OpCases::Create(*config, backend, weights, 20, 511, {});
    ASSERT_FALSE(cases.ok());
    EXPECT_EQ(cases.status().code(), StatusCode::kOutOfMemory);
  }
}

}  // namespace
}  // namespace fathom::bench
