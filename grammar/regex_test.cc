#include "grammar/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <memory>
#include <string>

#include "grammar/ebnf.h"
#include "grammar/json_schema.h"
#include "grammar/test_grammars.h"

namespace fathom {
namespace {

using testing::Accepts;
using testing::Compiled;
using testing::Random;

struct FreePcre {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};

// The whole of `text` matches `pattern`, by PCRE2.
class PcreOracle {
 public:
  explicit PcreOracle(const std::string& pattern) {
    const std::string whole = "\\A(?:" + pattern + ")\\z";
    int error = 0;
    size_t offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(whole.data()), whole.size(),
                              PCRE2_UTF | PCRE2_DOLLAR_ENDONLY, &error, &offset, nullptr));
  }
  [[nodiscard]] bool ok() const { return code_ != nullptr; }
  [[nodiscard]] bool Matches(const std::string& text) const {
    pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
    const int rc = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                               0, 0, data, nullptr);
    pcre2_match_data_free(data);
    return rc >= 0;
  }

 private:
  std::unique_ptr<pcre2_code, FreePcre> code_;
};

std::string RandomPattern(Random& random, int depth) {
  switch (depth == 0 ? random.Below(4) : random.Below(9)) {
    case 0:
    case 1:
      return random.Of<std::string>({"a", "b", "1", "é", "\\.", "\\x62", "_", "-"});
    case 2:
      return random.Of<std::string>({"\\d", "\\w", "\\s", "\\D", "\\W", ".", "\\S"});
    case 3:
      return random.Of<std::string>(
          {"[a-b]", "[^a]", "[\\d_]", "[^\\w.]", "[a\\-1]", "[é-ü]", "[^é]", "[-a]", "[a-]"});
    case 4:
    case 5:
      return RandomPattern(random, depth - 1) + RandomPattern(random, depth - 1);
    case 6:
      return "(" + RandomPattern(random, depth - 1) + "|" + RandomPattern(random, depth - 1) + ")";
    case 7:
      return "(?:" + RandomPattern(random, depth - 1) + ")" +
             random.Of<std::string>({"*", "+", "?", "{2}", "{1,}", "{0,2}", "*?", "{1,3}?"});
    default:
      return "(?<n" + std::to_string(random.Below(1'000'000)) + ">" +
             RandomPattern(random, depth - 1) + "|)";
  }
}

TEST(Regex, AgreesWithPcreOnRandomPatternsAndTexts) {
  Random random(3);
  const std::vector<std::string> letters = {"a", "b", "1", "é", ".", "_", " ", "-", "ü", "ab"};
  int num_matches = 0;
  for (int i = 0; i < 1'500; ++i) {
    const std::string pattern = RandomPattern(random, 4);
    const PcreOracle oracle(pattern);
    if (!oracle.ok()) continue;  // a group name twice
    const auto compiled = Compiled(RegexToGrammar(pattern));
    ASSERT_NE(compiled, nullptr) << pattern;
    Matcher matcher(compiled);
    for (int j = 0; j < 60; ++j) {
      std::string text;
      for (int k = random.Below(7); k > 0; --k) text += random.Of(letters);
      const auto at = matcher.StepText(matcher.start(), text);
      const bool accepts = at != Matcher::kDead && matcher.IsComplete(at);
      ASSERT_EQ(accepts, oracle.Matches(text)) << pattern << " on '" << text << "'";
      num_matches += accepts ? 1 : 0;
    }
    // And texts that match by construction.
    const std::string text = testing::RandomText(compiled, *testing::NanoTrie(), random, 6);
    ASSERT_TRUE(oracle.Matches(text)) << pattern << " on '" << text << "'";
  }
  EXPECT_GT(num_matches, 5'000);
}

TEST(Regex, AnchorsPinWhatIsFoundAndAreNothingInWholeMatches) {
  EXPECT_TRUE(Accepts(RegexToGrammar("^a+$"), "aa"));
  EXPECT_FALSE(Accepts(RegexToGrammar("a"), "xa"));
  const auto find = [](const char* pattern, const char* text) {
    GrammarBuilder builder;
    const RuleId root = builder.NewRule("root");
    const auto body = RegexToExpr(builder, pattern, RegexMatch::kFind, TextStyle::kRaw);
    EXPECT_TRUE(body.ok()) << body.status().ToString();
    builder.SetBody(root, *body);
    return Accepts(builder.Build(root), text);
  };
  EXPECT_TRUE(find("b", "abc"));
  EXPECT_FALSE(find("^b", "abc"));
  EXPECT_TRUE(find("^a|c$", "abb"));
  EXPECT_TRUE(find("^a|c$", "bbc"));
  EXPECT_FALSE(find("^a|c$", "bcb"));
  EXPECT_TRUE(find("x\ny", "a\nx\ny"));
}

TEST(Regex, NamesWhatItCannotDo) {
  const auto error_of = [](const std::string& pattern) {
    const auto grammar = RegexToGrammar(pattern);
    return grammar.ok() ? std::string("none") : grammar.status().ToString();
  };
  using ::testing::AllOf;
  using ::testing::HasSubstr;
  for (const auto& [pattern, word] :
       std::vector<std::pair<std::string, std::string>>{{"(?=a)b", "look-ahead"},
                                                        {"(?!a)b", "look-ahead"},
                                                        {"(?<=a)b", "look-behind"},
                                                        {"(a)\\1", "back reference"},
                                                        {"(?<n>a)\\k<n>", "back reference"},
                                                        {"\\bword", "word boundary"},
                                                        {"\\p{L}+", "Unicode property"},
                                                        {"a*+", "possessive"},
                                                        {"(?i)a", "group of this kind"},
                                                        {"(^a)", "'^'"},
                                                        {"a$b", "'$'"}}) {
    EXPECT_THAT(error_of(pattern), AllOf(HasSubstr("unimplemented"), HasSubstr(word))) << pattern;
  }
  for (const auto& [pattern, word] :
       std::vector<std::pair<std::string, std::string>>{{"(a", "without ')'"},
                                                        {"a)", "unmatched ')'"},
                                                        {"[a", "without ']'"},
                                                        {"*a", "nothing to repeat"},
                                                        {"a**", "nothing to repeat"},
                                                        {"a{3,2}", "below its minimum"},
                                                        {"a{999999999}", "repeat count above"},
                                                        {"[b-a]", "range"},
                                                        {"a\\", "unexpected end"},
                                                        {"\\y", "unknown escape"},
                                                        {"\\xg1", "hexadecimal"},
                                                        {"\xFF", "UTF-8"},
                                                        {std::string(300, '('), "nested groups"}}) {
    EXPECT_THAT(error_of(pattern), AllOf(HasSubstr("invalid argument"), HasSubstr(word)))
        << pattern;
  }
}

TEST(Ebnf, ReadsTheUsualNotation) {
  const auto grammar = Compiled(EbnfToGrammar(R"(# a comment
root  ::= item ("," ws item){0,2}   # and another
item  ::= number |
          "\"" [^"\\\n]+ "\"" |
          "\u00e9" | [a-cx-z\-]{2}
number ::= [0-9]+
ws ::= " "?
)"));
  for (const char* text : {"12", "\"hé\"", "1, 2,3", "é", "ax", "-z"}) {
    EXPECT_TRUE(Accepts(grammar, text)) << text;
  }
  for (const char* text : {"", "1,2,3,4", "\"\"", "d", "1,  2", "a"}) {
    EXPECT_FALSE(Accepts(grammar, text)) << text;
  }
}

TEST(Ebnf, ErrorsHaveLines) {
  const auto error_of = [](std::string_view text) {
    const auto grammar = EbnfToGrammar(text);
    return grammar.ok() ? std::string("none") : grammar.status().message();
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(error_of("a ::= \"x\""), HasSubstr("no rule 'root'"));
  EXPECT_THAT(error_of("root ::= \"x\"\nb ::= ( \"y\""), HasSubstr("line 2: a group"));
  EXPECT_THAT(error_of("root = \"x\""), HasSubstr("line 1: '::=' was expected"));
  EXPECT_THAT(error_of("root ::= \"x"), HasSubstr("without closing quote"));
  EXPECT_THAT(error_of("root ::= a\na ::= \"1\"\na ::= \"2\""), HasSubstr("defined twice"));
  EXPECT_THAT(error_of("root ::= \"a\"{3,1}"), HasSubstr("below its minimum"));
  EXPECT_THAT(error_of("root ::= \"\\ud800\""), HasSubstr("no character"));
  EXPECT_THAT(error_of("root ::= %"), HasSubstr("'%' was not expected"));
}

TEST(Choice, TakesExactlyItsTexts) {
  const auto grammar = Compiled(ChoiceGrammar({"yes", "yes!", "no", "é"}));
  for (const char* text : {"yes", "yes!", "no", "é"}) EXPECT_TRUE(Accepts(grammar, text)) << text;
  for (const char* text : {"", "ye", "no!", "yesno"}) EXPECT_FALSE(Accepts(grammar, text)) << text;
  EXPECT_FALSE(ChoiceGrammar({}).ok());
  EXPECT_FALSE(ChoiceGrammar({"\xC3"}).ok());
}

}  // namespace
}  // namespace fathom
