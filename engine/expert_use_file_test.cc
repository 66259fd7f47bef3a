// The record of expert use: what is written is read again, and what is damaged or of another model
// is refused by name.
#include "engine/expert_use_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <random>

namespace fathom {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ModelConfig Config(int layers = 3, int experts = 5, int per_token = 2) {
  ModelConfig config;
  config.num_layers = layers;
  config.num_experts = experts;
  config.num_experts_per_token = per_token;
  return config;
}

ExpertUse RandomUse(const ModelConfig& config) {
  std::mt19937_64 random(11);
  ExpertUse use(config);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (int e = 0; e < config.num_experts; ++e) {
      use.Set(layer, e, static_cast<int64_t>(random() >> 11));
    }
  }
  return use;
}

class ExpertUseFile : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::path(::testing::TempDir()) /
                 ("fathom_expert_use_" + std::to_string(getpid()));
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  [[nodiscard]] std::filesystem::path Path() const { return directory_ / "use.json"; }

  std::filesystem::path directory_;
};

TEST_F(ExpertUseFile, WhatIsWrittenIsRead) {
  const ModelConfig config = Config();
  const ExpertUse use = RandomUse(config);
  ASSERT_TRUE(WriteExpertUse(Path(), use).ok());
  const Result<ExpertUse> read = ReadExpertUse(Path(), config);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (int e = 0; e < config.num_experts; ++e) {
      EXPECT_EQ(read->count(layer, e), use.count(layer, e));
    }
  }
  // Nothing is left beside it, and an old record is replaced.
  ASSERT_TRUE(WriteExpertUse(Path(), ExpertUse(config)).ok());
  EXPECT_EQ(ReadExpertUse(Path(), config)->count(0, 0), 0);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_), {}), 1);
}

TEST_F(ExpertUseFile, OtherModelsRecordsAreRefusedWithBothGeometries) {
  ASSERT_TRUE(WriteExpertUse(Path(), RandomUse(Config())).ok());
  for (const ModelConfig& other : {Config(4), Config(3, 6), Config(3, 5, 1)}) {
    const Status status = ReadExpertUse(Path(), other).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("use.json"), HasSubstr("3 layers of 5 experts, 2 per token"),
                      HasSubstr("another model")));
  }
}

// A text cut anywhere, and with any of its characters changed, is an error or a record, never a
// crash.
TEST(ExpertUseText, DamageIsAnErrorOrAnotherRecord) {
  const ModelConfig config = Config(2, 3, 1);
  const std::string json = ExpertUseJson(RandomUse(config));
  for (size_t n = 0; n + 2 < json.size(); ++n) {
    EXPECT_EQ(ParseExpertUse(json.substr(0, n), "cut", config).status().code(),
              StatusCode::kDataLoss)
        << n;
  }
  for (size_t i = 0; i < json.size(); ++i) {
    for (const char c : {'0', '-', '"', ']', '\0', '\xff'}) {
      std::string changed = json;
      changed[i] = c;
      const Result<ExpertUse> read = ParseExpertUse(changed, "changed", config);
      EXPECT_THAT(read.ok() ? "changed" : read.status().message(), HasSubstr("changed"));
    }
  }
}

TEST(ExpertUseText, WhatIsWrongIsNamed) {
  const ModelConfig config = Config(1, 2, 1);
  const auto text = [](const std::string& version, const std::string& counts) {
    return R"({"format": "fathom expert use", "version": )" + version +
           R"(, "num_layers": 1, "num_experts": 2, "experts_per_token": 1, "counts": )" + counts +
           "}";
  };
  ASSERT_TRUE(ParseExpertUse(text("1", "[[1, 2]]"), "f", config).ok());
  const auto message = [&](const std::string& json) {
    return ParseExpertUse(json, "f", config).status().message();
  };
  EXPECT_THAT(message(text("2", "[[1, 2]]")), AllOf(HasSubstr("version 2"), HasSubstr("reads 1")));
  EXPECT_THAT(message(text("\"1\"", "[[1, 2]]")), HasSubstr("version ?"));
  EXPECT_THAT(message(text("1", "[]")), HasSubstr("list of 1 layers"));
  EXPECT_THAT(message(text("1", "[[1]]")), HasSubstr("layer 0: not a list of 2"));
  EXPECT_THAT(message(text("1", "[[1, -2]]")), HasSubstr("expert 1"));
  EXPECT_THAT(message(text("1", "[[1, 2.5]]")), HasSubstr("expert 1"));
  EXPECT_THAT(message(text("1", "[[1, 99999999999999999999]]")), HasSubstr("expert 1"));
  EXPECT_THAT(message("[]"), HasSubstr("no record of expert use"));
  EXPECT_THAT(message(R"({"format": 3})"), HasSubstr("no record of expert use"));
  EXPECT_THAT(message(R"({"format": "fathom expert use", "version": 1})"), HasSubstr("num_layers"));
}

TEST_F(ExpertUseFile, FilesThatCannotBeReadOrWrittenAreNamed) {
  const std::filesystem::path nowhere = directory_ / "no" / "use.json";
  EXPECT_EQ(ReadExpertUse(nowhere, Config()).status().code(), StatusCode::kNotFound);
  EXPECT_THAT(CheckCanWriteExpertUse(nowhere).message(), HasSubstr("--record-expert-use"));
  EXPECT_THAT(CheckCanWriteExpertUse(directory_).message(), HasSubstr("directory"));
  EXPECT_EQ(WriteExpertUse(nowhere, ExpertUse(Config())).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(CheckCanWriteExpertUse(Path()).ok());
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
  std::ofstream(Path()).seekp(int64_t{65} << 20).put(' ');
  EXPECT_EQ(ReadExpertUse(Path(), Config()).status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace fathom
