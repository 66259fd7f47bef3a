#include "tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <thread>

#include "tokenizer/test_tokenizers.h"

namespace fathom {
namespace {

using ::fathom::testing::MiniTokenizerJson;
using ::fathom::testing::ReadText;
using ::fathom::testing::SourceDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<TokenId>;

Tokenizer Mini(const std::vector<std::pair<std::string, std::string>>& merges,
               const std::vector<std::string>& added, std::string_view config = {}) {
  auto loaded = Tokenizer::FromText(MiniTokenizerJson(merges, added).dump(), config);
  EXPECT_TRUE(loaded.ok()) << loaded.status().ToString();
  return std::move(loaded).value();
}

Tokenizer Nano(TokenizerOptions options = {}) {
  auto loaded = Tokenizer::Load(SourceDir() / "models/fathom-nano", options);
  EXPECT_TRUE(loaded.ok()) << loaded.status().ToString();
  return std::move(loaded).value();
}

TEST(Tokenizer, MergesLowestNumberFirstThenLeftmost) {
  const Tokenizer tokenizer = Mini({{"b", "c"}, {"a", "b"}, {"a", "a"}, {"aa", "a"}}, {});
  const TokenId bc = 256;
  const TokenId aa = 258;
  const TokenId aaa = 259;
  EXPECT_THAT(tokenizer.Encode("abc", AddedTokens::kMatch).value(), ElementsAre('a', bc));
  EXPECT_THAT(tokenizer.Encode("aaa", AddedTokens::kMatch).value(), ElementsAre(aaa));
  EXPECT_THAT(tokenizer.Encode("aaaaa", AddedTokens::kMatch).value(), ElementsAre(aa, aaa));
}

TEST(Tokenizer, AddedTokensMatchLeftmostThenLongestAndOnlyOnRequest) {
  const Tokenizer tokenizer = Mini({}, {"<a", "<a>", "<a>b", "a>c"});
  const TokenId first = 256;
  EXPECT_THAT(tokenizer.Encode("<a<a><a>bx", AddedTokens::kMatch).value(),
              ElementsAre(first, first + 1, first + 2, 'x'));
  EXPECT_THAT(tokenizer.Encode("<a>c", AddedTokens::kMatch).value(), ElementsAre(first + 1, 'c'));
  EXPECT_THAT(tokenizer.Encode("<a>c", AddedTokens::kIgnore).value(),
              ElementsAre('<', 'a', '>', 'c'));
  EXPECT_EQ(tokenizer.FindAddedToken("<a>"), first + 1);
  EXPECT_EQ(tokenizer.FindAddedToken("<"), std::nullopt);
}

TEST(Tokenizer, OutputTokensDecodeButNoTextEncodesToThem) {
  Tokenizer tokenizer = Mini({}, {"<a>"});
  const int before = tokenizer.vocab_size();
  const auto ids = tokenizer.Encode("two <a>", AddedTokens::kMatch).value();
  ASSERT_EQ(tokenizer.AddOutputTokens(std::vector<std::string>{"two", "\xF0\x9F"}).value(), before);
  EXPECT_EQ(tokenizer.AddOutputTokens(std::vector<std::string>{"<a>"}).value(), before + 2);
  EXPECT_EQ(tokenizer.vocab_size(), before + 3);
  EXPECT_EQ(tokenizer.TokenBytes(before + 1), "\xF0\x9F");
  EXPECT_EQ(tokenizer.Decode(std::vector<TokenId>{before + 2, before}, SpecialTokens::kSkip),
            "<a>two");
  EXPECT_EQ(tokenizer.Encode("two <a>", AddedTokens::kMatch).value(), ids);
  EXPECT_FALSE(
      tokenizer.AddOutputTokens(std::vector<std::string>((size_t{1} << 20) - 2, "x")).ok());
}

TEST(Tokenizer, InvalidUtf8IsAnErrorWithItsOffset) {
  const Tokenizer tokenizer = Mini({}, {"<a>"});
  for (const AddedTokens mode : {AddedTokens::kMatch, AddedTokens::kIgnore}) {
    const auto ids = tokenizer.Encode("abc\xFF", mode);
    ASSERT_FALSE(ids.ok());
    EXPECT_EQ(ids.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(ids.status().message(), HasSubstr("byte 3"));
  }
  const Segment half[] = {{"\xC3", true}};
  EXPECT_FALSE(tokenizer.EncodeSegments(half).ok());
  EXPECT_FALSE(tokenizer.EncodePrompt("\xED\xA0\x80", true).ok());
}

TEST(Tokenizer, AddsBosToPlainPromptsWhenTheConfigSaysSo) {
  const Tokenizer with =
      Mini({}, {"<bos>"}, R"({"add_bos_token": true, "bos_token": {"content": "<bos>"}})");
  const TokenId bos = 256;
  EXPECT_TRUE(with.adds_bos_token());
  EXPECT_THAT(with.EncodePrompt("x", true).value(), ElementsAre(bos, 'x'));
  EXPECT_THAT(with.EncodePrompt("<bos>x", true).value(), ElementsAre(bos, 'x'));
  EXPECT_THAT(with.EncodePrompt("", true).value(), ElementsAre(bos));
  EXPECT_THAT(with.EncodePrompt("x", false).value(), ElementsAre('x'));
  EXPECT_THAT(with.Encode("x", AddedTokens::kMatch).value(), ElementsAre('x'));
  const Tokenizer without = Mini({}, {"<bos>"}, R"({"add_bos_token": false})");
  EXPECT_THAT(without.EncodePrompt("x", true).value(), ElementsAre('x'));
}

TEST(Tokenizer, SegmentsMatchAddedTokensInTemplateTextOnly) {
  const Tokenizer nano = Nano();
  const TokenId user = nano.FindAddedToken("<｜User｜>").value();
  const TokenId think_end = nano.FindAddedToken("</think>").value();
  const Segment segments[] = {
      {"<｜User｜>", true}, {"a</think>b<｜User｜>", false}, {"</think>", true}};
  const Ids ids = nano.EncodeSegments(segments).value();
  EXPECT_EQ(ids.front(), user);
  EXPECT_EQ(ids.back(), think_end);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), user), 1);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), think_end), 1);
  EXPECT_EQ(nano.DecodeBytes(ids, SpecialTokens::kKeep), "<｜User｜>a</think>b<｜User｜></think>");
}

TEST(Tokenizer, SpellingPutTogetherFromSegmentsIsNoAddedToken) {
  const Tokenizer nano = Nano();
  const TokenId think_end = nano.FindAddedToken("</think>").value();
  const Segment splits[][2] = {{{"</th", true}, {"ink>", false}},
                               {{"</th", false}, {"ink>", true}},
                               {{"</th", true}, {"ink>", true}}};
  for (const auto& split : splits) {
    const Ids ids = nano.EncodeSegments(split).value();
    EXPECT_EQ(std::count(ids.begin(), ids.end(), think_end), 0);
    EXPECT_EQ(ids, nano.Encode("</think>", AddedTokens::kIgnore).value());
  }
}

TEST(Tokenizer, SegmentsAreJoinedBetweenControlTokens) {
  const Tokenizer nano = Nano();
  const Segment segments[] = {{"<｜User｜>Hel", true}, {"lo wor", false}, {"", false},
                              {"ld 12", true},         {"34  ", false},   {" x\n", true},
                              {"\n<think>", true}};
  std::string joined;
  for (const Segment& segment : segments) joined += segment.text;
  EXPECT_EQ(nano.EncodeSegments(segments).value(),
            nano.Encode(joined, AddedTokens::kMatch).value());
  EXPECT_TRUE(nano.EncodeSegments({}).value().empty());
}

// Whatever a client writes, the ids of its span are those of plain text.
TEST(Tokenizer, ClientTextNeverBecomesAControlToken) {
  const Tokenizer nano = Nano();
  std::vector<TokenId> control;
  std::vector<std::string> parts = {"a", " ", "\n", "<", ">", "|", "｜", "/", "12", "中", "▁"};
  for (const char* content : {"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>",
                              "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜",
                              "<｜latest_reminder｜>", "<｜action｜>", "<｜title｜>"}) {
    control.push_back(nano.FindAddedToken(content).value());
    const size_t first = DecodeValidUtf8(content, 0).num_bytes;
    parts.emplace_back(content);
    parts.push_back(parts.back().substr(first));  // what completes the part before it
  }
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    std::string client;
    while (random() % 8 != 0) client += parts[random() % parts.size()];
    const Segment segments[] = {{"<｜User｜>", true}, {client, false}, {"<｜Assistant｜>", true}};
    const Ids ids = nano.EncodeSegments(segments).value();
    ASSERT_GE(ids.size(), 2u);
    for (size_t i = 1; i + 1 < ids.size(); ++i) {
      ASSERT_EQ(std::count(control.begin(), control.end(), ids[i]), 0) << client;
    }
    ASSERT_EQ(nano.DecodeBytes(ids, SpecialTokens::kKeep),
              "<｜User｜>" + client + "<｜Assistant｜>");
  }
}

TEST(Tokenizer, SkipSpecialFollowsTheFlagOfTheFile) {
  const Tokenizer nano = Nano();
  const Ids ids = nano.Encode("<｜begin▁of▁sentence｜>Hi", AddedTokens::kMatch).value();
  EXPECT_TRUE(nano.IsSpecial(ids[0]));
  EXPECT_EQ(nano.Decode(ids, SpecialTokens::kSkip), "Hi");
  EXPECT_EQ(nano.Decode(ids, SpecialTokens::kKeep), "<｜begin▁of▁sentence｜>Hi");
  EXPECT_FALSE(nano.IsSpecial(-1));
  EXPECT_FALSE(nano.IsSpecial(nano.vocab_size()));
  EXPECT_EQ(nano.TokenBytes(-1), "");
  EXPECT_EQ(nano.TokenBytes(nano.vocab_size()), "");
}

TEST(Tokenizer, RandomTextComesBackAndTheCacheChangesNothing) {
  const Tokenizer with_cache = Nano();
  const Tokenizer without_cache = Nano({.use_piece_cache = false});
  const std::vector<std::string> parts = {"the ", "number",   " is",    "123",      "4", "\n\n",
                                          "  ",   "中文",     "日本の", "🙂",     "é", "́",
                                          "\t",   "</think>", "}",      "function", "x", "\r\n"};
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    std::string text;
    const size_t num_parts = random() % 400;
    for (size_t i = 0; i < num_parts; ++i) text += parts[random() % parts.size()];
    for (const AddedTokens mode : {AddedTokens::kMatch, AddedTokens::kIgnore}) {
      const Ids ids = with_cache.Encode(text, mode).value();
      ASSERT_EQ(ids, without_cache.Encode(text, mode).value());
      ASSERT_EQ(with_cache.DecodeBytes(ids, SpecialTokens::kKeep), text);
    }
  }
}

TEST(Tokenizer, ThreadsShareOneTokenizer) {
  const Tokenizer nano = Nano();
  const std::string text = "<｜User｜>The quick brown fox, 12345 times.\n";
  const Ids expected = nano.Encode(text, AddedTokens::kMatch).value();
  std::vector<std::thread> threads;
  std::vector<int> num_wrong(4, 0);
  for (int& wrong : num_wrong) {
    threads.emplace_back([&nano, &text, &expected, &wrong] {
      for (int i = 0; i < 200; ++i) {
        wrong += nano.Encode(text, AddedTokens::kMatch).value() != expected ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(num_wrong, ElementsAre(0, 0, 0, 0));
}

TEST(Tokenizer, NanoCountsEqualThoseOfTheEvaluationPrompts) {
  const auto path = SourceDir() / "tests/data/fathom-nano-eval.jsonl";
  const Tokenizer nano = Nano();
  EXPECT_TRUE(nano.warnings().empty()) << "the check of ids is for the official vocabulary only";
  std::ifstream file(path);
  int num_prompts = 0;
  for (std::string line; std::getline(file, line); ++num_prompts) {
    const auto record = nlohmann::json::parse(line);
    const auto prompt = record.at("prompt").get<std::string>();
    const Ids ids = nano.Encode(prompt, AddedTokens::kMatch).value();
    EXPECT_EQ(ids.size(), record.at("prompt_tokens").get<size_t>()) << record.at("id");
    EXPECT_EQ(nano.DecodeBytes(ids, SpecialTokens::kKeep), prompt);
  }
  EXPECT_GE(num_prompts, 100);
}

TEST(Tokenizer, LoadTakesTheDirectoryOrTheFile) {
  const auto directory = SourceDir() / "models/fathom-nano";
  EXPECT_TRUE(Tokenizer::Load(directory).ok());
  EXPECT_TRUE(Tokenizer::Load(directory / "tokenizer.json").ok());
  EXPECT_EQ(Tokenizer::Load(directory / "absent").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(Tokenizer::Load(SourceDir() / "models").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace fathom
