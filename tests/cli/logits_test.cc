// fathom logits against the golden values of tiny-a.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>

#include "checkpoint/safetensors.h"
#include "tests/cli/program.h"

namespace fathom::cli_test {
namespace {

using ::testing::HasSubstr;

const std::filesystem::path kFolder = ProjectPath("tests/data/tiny-a");
constexpr size_t kVocab = 512;

template <typename T>
std::vector<T> Values(const std::filesystem::path& path, const char* name) {
  const auto file = SafetensorsFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status().ToString();
  if (!file.ok()) return {};
  const StoredTensor* tensor = file->Find(name);
  EXPECT_NE(tensor, nullptr) << name;
  if (tensor == nullptr) return {};
  std::vector<T> values(tensor->data.size() / sizeof(T));
  std::memcpy(values.data(), tensor->data.data(), values.size() * sizeof(T));
  return values;
}

double RelativeError(std::span<const float> got, std::span<const float> want) {
  double difference = 0.0, size = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(static_cast<double>(got[i]) - static_cast<double>(want[i]), 2);
    size += std::pow(static_cast<double>(want[i]), 2);
  }
  return std::sqrt(difference / size);
}

class Logits : public ::testing::TestWithParam<const char*> {
 protected:
  // The file that the program writes for the ids of a golden file.
  std::filesystem::path Compute(const std::string& golden, std::vector<std::string> options) {
    const nlohmann::json ids = Values<int32_t>(kFolder / golden, "ids");
    const std::filesystem::path out =
        folder_.path() / ("out" + std::to_string(num_files_++) + ".safetensors");
    std::vector<std::string> arguments = {
        "logits",     "--model",   (kFolder / "checkpoint").string(),
        "--tokens",   "-",         "--out",
        out.string(), "--backend", GetParam()};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Outcome outcome = RunFathom(arguments, ids.dump());
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return out;
  }

  TempFolder folder_;
  int num_files_ = 0;
};

TEST_P(Logits, ExactModeIsWithinTheBoundAtEveryPosition) {
  for (const char* golden : {"n1.exact.safetensors", "n129.exact.safetensors"}) {
    const auto want = Values<float>(kFolder / golden, "logits");
    const auto got = Values<float>(Compute(golden, {"--mode", "exact"}), "logits");
    ASSERT_EQ(got.size(), want.size());
    for (size_t row = 0; row < want.size() / kVocab; ++row) {
      EXPECT_LE(RelativeError(std::span(got).subspan(row * kVocab, kVocab),
                              std::span(want).subspan(row * kVocab, kVocab)),
                1e-4)
          << golden << " position " << row;
    }
  }
}

TEST_P(Logits, OfficialModeRoundsLikeTheOfficialCode) {
  const char* golden = "n5.official.safetensors";
  const auto want = Values<float>(kFolder / golden, "logits");
  const auto got = Values<float>(Compute(golden, {}), "logits");
  ASSERT_EQ(got.size(), want.size());
  // Rounding to 8 and 4 bits makes single rows differ; golden_test holds the same bound.
  std::vector<double> errors;
  for (size_t row = 0; row < want.size() / kVocab; ++row) {
    errors.push_back(RelativeError(std::span(got).subspan(row * kVocab, kVocab),
                                   std::span(want).subspan(row * kVocab, kVocab)));
  }
  std::sort(errors.begin(), errors.end());
  EXPECT_LT(errors[errors.size() / 2], 0.15);
  // And it is another mode, not exact under another name.
  const auto exact = Values<float>(Compute(golden, {"--mode", "exact"}), "logits");
  EXPECT_NE(got, exact);
}

TEST_P(Logits, Fp8InputsOfTheOutputProjectionStayNearTheOfficialOnes) {
  const char* golden = "n129.official.safetensors";
  const auto want = Values<float>(kFolder / golden, "logits");
  const auto got = Values<float>(Compute(golden, {"--o-proj-activations", "fp8"}), "logits");
  ASSERT_EQ(got.size(), want.size());
  std::vector<double> errors;
  for (size_t row = 0; row < want.size() / kVocab; ++row) {
    errors.push_back(RelativeError(std::span(got).subspan(row * kVocab, kVocab),
                                   std::span(want).subspan(row * kVocab, kVocab)));
  }
  std::sort(errors.begin(), errors.end());
  // Twice what golden_test allows official runs: the same kind of rounding at one more place.
  EXPECT_LT(errors[errors.size() / 2], 0.3);
  EXPECT_NE(got, Values<float>(Compute(golden, {}), "logits"));
}

TEST_P(Logits, ChunksAndThreadsDoNotChangeAByte) {
  for (const char* mode : {"official", "exact"}) {
    const std::string golden = "n129.official.safetensors";
    const std::string whole = ReadFile(Compute(golden, {"--mode", mode}));
    EXPECT_FALSE(whole.empty());
    EXPECT_TRUE(ReadFile(Compute(golden, {"--mode", mode, "--max-num-batched-tokens", "50",
                                          "--threads", "1"})) == whole)
        << mode;
    EXPECT_TRUE(ReadFile(Compute(golden, {"--mode", mode, "--weights", "copy"})) == whole) << mode;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Logits, ::testing::Values("reference", "cpu"),
                         [](const auto& backend) { return backend.param; });

TEST(LogitsErrors, ExactModeRoundsNoInputs) {
  const TempFolder folder;
  const Outcome outcome = RunFathom(
      {"logits", "--model", (kFolder / "checkpoint").string(), "--tokens", "-", "--out",
       (folder.path() / "out").string(), "--mode", "exact", "--o-proj-activations", "fp8"},
      "[1]");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("--o-proj-activations fp8: exact numerics round nothing"));
}

TEST(LogitsErrors, BadIdsAndPathsAreSaid) {
  const TempFolder folder;
  const std::string model = (kFolder / "checkpoint").string();
  const std::string out = (folder.path() / "out.safetensors").string();
  const auto fails = [&](const std::string& ids, const std::string& path,
                         const std::string& message) {
    const Outcome outcome = RunFathom(
        {"logits", "--model", model, "--tokens", "-", "--out", path, "--max-model-len", "8"}, ids);
    EXPECT_EQ(outcome.status, 1) << ids;
    EXPECT_THAT(outcome.err, HasSubstr(message));
    EXPECT_LT(outcome.err.size(), 400u);
    EXPECT_FALSE(std::filesystem::exists(path) && !std::filesystem::is_directory(path));
  };
  fails("", out, "JSON array");
  fails("[]", out, "at least one");
  fails("{\"a\": 1}", out, "JSON array");
  fails("[1, 512]", out, "512 is not a token id below 512");
  fails("[-1]", out, "-1 is not a token id");
  fails("[1.0]", out, "1.0 is not a token id");
  fails("[null]", out, "null");
  fails(std::string(300'000, '[') + std::string(300'000, ']'), out, "array");
  fails("[1, 2, 3, 4, 5, 6, 7, 8, 9]", out, "9 tokens, the context holds 8");
  fails("[1]", (folder.path() / "none" / "out").string(), "none/out");
  fails("[1]", folder.path().string(), folder.path().string());
}

}  // namespace
}  // namespace fathom::cli_test
