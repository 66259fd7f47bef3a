#include "grammar/matcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "grammar/ebnf.h"
#include "grammar/json_grammar.h"
#include "grammar/test_grammars.h"

namespace fathom {
namespace {

using testing::Accepts;
using testing::Compiled;
using testing::NaiveReader;
using testing::Random;

class RandomGrammar {
 public:
  explicit RandomGrammar(Random& random) : random_(random) {}

  Result<Grammar> Make() {
    for (int i = 0; i < 4; ++i) rules_.push_back(builder_.NewRule("r" + std::to_string(i)));
    for (const RuleId rule : rules_) builder_.SetBody(rule, Expr(3));
    return builder_.Build(rules_[0]);
  }

 private:
  ExprId Expr(int depth) {
    switch (depth == 0 ? random_.Below(4) : random_.Below(10)) {
      case 0:
      case 1:
        return builder_.Literal(random_.Of<std::string>({"a", "b", "c", "ab", "", "ca"}));
      case 2:
        return builder_.Byte('a', 'a' + random_.Below(3));
      case 3:
        return builder_.Use(random_.Of(rules_));
      case 4:
      case 5:
        return builder_.Sequence({Expr(depth - 1), Expr(depth - 1), Expr(depth - 1)});
      case 6:
        return builder_.Choice({Expr(depth - 1), Expr(depth - 1)});
      case 7:
        return builder_.Repeat(Expr(depth - 1), random_.Below(2), GrammarBuilder::kUnlimited);
      case 8: {
        const int min = random_.Below(3);
        return builder_.Repeat(Expr(depth - 1), min, min + random_.Below(3));
      }
      default:
        return builder_.Automaton(OneOfStrings({"a", "ab", "bc"}));
    }
  }

  Random& random_;
  GrammarBuilder builder_;
  std::vector<RuleId> rules_;
};

std::vector<std::string> TextsUpTo(size_t max_length) {
  std::vector<std::string> texts = {""};
  for (size_t i = 0; texts[i].size() < max_length; ++i) {
    for (const char c : {'a', 'b', 'c'}) texts.push_back(texts[i] + c);
  }
  return texts;
}

TEST(Matcher, AgreesWithBacktrackingOnRandomGrammars) {
  Random random(1);
  const std::vector<std::string> texts = TextsUpTo(5);
  int num_compared = 0, num_accepted = 0;
  while (num_compared < 250) {
    const auto grammar = RandomGrammar(random).Make();
    ASSERT_TRUE(grammar.ok()) << grammar.status().ToString();
    const auto compiled = CompileGrammar(*grammar, nullptr);
    if (!compiled.ok()) continue;  // left recursion, or no finite text
    ++num_compared;
    Matcher matcher(*compiled);
    for (const std::string& text : texts) {
      const Matcher::Config at = matcher.StepText(matcher.start(), text);
      const bool accepts = at != Matcher::kDead && matcher.IsComplete(at);
      ASSERT_EQ(accepts, NaiveReader(*grammar, text).Matches())
          << "grammar " << num_compared << " text '" << text << "'";
      num_accepted += accepts ? 1 : 0;
      if (at == Matcher::kDead) continue;
      // What is still open can be completed, in exactly the promised number of bytes.
      std::string completed = text;
      Matcher::Config next = at;
      const int64_t distance = matcher.Distance(at);
      ASSERT_LT(distance, 1000);
      while (!matcher.IsComplete(next)) {
        const auto symbol = matcher.ShortestStep(next);
        ASSERT_GE(symbol, 0);
        completed +=
            static_cast<char>(matcher.grammar().byte_of_symbol[static_cast<size_t>(symbol)]);
        next = matcher.Step(next, symbol);
      }
      ASSERT_EQ(static_cast<int64_t>(completed.size() - text.size()), distance);
      if (completed.size() < 12) {
        ASSERT_TRUE(NaiveReader(*grammar, completed).Matches());
      }
    }
  }
  EXPECT_GT(num_accepted, 2'000);
}

TEST(Matcher, CompactChangesNothing) {
  const auto grammar = Compiled(JsonObjectGrammar());
  Matcher kept(grammar), compacted(grammar);
  auto a = kept.start(), b = compacted.start();
  // Deeper and deeper, so that no configuration is seen twice.
  std::string text = "{\"k\":";
  for (int i = 0; i < 30'000; ++i) text += i % 2 == 0 ? "[" : "[{\"a\":";
  for (const char c : text) {
    a = kept.StepByte(a, static_cast<uint8_t>(c));
    b = compacted.Compact(compacted.StepByte(b, static_cast<uint8_t>(c)));
    ASSERT_NE(b, Matcher::kDead);
    ASSERT_EQ(kept.Distance(a), compacted.Distance(b));
  }
  EXPECT_GT(compacted.generation(), 0);
  for (int i = 0; i < 1000 && !compacted.IsComplete(b); ++i) {
    const auto symbol = kept.ShortestStep(a);
    a = kept.Step(a, symbol);
    b = compacted.Step(b, symbol);
    ASSERT_NE(b, Matcher::kDead);
  }
}

TEST(Matcher, LargeRepeatsCountExactly) {
  GrammarBuilder builder;
  const RuleId root = builder.NewRule("root");
  builder.SetBody(root, builder.Repeat(builder.Byte('a', 'z'), 700, 1'301));
  const auto grammar = Compiled(builder.Build(root));
  Matcher matcher(grammar);
  auto at = matcher.start();
  for (int i = 0; i <= 1'301; ++i) {
    ASSERT_NE(at, Matcher::kDead) << i;
    ASSERT_EQ(matcher.IsComplete(at), i >= 700) << i;
    at = matcher.StepByte(at, 'x');
  }
  EXPECT_EQ(at, Matcher::kDead);
  EXPECT_LT(grammar->states.size(), 1'000u);
}

// Every split of the letters is a different derivation; they must share what they have in common.
TEST(Matcher, AmbiguityStaysAffordable) {
  const auto grammar =
      Compiled(EbnfToGrammar("root ::= \"a\" root root | \"a\" root | \"a\" x\nx ::= \"b\"*"));
  Matcher matcher(grammar);
  auto at = matcher.start();
  for (int i = 0; i < 600; ++i) at = matcher.StepByte(matcher.Compact(at), 'a');
  ASSERT_NE(at, Matcher::kDead);
  EXPECT_TRUE(matcher.IsComplete(at));
  EXPECT_LT(matcher.work(), 100'000'000);
}

TEST(CompileGrammar, RefusesWhatNoMatcherCouldRead) {
  const auto error_of = [](std::string_view text) {
    const auto grammar = EbnfToGrammar(text);
    if (!grammar.ok()) return grammar.status().message();
    const auto compiled = CompileGrammar(*grammar, nullptr);
    return compiled.ok() ? std::string("none") : compiled.status().message();
  };
  EXPECT_THAT(error_of("root ::= root \"a\" | \"b\""), ::testing::HasSubstr("'root' begins with"));
  EXPECT_THAT(error_of("root ::= \"x\" a\na ::= b? a \"a\" | \"b\"\nb ::= \"c\""),
              ::testing::HasSubstr("'a' begins with"));
  EXPECT_THAT(error_of("root ::= \"a\" root"), ::testing::HasSubstr("no text of finite length"));
  EXPECT_THAT(error_of("root ::= \"a\" other"), ::testing::HasSubstr("'other' is used but not"));
  EXPECT_EQ(error_of("root ::= \"a\" root | \"b\" root root | \"c\""), "none");
}

TEST(JsonObjectGrammar, TakesObjectsAndNothingElse) {
  const auto grammar = Compiled(JsonObjectGrammar());
  for (const char* text :
       {"{}", "{\"ok\": true, \"n\": 1}", "{ \"a\" : [ ] }", "\n{\"a\":[1,-2.5e-3,{}]}",
        "{\"a\":\"\\u00e9\\ud83d\\ude00 \xF0\x9F\x98\x80\"}",
        "{\n  \"a\": {\n    \"b\": null\n  }\n}"}) {
    EXPECT_TRUE(Accepts(grammar, text)) << text;
  }
  for (const char* text : {"", "[]", "{\"a\"}", "{\"a\":1,}", "{\"a\":01}", "{\"a\":\"\\ud83d\"}",
                           "{\"a\":\"\n\"}", "{\"a\":\"\xC3\"}", "{\"a\":\"\xED\xA0\x80\"}",
                           "{\"a\":1} ", "{\"a\":1e999}", "{                              }"}) {
    EXPECT_FALSE(Accepts(grammar, text)) << text;
  }
}

}  // namespace
}  // namespace fathom
