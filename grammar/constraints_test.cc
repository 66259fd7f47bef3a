#include "grammar/constraints.h"

#include <gtest/gtest.h>

#include "chat/markers.h"
#include "grammar/ebnf.h"
#include "grammar/json_grammar.h"
#include "grammar/regex.h"
#include "grammar/test_grammars.h"
#include "grammar/tool_call_grammar.h"

namespace fathom {
namespace {

using testing::Compiled;
using testing::kNanoEos;
using testing::NanoTokenizer;
using testing::NanoTrie;
using testing::Random;

// What an engine does: a mask before each token, and the script's token or, where that is not
// allowed, the suggested one.
class Engine {
 public:
  explicit Engine(std::unique_ptr<TokenConstraint> constraint)
      : constraint_(std::move(constraint)) {}

  std::vector<TokenId> Allowed() {
    std::vector<uint64_t> mask(static_cast<size_t>(NanoTrie()->vocab_size() + 63) / 64, 0);
    for (TokenId t = 0; t < NanoTrie()->vocab_size(); ++t) {
      mask[static_cast<size_t>(t) / 64] |= uint64_t{1} << (t % 64);
    }
    const std::vector<uint64_t> full = mask;
    const bool has_cleared = constraint_->Restrict(mask);
    EXPECT_EQ(has_cleared, mask != full);
    std::vector<TokenId> tokens = testing::TokensIn(mask);
    EXPECT_FALSE(tokens.empty());
    return tokens;
  }
  bool IsFree() { return Allowed().size() == static_cast<size_t>(NanoTrie()->vocab_size()); }
  bool Allows(TokenId token) {
    const std::vector<TokenId> tokens = Allowed();
    return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
  }
  void Accept(TokenId token) { constraint_->Accept(token); }
  void AcceptText(std::string_view text) {
    const auto tokens = NanoTokenizer().Encode(text, AddedTokens::kMatch);
    ASSERT_TRUE(tokens.ok());
    for (const TokenId token : *tokens) {
      ASSERT_TRUE(Allows(token)) << NanoTrie()->Bytes(token);
      Accept(token);
    }
  }
  // The text that comes of a script, to the end token.
  std::string Replay(std::string_view script) {
    const auto tokens = NanoTokenizer().Encode(script, AddedTokens::kMatch);
    EXPECT_TRUE(tokens.ok());
    std::string text;
    for (size_t i = 0; i < 5'000; ++i) {
      TokenId token = i < tokens->size() ? (*tokens)[i] : kNanoEos;
      if (!Allows(token)) token = constraint_->Suggest();
      EXPECT_TRUE(Allows(token)) << token << " after " << text;
      Accept(token);
      if (token == kNanoEos) return text;
      text += NanoTrie()->Bytes(token);
    }
    ADD_FAILURE() << "no end: " << text;
    return text;
  }

 private:
  std::unique_ptr<TokenConstraint> constraint_;
};

TokenId ThinkClose() { return *NanoTrie()->FindControl("</think>"); }

std::unique_ptr<TokenConstraint> Hold(const Result<Grammar>& grammar, bool starts_in_reasoning,
                                      std::string opener = {}) {
  GrammarConstraintOptions options{.end_tokens = {kNanoEos}, .opener = std::move(opener)};
  if (starts_in_reasoning) options.start_after = ThinkClose();
  return NewGrammarConstraint(Compiled(grammar, NanoTrie().get()), NanoTrie(), options);
}

const std::vector<ToolSpec>& Tools() {
  static const JsonValue emit =
      *ParseJson(R"({"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]})");
  static const JsonValue other =
      *ParseJson(R"({"type":"object","properties":{"s":{"type":"string"}}})");
  static const std::vector<ToolSpec> tools = {
      {.name = "emit", .parameters = &emit, .path = "tools[0]"},
      {.name = "other", .parameters = &other, .path = "tools[1]"}};
  return tools;
}

TEST(GrammarConstraint, LetsThroughWhatConformsAndEndsThere) {
  Engine engine(Hold(JsonObjectGrammar(), false));
  EXPECT_FALSE(engine.Allows(kNanoEos));
  EXPECT_EQ(engine.Replay("{\"ok\": true, \"n\": 1}"), "{\"ok\": true, \"n\": 1}");
  EXPECT_EQ(engine.Allowed(), std::vector<TokenId>{kNanoEos});  // and stays ended
}

// Field report R048.
TEST(GrammarConstraint, ReasoningIsFreeAndTheAnswerIsNot) {
  Engine engine(Hold(JsonObjectGrammar(), true));
  EXPECT_TRUE(engine.IsFree());
  EXPECT_EQ(engine.Replay("free thoughts</think>{\"ok\": true, \"n\": 1}"),
            "free thoughts</think>{\"ok\": true, \"n\": 1}");
}

TEST(GrammarConstraint, ReasoningMayBeClosedByTheSpelledOutMark) {
  Engine engine(Hold(JsonObjectGrammar(), true));
  const auto tokens = NanoTokenizer().Encode("so</think>", AddedTokens::kIgnore);
  ASSERT_TRUE(tokens.ok());
  for (const TokenId token : *tokens) {
    ASSERT_TRUE(engine.Allows(token));
    engine.Accept(token);
  }
  EXPECT_FALSE(engine.IsFree());
  engine.AcceptText("{}");
  EXPECT_TRUE(engine.Allows(kNanoEos));
}

// A token that closes the reasoning and goes on must go on as the grammar begins.
TEST(GrammarConstraint, TokensAcrossTheBorderAreHeldToTheGrammar) {
  std::vector<TokenTrie::Token> tokens;
  for (int byte = 0; byte < 256; ++byte)
    tokens.push_back({std::string(1, static_cast<char>(byte))});
  tokens.push_back({"<eos>", true});
  tokens.push_back({"</think>", true});
  const auto good = static_cast<TokenId>(tokens.size());
  tokens.push_back({"k>yes"});
  tokens.push_back({"k>no"});
  const auto trie = std::make_shared<const TokenTrie>(tokens);
  const auto constraint = NewGrammarConstraint(Compiled(RegexToGrammar("yes|yet"), trie.get()),
                                               trie, {.end_tokens = {256}, .start_after = 257});
  for (const char c : std::string_view("hm</thin")) constraint->Accept(static_cast<uint8_t>(c));
  std::vector<uint64_t> mask(5, ~uint64_t{0});
  EXPECT_TRUE(constraint->Restrict(mask));
  EXPECT_TRUE(mask[static_cast<size_t>(good) / 64] >> (good % 64) & 1);
  EXPECT_FALSE(mask[static_cast<size_t>(good + 1) / 64] >> ((good + 1) % 64) & 1);
  constraint->Accept(good);
  EXPECT_EQ(constraint->Suggest(), 256);
}

// Field report R050: the model would rather talk.
TEST(GrammarConstraint, RequiredToolCallsComeOfAnyScript) {
  Engine engine(Hold(ToolCallGrammar(Tools(), {}), true));
  const std::string text = engine.Replay("hm</think>I would rather talk.");
  EXPECT_TRUE(text.starts_with("hm</think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\""))
      << text;
  EXPECT_TRUE(text.ends_with("</｜DSML｜invoke>\n</｜DSML｜tool_calls>")) << text;
  Engine named(Hold(ToolCallGrammar(std::span(Tools()).first(1), {.parallel = false}), true));
  EXPECT_EQ(named.Replay("hm</think>I would rather talk."),
            "hm</think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"emit\">\n"
            "<｜DSML｜parameter name=\"n\" string=\"false\">0</｜DSML｜parameter>\n"
            "</｜DSML｜invoke>\n</｜DSML｜tool_calls>");
}

// Field report R053, with strict tools.
TEST(GrammarConstraint, AnOpenedBlockIsHeldAndTheRestIsFree) {
  const auto make = [](bool starts_in_reasoning) {
    return Hold(ToolCallGrammar(Tools(), {.is_opened = true}), starts_in_reasoning,
                std::string(markers::kToolCallsOpen));
  };
  Engine engine(make(false));
  const std::string call =
      "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"emit\">\n"
      "<｜DSML｜parameter name=\"n\" string=\"false\">12</｜DSML｜parameter>\n"
      "</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
  EXPECT_TRUE(engine.IsFree());
  engine.AcceptText("ok <｜DSML｜tool_call <think>\n\n<｜DSML｜tool_calls");
  EXPECT_TRUE(engine.Allows(kNanoEos));
  engine.AcceptText(">");
  EXPECT_FALSE(engine.IsFree());
  EXPECT_FALSE(engine.Allows(kNanoEos));
  engine.AcceptText(call.substr(std::string("<｜DSML｜tool_calls>").size()));
  EXPECT_TRUE(engine.IsFree());
  engine.AcceptText("and again " + call + " done");
  EXPECT_TRUE(engine.IsFree());

  const std::string broken = "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke nme=emit>";
  const std::string mended = Engine(make(false)).Replay("ok" + broken);
  EXPECT_TRUE(mended.starts_with("ok\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke n")) << mended;
  EXPECT_NE(mended.find("\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"), std::string::npos) << mended;
  EXPECT_EQ(mended.find("nme"), std::string::npos) << mended;
  // While reasoning the block is a quotation.
  EXPECT_EQ(Engine(make(true)).Replay("I think" + broken + "</think>no"),
            "I think" + broken + "</think>no");
}

TEST(GrammarConstraint, NeverEndsBeforeItMayAndAlwaysCan) {
  Random random(31);
  for (int round = 0; round < 10; ++round) {
    Engine engine(Hold(EbnfToGrammar("root ::= \"(\" root* \")\" | [a-zé]+ \".\""), false));
    std::string text;
    for (int i = 0; i < 30; ++i) {
      const TokenId token = random.Of(engine.Allowed());
      engine.Accept(token);
      if (token == kNanoEos) break;
      text += NanoTrie()->Bytes(token);
    }
    text += engine.Replay("");
    EXPECT_TRUE(testing::Accepts(EbnfToGrammar("root ::= \"(\" root* \")\" | [a-zé]+ \".\""), text))
        << text;
  }
}

TEST(AllowedTokens, AreTheOnlyOnes) {
  Engine engine(NewAllowedTokens(std::vector<TokenId>{5, 900, 7}));
  EXPECT_EQ(engine.Allowed(), (std::vector<TokenId>{5, 7, 900}));
  engine.Accept(5);
  EXPECT_EQ(engine.Allowed(), (std::vector<TokenId>{5, 7, 900}));
}

TEST(BadWords, LastTokensAreMaskedAfterTheOnesBefore) {
  Engine engine(NewBadWords({{10, 11, 12}, {11, 13}, {40}}, kNanoEos));
  EXPECT_FALSE(engine.Allows(40));
  EXPECT_TRUE(engine.Allows(12));
  engine.Accept(10);
  engine.Accept(11);
  EXPECT_FALSE(engine.Allows(12));
  EXPECT_FALSE(engine.Allows(13));
  EXPECT_TRUE(engine.Allows(11));
  engine.Accept(11);
  EXPECT_TRUE(engine.Allows(12));
  EXPECT_FALSE(engine.Allows(13));
}

TEST(BadWords, AreMadeWithAndWithoutASpace) {
  const std::vector<std::string> words = {"the"};
  const auto sequences = BadWordTokens(NanoTokenizer(), words);
  ASSERT_TRUE(sequences.ok());
  for (const auto& sequence : *sequences) {
    const std::string text = NanoTokenizer().DecodeBytes(sequence, SpecialTokens::kKeep);
    EXPECT_TRUE(text == "the" || text == " the") << text;
  }
  EXPECT_EQ(sequences->size(), 2u);
  EXPECT_FALSE(BadWordTokens(NanoTokenizer(), std::vector<std::string>{" "}).ok());
  EXPECT_FALSE(BadWordTokens(NanoTokenizer(), std::vector<std::string>{"\xFF"}).ok());
}

TEST(ThinkingBudget, ForcesTheCloseAfterSoManyTokens) {
  Engine engine(NewThinkingBudget(2, ThinkClose(), kNanoEos, true));
  EXPECT_TRUE(engine.IsFree());
  engine.Accept(10);
  EXPECT_TRUE(engine.IsFree());
  engine.Accept(11);
  EXPECT_EQ(engine.Allowed(), std::vector<TokenId>{ThinkClose()});
  engine.Accept(ThinkClose());
  EXPECT_TRUE(engine.IsFree());
  Engine at_once(NewThinkingBudget(0, ThinkClose(), kNanoEos, true));
  EXPECT_EQ(at_once.Allowed(), std::vector<TokenId>{ThinkClose()});
  Engine not_thinking(NewThinkingBudget(0, ThinkClose(), kNanoEos, false));
  EXPECT_TRUE(not_thinking.IsFree());
}

TEST(Compose, RestrictsTogetherAndEarlierOnesWin) {
  std::vector<std::unique_ptr<TokenConstraint>> parts;
  parts.push_back(Hold(ChoiceGrammar({"{}", "{ }"}), true));
  parts.push_back(NewThinkingBudget(3, ThinkClose(), kNanoEos, true));
  parts.push_back(NewAllowedTokens(*NanoTokenizer().Encode("ab{", AddedTokens::kIgnore)));
  Engine engine(Compose(std::move(parts)));
  const auto ab = NanoTokenizer().Encode("ab{", AddedTokens::kIgnore);
  EXPECT_EQ(engine.Allowed().size(), ab->size());
  for (int i = 0; i < 3; ++i) engine.Accept((*ab)[0]);
  // The close is not among the allowed tokens, but nothing else is possible.
  EXPECT_EQ(engine.Allowed(), std::vector<TokenId>{ThinkClose()});
  EXPECT_EQ(engine.Replay("xxxxxxxxx"), "</think>{}");
}

}  // namespace
}  // namespace fathom
