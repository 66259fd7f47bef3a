#include "checkpoint/generation_config.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(GenerationConfig, ReadsWhatTheBundledModelSays) {
  auto config = LoadGenerationConfig(FATHOM_SOURCE_DIR "/models/fathom-nano");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->eos_token_ids, std::vector<TokenId>{1});
  EXPECT_EQ(config->temperature, 1.0);
  EXPECT_EQ(config->top_p, 1.0);
}

TEST(GenerationConfig, DefaultsWithoutFileAndListsOfEndTokens) {
  auto none = LoadGenerationConfig(FATHOM_SOURCE_DIR "/docs");
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->eos_token_ids.empty());
  auto config =
      ParseGenerationConfig(R"({"eos_token_id": [1, 7], "do_sample": false, "top_k": 20})", "x");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->eos_token_ids, (std::vector<TokenId>{1, 7}));
  EXPECT_EQ(config->temperature, 0.0);
  EXPECT_EQ(config->top_k, 20);
}

TEST(GenerationConfig, BadValuesAreListedByName) {
  for (const char* text :
       {"", "[]", "{", R"({"temperature": "hot"})", R"({"top_p": 0})", R"({"top_p": 2})",
        R"({"top_k": -1})", R"({"do_sample": 1})", R"({"eos_token_id": -1})",
        R"({"eos_token_id": 1.5})", R"({"eos_token_id": [[1]]})",
        R"({"eos_token_id": 99999999999999999999})"}) {
    EXPECT_FALSE(ParseGenerationConfig(text, "generation_config.json").ok()) << text;
  }
  const auto bad =
      ParseGenerationConfig(R"({"temperature": -1, "top_p": 5})", "generation_config.json");
  EXPECT_NE(bad.status().message().find("temperature"), std::string::npos);
  EXPECT_NE(bad.status().message().find("top_p"), std::string::npos);
}

}  // namespace
}  // namespace fathom
