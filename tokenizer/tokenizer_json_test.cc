#include "tokenizer/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "tokenizer/test_tokenizers.h"
#include "tokenizer/tokenizer.h"

namespace fathom {
namespace {

using ::fathom::testing::MiniTokenizerJson;
using nlohmann::json;
using ::testing::HasSubstr;

json Mini() { return MiniTokenizerJson({{"a", "b"}, {"ab", "c"}}, {"<x>", "<y>"}); }

TEST(TokenizerJson, ReadsBothSpellingsOfMerges) {
  json pairs = Mini();
  pairs["model"]["merges"] = json::parse(R"([["a", "b"], ["ab", "c"]])");
  const TokenizerData from_pairs = ParseTokenizerJson(pairs.dump()).value();
  const TokenizerData from_texts = ParseTokenizerJson(Mini().dump()).value();
  ASSERT_EQ(from_pairs.merges.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(from_pairs.merges[i].left, from_texts.merges[i].left);
    EXPECT_EQ(from_pairs.merges[i].right, from_texts.merges[i].right);
    EXPECT_EQ(from_pairs.merges[i].result, from_texts.merges[i].result);
  }
  EXPECT_EQ(from_texts.token_bytes[257], "abc");
  EXPECT_EQ(from_texts.token_bytes[258], "<x>");
}

TEST(TokenizerJson, IdsWithoutTokenHaveNoBytes) {
  json root = Mini();
  root["added_tokens"][1]["id"] = 300;
  const TokenizerData data = ParseTokenizerJson(root.dump()).value();
  ASSERT_EQ(data.token_bytes.size(), 301u);
  EXPECT_EQ(data.token_bytes[299], "");
}

struct Damage {
  const char* name;
  std::function<void(json&)> apply;
  StatusCode code;
  const char* message;  // part of it
};

const StatusCode kBad = StatusCode::kInvalidArgument;
const StatusCode kOther = StatusCode::kUnimplemented;

const std::vector<Damage>& AllDamage() {
  static const std::vector<Damage> all = {
      {"ModelTypeUnigram", [](json& r) { r["model"]["type"] = "Unigram"; }, kOther, "'Unigram'"},
      {"ModelTypeMissing", [](json& r) { r["model"].erase("type"); }, kOther, "expected 'BPE'"},
      {"ModelMissing", [](json& r) { r.erase("model"); }, kOther, "model none"},
      {"ModelList", [](json& r) { r["model"] = json::array(); }, kOther, "expected 'BPE'"},
      {"NormalizerNfc",
       [](json& r) {
         r["normalizer"] = {{"type", "NFC"}};
       },
       kOther, "'NFC'"},
      {"NormalizerSequenceOfOne",
       [](json& r) {
         r["normalizer"]["normalizers"].push_back({{"type", "NFC"}});
       },
       kOther, "normalizer"},
      {"PreTokenizerMissing", [](json& r) { r.erase("pre_tokenizer"); }, kOther, "pre_tokenizer"},
      {"PreTokenizerByteLevel",
       [](json& r) {
         r["pre_tokenizer"] = {{"type", "ByteLevel"}};
       },
       kOther, "'ByteLevel'"},
      {"FirstRegexDiffers",
       [](json& r) { r["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\p{N}{1,2}"; },
       kOther, "step 1"},
      {"ThirdRegexDiffers",
       [](json& r) { r["pre_tokenizer"]["pretokenizers"][2]["pattern"]["Regex"] = "x"; }, kOther,
       "step 3"},
      {"PatternIsText",
       [](json& r) {
         r["pre_tokenizer"]["pretokenizers"][1]["pattern"] = {{"String", "a"}};
       },
       kOther, "step 2"},
      {"SplitRemoves",
       [](json& r) { r["pre_tokenizer"]["pretokenizers"][1]["behavior"] = "Removed"; }, kOther,
       "Isolated"},
      {"SplitInverts", [](json& r) { r["pre_tokenizer"]["pretokenizers"][1]["invert"] = true; },
       kOther, "invert"},
      {"StepMissing", [](json& r) { r["pre_tokenizer"]["pretokenizers"].erase(0); }, kOther,
       "pre_tokenizer"},
      {"PrefixSpace",
       [](json& r) { r["pre_tokenizer"]["pretokenizers"][3]["add_prefix_space"] = true; }, kOther,
       "add_prefix_space"},
      {"OwnRegexOfByteLevel",
       [](json& r) { r["pre_tokenizer"]["pretokenizers"][3].erase("use_regex"); }, kOther,
       "use_regex"},
      {"PostProcessorAddsTokens",
       [](json& r) {
         r["post_processor"] = {{"type", "TemplateProcessing"}};
       },
       kOther, "'TemplateProcessing'"},
      {"DecoderMetaspace", [](json& r) { r["decoder"]["type"] = "Metaspace"; }, kOther,
       "'Metaspace'"},
      {"Truncation",
       [](json& r) {
         r["truncation"] = {{"max_length", 5}};
       },
       kOther, "truncation"},
      {"Padding",
       [](json& r) {
         r["padding"] = {{"length", 5}};
       },
       kOther, "padding"},
      {"Dropout", [](json& r) { r["model"]["dropout"] = 0.1; }, kOther, "dropout"},
      {"UnkToken", [](json& r) { r["model"]["unk_token"] = "<x>"; }, kOther, "unk_token"},
      {"Suffix", [](json& r) { r["model"]["end_of_word_suffix"] = "</w>"; }, kOther, "suffix"},
      {"ByteFallback", [](json& r) { r["model"]["byte_fallback"] = true; }, kOther,
       "byte_fallback"},
      {"IgnoreMerges", [](json& r) { r["model"]["ignore_merges"] = true; }, kOther,
       "ignore_merges"},
      {"VocabMissing", [](json& r) { r["model"].erase("vocab"); }, kBad, "vocab"},
      {"VocabList",
       [](json& r) {
         r["model"]["vocab"] = {1, 2};
       },
       kBad, "vocab"},
      {"VocabEmpty", [](json& r) { r["model"]["vocab"] = json::object(); }, kBad, ""},
      {"VocabIdTwice", [](json& r) { r["model"]["vocab"]["a"] = 98; }, kBad, "no other entry"},
      {"VocabIdNegative", [](json& r) { r["model"]["vocab"]["a"] = -1; }, kBad, "'a'"},
      {"VocabIdHuge", [](json& r) { r["model"]["vocab"]["a"] = 0xFFFFFFFFFFFFFFFFu; }, kBad, "'a'"},
      {"VocabIdOutOfRange", [](json& r) { r["model"]["vocab"]["a"] = 258; }, kBad, "'a'"},
      {"VocabIdFraction", [](json& r) { r["model"]["vocab"]["a"] = 97.0; }, kBad, "'a'"},
      {"VocabIdText", [](json& r) { r["model"]["vocab"]["a"] = "97"; }, kBad, "'a'"},
      {"VocabGap", [](json& r) { r["model"]["vocab"].erase("z"); }, kBad, "below"},
      {"VocabSymbolNotInAlphabet",
       [](json& r) {
         r["model"]["vocab"].erase("abc");
         r["model"]["vocab"]["中"] = 257;
         r["model"]["merges"].erase(1);
       },
       kBad, "byte alphabet"},
      {"VocabEmptySymbol",
       [](json& r) {
         r["model"]["vocab"][""] = 258;
         r["added_tokens"] = json::array();
       },
       kBad, "byte alphabet"},
      {"ByteSymbolMissing",
       [](json& r) {
         r["model"]["vocab"].erase("z");
         r["model"]["vocab"]["zz"] = 'z';
       },
       kBad, "byte 122"},
      {"MergesMissing", [](json& r) { r["model"].erase("merges"); }, kBad, "merges"},
      {"MergesObject", [](json& r) { r["model"]["merges"] = json::object(); }, kBad, "merges"},
      {"MergeUnknownOperand", [](json& r) { r["model"]["merges"][0] = "a qq"; }, kBad, "'qq'"},
      {"MergeUnknownResult", [](json& r) { r["model"]["merges"][0] = "a c"; }, kBad, "'c'"},
      {"MergeOfOne", [](json& r) { r["model"]["merges"][0] = "ab"; }, kBad, "expected"},
      {"MergeOfThree", [](json& r) { r["model"]["merges"][0] = "a b c"; }, kBad, "'b c'"},
      {"MergeListOfThree",
       [](json& r) {
         r["model"]["merges"][0] = {"a", "b", "c"};
       },
       kBad, "expected"},
      {"MergeListOfNumbers",
       [](json& r) {
         r["model"]["merges"][0] = {1, 2};
       },
       kBad, "expected"},
      {"MergeNumber", [](json& r) { r["model"]["merges"][0] = 7; }, kBad, "expected"},
      {"MergeEmptyOperand",
       [](json& r) {
         r["model"]["merges"][0] = {"", "ab"};
       },
       kBad, "''"},
      {"MergeTwice", [](json& r) { r["model"]["merges"][1] = "a b"; }, kBad, "merged twice"},
      {"AddedNotList",
       [](json& r) {
         r["added_tokens"] = {{"a", 1}};
       },
       kBad, "list"},
      {"AddedNumber", [](json& r) { r["added_tokens"][0] = 5; }, kBad, "content"},
      {"AddedWithoutId", [](json& r) { r["added_tokens"][0].erase("id"); }, kBad, "id"},
      {"AddedIdHuge", [](json& r) { r["added_tokens"][0]["id"] = 4000000000u; }, kBad, "id"},
      {"AddedIdNegative", [](json& r) { r["added_tokens"][0]["id"] = -3; }, kBad, "id"},
      {"AddedIdTwice", [](json& r) { r["added_tokens"][1]["id"] = 258; }, kBad, "twice"},
      {"AddedIdOfAnotherEntry", [](json& r) { r["added_tokens"][0]["id"] = 97; }, kBad,
       "contradicts"},
      {"AddedContentOfAnotherId", [](json& r) { r["added_tokens"][0]["content"] = "ab"; }, kBad,
       "contradicts"},
      {"AddedContentTwice", [](json& r) { r["added_tokens"][1]["content"] = "<x>"; }, kBad,
       "twice"},
      {"AddedContentEmpty", [](json& r) { r["added_tokens"][0]["content"] = ""; }, kBad, "content"},
      {"AddedContentLong",
       [](json& r) { r["added_tokens"][0]["content"] = std::string(100000, 'x'); }, kBad,
       "content"},
      {"AddedSpecialNumber", [](json& r) { r["added_tokens"][0]["special"] = 1; }, kBad, "special"},
      {"AddedStrips", [](json& r) { r["added_tokens"][0]["lstrip"] = true; }, kOther, "lstrip"},
      {"AddedSingleWord", [](json& r) { r["added_tokens"][0]["single_word"] = true; }, kOther,
       "single_word"},
  };
  return all;
}

class DamagedTokenizerJson : public ::testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(TokenizerJson, DamagedTokenizerJson,
                         ::testing::Range(size_t{0}, AllDamage().size()),
                         [](const auto& p) { return AllDamage()[p.param].name; });

TEST_P(DamagedTokenizerJson, IsRefusedWithAMessage) {
  const Damage& damage = AllDamage()[GetParam()];
  json root = Mini();
  damage.apply(root);
  const auto result = Tokenizer::FromText(root.dump());
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), damage.code) << result.status().ToString();
  EXPECT_THAT(result.status().message(), HasSubstr(damage.message));
  EXPECT_LT(result.status().message().size(), 400u) << "a message must not repeat the file";
}

TEST(TokenizerJson, NotJsonIsRefused) {
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("null"), std::string("[]"), std::string("{}"),
        std::string("\xFF\xFE"), std::string("{\"a\":\"\xFF\"}"), std::string("{\"model\":1e999}"),
        std::string(1, '\0')}) {
    EXPECT_FALSE(Tokenizer::FromText(text).ok()) << text;
  }
}

TEST(TokenizerJson, DeepNestingIsRefusedBeforeParsing) {
  for (const std::string unit : {"[", "{\"a\":", "[[{\"a\":["}) {
    std::string text;
    while (text.size() < 4'000'000) text += unit;
    const auto result = Tokenizer::FromText(text);
    ASSERT_FALSE(result.ok());
    EXPECT_THAT(result.status().message(), HasSubstr("nested"));
  }
  // Brackets inside texts are no nesting.
  json root = Mini();
  root["comment"] = std::string(1000, '[') + "\\\"" + std::string(1000, '{');
  EXPECT_TRUE(Tokenizer::FromText(root.dump()).ok());
}

TEST(TokenizerJson, HugeFileIsRefused) {
  const auto result = Tokenizer::FromText(std::string(kMaxTokenizerJsonBytes + 1, ' '));
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.status().message(), HasSubstr("larger"));
}

// Every value of the file replaced by others: an error or a tokenizer that works, never a crash.
TEST(TokenizerJson, AnyValueOfAnotherTypeIsSurvived) {
  json root = Mini();
  // Few entries of each list are enough.
  const json flat = root.flatten();
  const std::vector<json> values = {nullptr,
                                    true,
                                    -1,
                                    1e300,
                                    "",
                                    "Sequence",
                                    json::array(),
                                    json::object(),
                                    258,
                                    json::array({nullptr}),
                                    json::object({{"type", "ByteLevel"}})};
  int num_paths = 0;
  for (const auto& [path, ignored] : flat.items()) {
    if (path.rfind("/model/vocab/", 0) == 0 && num_paths % 16 != 0) {
      ++num_paths;
      continue;
    }
    ++num_paths;
    for (json::json_pointer at(path); !at.empty(); at = at.parent_pointer()) {
      for (const json& value : values) {
        json damaged = root;
        damaged[at] = value;
        const auto result = Tokenizer::FromText(damaged.dump());
        if (result.ok()) {
          EXPECT_TRUE(result.value().Encode("abc <x> 12", AddedTokens::kMatch).ok());
        }
      }
      if (path.rfind("/model/vocab/", 0) == 0) break;
    }
  }
}

TEST(TokenizerJson, RandomBytesChangedOrCutAreSurvived) {
  const std::string whole = Mini().dump();
  std::mt19937 random(17);
  for (int round = 0; round < 2000; ++round) {
    std::string text = whole;
    const size_t num_changes = 1 + random() % 4;
    for (size_t i = 0; i < num_changes; ++i) {
      constexpr char kBytes[] = "{}[]\",:0123456789-\\ax\x80\xFF";
      text[random() % text.size()] = kBytes[random() % (sizeof(kBytes) - 1)];
    }
    if (random() % 4 == 0) text.resize(random() % text.size());
    const auto result = Tokenizer::FromText(text);
    if (result.ok()) {
      EXPECT_TRUE(result.value().Encode("abc", AddedTokens::kMatch).ok());
    }
  }
}

TEST(TokenizerConfig, ReadsBosInBothSpellings) {
  const auto as_text =
      ParseTokenizerConfig(R"({"add_bos_token": true, "bos_token": "<x>"})").value();
  EXPECT_TRUE(as_text.add_bos_token);
  EXPECT_EQ(as_text.bos_token, "<x>");
  const auto as_token = ParseTokenizerConfig(R"({"bos_token": {"content": "<x>"}})").value();
  EXPECT_FALSE(as_token.add_bos_token);
  EXPECT_EQ(as_token.bos_token, "<x>");
  EXPECT_FALSE(ParseTokenizerConfig("{}").value().add_bos_token);
}

TEST(TokenizerConfig, RefusesWhatItCannotHonour) {
  const std::string mini = Mini().dump();
  const std::pair<const char*, const char*> bad[] = {
      {"{", "not valid JSON"},
      {"[]", "not a JSON object"},
      {R"({"add_bos_token": 1})", "not a boolean"},
      {R"({"add_eos_token": true})", "add_eos_token"},
      {R"({"bos_token": 5})", "bos_token"},
      {R"({"bos_token": {"content": 5}})", "bos_token"},
      {R"({"add_bos_token": true})", "no added token"},
      {R"({"add_bos_token": true, "bos_token": "a"})", "no added token"}};
  for (const auto& [config, message] : bad) {
    const auto result = Tokenizer::FromText(mini, config);
    ASSERT_FALSE(result.ok()) << config;
    EXPECT_THAT(result.status().message(), HasSubstr(message));
  }
}

}  // namespace
}  // namespace fathom
