#include "grammar/token_mask.h"

#include <gtest/gtest.h>

#include "grammar/ebnf.h"
#include "grammar/json_grammar.h"
#include "grammar/json_schema.h"
#include "grammar/regex.h"
#include "grammar/test_grammars.h"
#include "grammar/tool_call_grammar.h"

namespace fathom {
namespace {

using testing::Compiled;
using testing::Random;
using testing::StepToken;

TEST(TokenTrie, HoldsEveryTokenOnceAndControlTokensApart) {
  std::vector<TokenTrie::Token> tokens = {{"ab"}, {"a"},  {""},    {"<c>", true},
                                          {"b"},  {"ab"}, {"\xFF"}};
  const TokenTrie trie(tokens);
  ASSERT_EQ(trie.nodes().size(), 5u);  // "", a, ab, b, FF
  EXPECT_EQ(trie.nodes()[1].token, 1);
  EXPECT_EQ(trie.nodes()[2].token, 0);
  ASSERT_EQ(trie.twins().size(), 1u);
  EXPECT_EQ(trie.twins()[0].token, 5);
  EXPECT_EQ(trie.nodes()[1].skip, 3);
  EXPECT_EQ(trie.Child(0, 'b'), 3);
  EXPECT_EQ(trie.Child(1, 'a'), -1);
  EXPECT_EQ(trie.FindControl("<c>"), 3);
  EXPECT_EQ(trie.Child(0, '<'), -1);
  EXPECT_EQ(trie.Bytes(3), "<c>");
  EXPECT_EQ(trie.Bytes(99), "");
}

TEST(TokenTrie, OfATokenizerHasAllItsTokens) {
  const Tokenizer& tokenizer = testing::NanoTokenizer();
  const auto trie = testing::NanoTrie();
  ASSERT_EQ(trie->vocab_size(), tokenizer.vocab_size());
  std::vector<int> num_found(static_cast<size_t>(trie->vocab_size()), 0);
  for (const TokenTrie::Node& node : trie->nodes()) {
    if (node.token >= 0) ++num_found[static_cast<size_t>(node.token)];
  }
  for (TokenId id = 0; id < trie->vocab_size(); ++id) {
    EXPECT_EQ(trie->Bytes(id), tokenizer.TokenBytes(id));
    EXPECT_EQ(num_found[static_cast<size_t>(id)], trie->IsControl(id) ? 0 : 1) << id;
  }
  EXPECT_TRUE(trie->FindControl("｜DSML｜").has_value());
}

std::vector<std::shared_ptr<const CompiledGrammar>> SomeGrammars(const TokenTrie& trie) {
  const auto parameters = ParseJson(
      R"({"type":"object","properties":{"path":{"type":"string"},"n":{"type":["integer","string"]},
          "mode":{"enum":["fast","slow",1]},"o":{"type":"object"}},"required":["path"]})");
  EXPECT_TRUE(parameters.ok());
  const std::vector<ToolSpec> tools = {
      {.name = "read", .parameters = &*parameters, .path = "tools[0]"},
      {.name = "stop", .path = "tools[1]"}};
  const auto schema = ParseJson(R"({"type":"array","items":{"type":"string","maxLength":70}})");
  return {
      Compiled(JsonObjectGrammar(), &trie),
      Compiled(RegexToGrammar("([A-Z][a-z]{1,40} ?)+|\\d{3}-\\d{4}|é[^\\w]+"), &trie),
      Compiled(EbnfToGrammar("root ::= \"(\" root* \")\" | [a-z]+ \" \" | .{3}"), &trie),
      Compiled(JsonSchemaToGrammar(*schema), &trie),
      Compiled(ToolCallGrammar(tools, {}), &trie),
      Compiled(ToolCallGrammar(tools, {.parallel = false, .is_opened = true}), &trie),
  };
}

TEST(TokenMask, EqualsTryingEveryToken) {
  const auto trie = testing::NanoTrie();
  Random random(5);
  for (const auto& grammar : SomeGrammars(*trie)) {
    ASSERT_NE(grammar, nullptr);
    for (int round = 0; round < 6; ++round) {
      Matcher matcher(grammar), oracle(grammar);
      Matcher::Config at = matcher.start(), oracle_at = oracle.start();
      for (int i = 0; i < 40; ++i) {
        std::vector<uint64_t> mask(static_cast<size_t>(trie->vocab_size()) / 64 + 1, 0);
        ComputeTokenMask(matcher, at, *trie, mask);
        const std::vector<TokenId> allowed = testing::TokensIn(mask);
        std::vector<TokenId> expected;
        for (TokenId id = 0; id < trie->vocab_size(); ++id) {
          if (StepToken(oracle, oracle_at, *trie, id) != Matcher::kDead) expected.push_back(id);
        }
        ASSERT_EQ(allowed, expected);
        if (allowed.empty()) break;
        const TokenId token = random.Of(allowed);
        at = StepToken(matcher, at, *trie, token);
        oracle_at = StepToken(oracle, oracle_at, *trie, token);
      }
    }
  }
}

TEST(ShortestToken, EndsFromEverywhere) {
  const auto trie = testing::NanoTrie();
  Random random(6);
  for (const auto& grammar : SomeGrammars(*trie)) {
    for (int round = 0; round < 20; ++round) {
      Matcher matcher(grammar);
      Matcher::Config at = matcher.start();
      for (int i = random.Below(30); i > 0; --i) {
        std::vector<uint64_t> mask(static_cast<size_t>(trie->vocab_size()) / 64 + 1, 0);
        ComputeTokenMask(matcher, at, *trie, mask);
        const std::vector<TokenId> allowed = testing::TokensIn(mask);
        if (allowed.empty()) break;
        at = StepToken(matcher, at, *trie, random.Of(allowed));
      }
      while (!matcher.IsComplete(at)) {
        const int64_t distance = matcher.Distance(at);
        const TokenId token = ShortestToken(matcher, at, *trie);
        ASSERT_GE(token, 0);
        at = StepToken(matcher, at, *trie, token);
        ASSERT_NE(at, Matcher::kDead);
        const auto length =
            trie->IsControl(token) ? 1 : static_cast<int64_t>(trie->Bytes(token).size());
        ASSERT_EQ(matcher.Distance(at), distance - length);
      }
    }
  }
}

}  // namespace
}  // namespace fathom
