// The fuzzers' functions over the stored corpora: seeds and every input that once was a finding.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/fuzz/targets.h"
#include "tests/test_data.h"

namespace fathom::fuzz {
namespace {

int RunCorpus(const std::string& name, void (*target)(std::span<const uint8_t>)) {
  int count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(ProjectPath("tests/data/fuzz/" + name))) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
    target(bytes);
    ++count;
  }
  return count;
}

TEST(FuzzCorpus, EveryInputIsReadOrRefused) {
  EXPECT_GT(RunCorpus("safetensors", Safetensors), 3);
  EXPECT_GT(RunCorpus("config", Config), 3);
  EXPECT_GT(RunCorpus("tokenizer", TokenizerJson), 3);
  EXPECT_GT(RunCorpus("output_parser", ModelOutput), 3);
  EXPECT_GT(RunCorpus("chat_request", ChatRequest), 3);
  EXPECT_GT(RunCorpus("api_request", ApiRequest), 3);
  EXPECT_GT(RunCorpus("constraint", ConstraintText), 3);
}

}  // namespace
}  // namespace fathom::fuzz
