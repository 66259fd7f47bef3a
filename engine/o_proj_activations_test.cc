// `--o-proj-activations fp8`: what it changes, how little, and what it is refused with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/cache_sizing.h"
#include "engine/local_model.h"
#include "engine/model_fingerprint.h"
#include "engine/sequence_runner.h"

namespace fathom {
namespace {

using ::testing::HasSubstr;

constexpr int kMaxRows = 128;
constexpr int64_t kLength = 200;

LocalEngineOptions Options(bool fp8) {
  LocalEngineOptions options;
  options.num_threads = 2;
  options.fp8_o_proj_inputs = fp8;
  return options;
}

class OProjActivations : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = Checkpoint::Open(FATHOM_SOURCE_DIR "/models/fathom-nano");
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    checkpoint_ = std::make_unique<Checkpoint>(std::move(opened).value());
  }

  std::unique_ptr<LocalModel> Load(const LocalEngineOptions& options) {
    auto model = LocalModel::Load(*checkpoint_, options, kMaxRows, kLength);
    EXPECT_TRUE(model.ok()) << model.status().ToString();
    return model.ok() ? std::move(model).value() : nullptr;
  }

  // Of all positions, computed `chunk` tokens at a time.
  static std::vector<float> Logits(LocalModel& local, size_t chunk) {
    Model& model = local.model();
    auto runner = SequenceRunner::Create(model, Numerics::kOfficial, kLength);
    EXPECT_TRUE(runner.ok()) << runner.status().ToString();
    const auto vocab = static_cast<size_t>(model.config().vocab_size);
    std::vector<TokenId> tokens;
    for (int64_t i = 0; i < kLength; ++i) {
      tokens.push_back(static_cast<TokenId>((i * i * 31 + i * 7 + 3) % model.config().vocab_size));
    }
    std::vector<float> logits(tokens.size() * vocab);
    for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
      const size_t n = std::min(chunk, tokens.size() - begin);
      const Status status =
          (*runner)->Step(std::span(tokens).subspan(begin, n), SequenceRunner::Logits::kAll,
                          std::span(logits).subspan(begin * vocab, n * vocab));
      EXPECT_TRUE(status.ok()) << status.ToString();
    }
    return logits;
  }

  std::unique_ptr<Checkpoint> checkpoint_;
};

TEST_F(OProjActivations, Fp8ChangesLogitsALittleAndNotWithTheChunks) {
  const std::vector<float> bf16 = Logits(*Load(Options(false)), 64);
  const std::unique_ptr<LocalModel> model = Load(Options(true));
  const std::vector<float> fp8 = Logits(*model, 64);
  EXPECT_EQ(fp8, Logits(*model, 7));
  EXPECT_NE(fp8, bf16);
  const size_t vocab = bf16.size() / kLength;
  std::vector<double> errors;
  size_t same = 0;
  for (size_t begin = 0; begin < bf16.size(); begin += vocab) {
    double difference = 0.0, size = 0.0;
    for (size_t i = begin; i < begin + vocab; ++i) {
      difference += std::pow(static_cast<double>(fp8[i]) - static_cast<double>(bf16[i]), 2);
      size += std::pow(static_cast<double>(bf16[i]), 2);
    }
    errors.push_back(std::sqrt(difference / size));
    const auto best = [&](const std::vector<float>& logits) {
      const auto row = std::span(logits).subspan(begin, vocab);
      return std::max_element(row.begin(), row.end()) - row.begin();
    };
    same += best(fp8) == best(bf16) ? 1 : 0;
  }
  std::nth_element(errors.begin(), errors.begin() + kLength / 2, errors.end());
  // The bounds of tests/golden for official numerics end to end: an e4m3 rounding of one input is
  // of the kind that all other fp8 matrices have.
  EXPECT_LT(errors[kLength / 2], 0.15);
  EXPECT_GT(static_cast<double>(same), 0.7 * static_cast<double>(kLength));
}

// Prefixes are not found by a model that would have computed other entries.
TEST_F(OProjActivations, AreAnotherModelToThePrefixCache) {
  const auto fingerprint = [&](bool fp8) {
    const std::unique_ptr<LocalModel> model = Load(Options(fp8));
    const auto planner = PlannerFor(checkpoint_->config(), Numerics::kOfficial, {});
    EXPECT_TRUE(planner.ok());
    return ModelFingerprint(model->model(), Numerics::kOfficial, planner->layout()).value();
  };
  EXPECT_EQ(fingerprint(true), fingerprint(true));
  EXPECT_NE(fingerprint(true), fingerprint(false));
}

TEST_F(OProjActivations, AreRefusedWhereNothingOrSomethingElseIsRounded) {
  const auto refused = [&](const auto& change, StatusCode code) {
    LocalEngineOptions options = Options(true);
    change(options);
    const auto model = LocalModel::Load(*checkpoint_, options, kMaxRows, kLength);
    EXPECT_EQ(model.status().code(), code);
    EXPECT_THAT(model.status().message(), HasSubstr("--o-proj-activations fp8"));
    return std::string(model.status().message());
  };
  EXPECT_THAT(refused([](auto& o) { o.numerics = Numerics::kExact; }, StatusCode::kInvalidArgument),
              HasSubstr("exact numerics"));
  EXPECT_THAT(refused([](auto& o) { o.cpu.int8_dense = true; }, StatusCode::kInvalidArgument),
              HasSubstr("--cpu-dense int8"));
}

}  // namespace
}  // namespace fathom
