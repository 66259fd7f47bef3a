// Front ends read what clients send: whatever it is, there is an answer in reasonable time, and a
// grammar that comes of it can be compiled, or refused, and walked to an end.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "grammar/constraints.h"
#include "grammar/ebnf.h"
#include "grammar/json_schema.h"
#include "grammar/regex.h"
#include "grammar/test_grammars.h"
#include "grammar/tool_call_grammar.h"

namespace fathom {
namespace {

using testing::NanoTrie;
using testing::Random;

// Compiles and walks a little; every state must leave a token or be complete.
void Walk(const Result<Grammar>& grammar, Random& random, const std::string& what) {
  if (!grammar.ok()) return;
  const auto compiled = CompileGrammar(*grammar, NanoTrie().get());
  if (!compiled.ok()) return;
  auto constraint = NewGrammarConstraint(*compiled, NanoTrie(), {.end_tokens = {1}});
  const auto num_words = static_cast<size_t>(NanoTrie()->vocab_size() + 63) / 64;
  for (int i = 0; i < 12; ++i) {
    std::vector<uint64_t> mask(num_words, ~uint64_t{0});
    constraint->Restrict(mask);
    const std::vector<TokenId> tokens = testing::TokensIn(mask);
    ASSERT_FALSE(tokens.empty()) << what;
    const TokenId suggested = constraint->Suggest();
    ASSERT_TRUE(std::find(tokens.begin(), tokens.end(), suggested) != tokens.end()) << what;
    constraint->Accept(random.OneIn(3) ? suggested : random.Of(tokens));
  }
}

std::string Mutated(std::string text, const std::string& letters, Random& random) {
  for (int i = 1 + random.Below(4); i > 0 && !text.empty(); --i) {
    const auto at = static_cast<size_t>(random.Below(static_cast<int>(text.size())));
    switch (random.Below(4)) {
      case 0:
        text[at] = letters[static_cast<size_t>(random.Below(static_cast<int>(letters.size())))];
        break;
      case 1:
        text.insert(at, 1,
                    letters[static_cast<size_t>(random.Below(static_cast<int>(letters.size())))]);
        break;
      case 2:
        text.erase(at, static_cast<size_t>(1 + random.Below(3)));
        break;
      default:
        text.insert(at, text.substr(at, static_cast<size_t>(random.Below(12))));
    }
  }
  return text;
}

TEST(Robustness, Regexes) {
  Random random(41);
  const std::vector<std::string> seeds = {"^(a|b)*c{2,30}[^x-z\\d]+\\w?$",
                                          "(?:\\s|\\S){0,400}é{5}",
                                          "[\\w.-]+@[\\w-]+(\\.[a-z]{2,})+",
                                          "((((a?){9}){9}){9}){9}",
                                          "(a*)*(b+)+|()",
                                          "\\u00e9\\x41[\\u{1F600}-\\u{1F64F}]"};
  for (int i = 0; i < 3'000; ++i) {
    const std::string pattern =
        Mutated(random.Of(seeds), "()[]{}|*+?^$\\.,-0159abcdwxu\"\xC3\xA9 ", random);
    Walk(RegexToGrammar(pattern), random, pattern);
  }
}

TEST(Robustness, EbnfGrammars) {
  Random random(42);
  const std::vector<std::string> seeds = {
      "root ::= \"(\" root* \")\" | [a-z]+ #x\n",
      "root ::= a b c\na ::= \"x\"?\nb ::= a{2,5} | c\nc ::= [^\\n]* \"\\u00e9\"\n",
      "root ::= expr\nexpr ::= term (\"+\" term){0,90}\nterm ::= [0-9]{1,} | \"(\" expr \")\"\n",
      "root ::= x x x x\nx ::= y y y y\ny ::= z z z z | \"\"\nz ::= [ab]?\n"};
  for (int i = 0; i < 3'000; ++i) {
    const std::string text = Mutated(random.Of(seeds), "()[]{}|*+?^\".:=-019abcrot \n#\\,", random);
    Walk(EbnfToGrammar(text), random, text);
  }
}

nlohmann::json RandomJson(Random& random, int depth) {
  using nlohmann::json;
  const std::vector<std::string> keys = {"type",
                                         "properties",
                                         "required",
                                         "items",
                                         "prefixItems",
                                         "anyOf",
                                         "oneOf",
                                         "allOf",
                                         "$ref",
                                         "enum",
                                         "const",
                                         "minLength",
                                         "maxLength",
                                         "pattern",
                                         "format",
                                         "minimum",
                                         "maximum",
                                         "minItems",
                                         "maxItems",
                                         "additionalProperties",
                                         "$defs",
                                         "a",
                                         "exclusiveMaximum",
                                         "uniqueItems",
                                         "not"};
  switch (depth == 0 ? random.Below(6) : random.Below(10)) {
    case 0:
      return random.OneIn(2) ? json(nullptr) : json(random.OneIn(2));
    case 1:
    case 2:
      return random.Of<std::string>({"object", "array", "string", "integer", "number", "null",
                                     "boolean", "#", "#/$defs/a", "#/properties/a", "date", "a",
                                     "^a+$", "[", "(b|c)*", "uuid", ""});
    case 3:
      return random.Below(200) - 20;
    case 4:
      return random.Of<double>({0.5, -1e300, 1e15, 3.0, 1e-9});
    case 5:
    case 6: {
      json list = json::array();
      for (int i = random.Below(4); i > 0; --i)
        list.push_back(RandomJson(random, std::max(0, depth - 1)));
      return list;
    }
    default: {
      json object = json::object();
      for (int i = random.Below(6); i > 0; --i) {
        object[random.Of(keys)] = RandomJson(random, depth - 1);
      }
      return object;
    }
  }
}

TEST(Robustness, Schemas) {
  Random random(43);
  int num_grammars = 0;
  for (int i = 0; i < 10'000; ++i) {
    const std::string text = RandomJson(random, 4).dump();
    const auto value = ParseJson(text);
    ASSERT_TRUE(value.ok());
    for (const bool lenient : {false, true}) {
      const auto grammar = JsonSchemaToGrammar(*value, {.lenient = lenient});
      num_grammars += grammar.ok() ? 1 : 0;
      if (i % 8 == 0) Walk(grammar, random, text);
    }
    const ToolSpec tool{.name = "t", .parameters = &*value, .path = "tools[0]"};
    const auto calls = ToolCallGrammar(std::span(&tool, 1), {});
    if (i % 8 == 0) Walk(calls, random, text);
  }
  EXPECT_GT(num_grammars, 1'000);
}

// Seeds that are mostly schemas, one thing changed.
TEST(Robustness, DamagedSchemas) {
  Random random(44);
  const std::vector<std::string> seeds = {
      R"({"type":"object","properties":{"a":{"type":"string","maxLength":300},"b":{"$ref":"#/$defs/x"}},"required":["a"],"$defs":{"x":{"anyOf":[{"type":"null"},{"$ref":"#"}]}}})",
      R"({"allOf":[{"$ref":"#/$defs/p"},{"properties":{"q":{"enum":[1,"x",null]}},"required":["q"]}],"$defs":{"p":{"type":"object","properties":{"q":{},"r":{"type":["integer","string"],"minimum":-5}}}}})",
      R"({"type":"array","prefixItems":[{"const":1},{"type":"number","maximum":10}],"items":{"oneOf":[{"type":"boolean"},{"type":"string","format":"date"}]},"minItems":1,"maxItems":400})"};
  for (int i = 0; i < 4'000; ++i) {
    const std::string text = Mutated(random.Of(seeds), "{}[]\",:0159aefnrtx$#/-.", random);
    const auto value = ParseJson(text);
    if (!value.ok()) continue;
    Walk(JsonSchemaToGrammar(*value), random, text);
    Walk(JsonSchemaToGrammar(*value, {.lenient = true}), random, text);
  }
}

TEST(Robustness, LargeAndDeepInputsAreAnsweredInTime) {
  Random random(45);
  const auto repeated = [](std::string_view part, int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += part;
    return text;
  };
  for (const std::string& pattern :
       {repeated("(", 100'000), repeated("a?", 30'000), repeated("(a|b)*", 10'000),
        repeated("[^a]", 16'000), repeated("(", 150) + "a" + repeated("){1000}", 150),
        std::string("(.{1000000}){1000000}"), repeated("a|", 30'000), repeated("\\w+", 20'000)}) {
    Walk(RegexToGrammar(pattern), random, pattern.substr(0, 20));
  }
  for (const std::string& text :
       {"root ::= " + repeated("(", 100'000), "root ::= " + repeated("\"a\" | ", 50'000) + "\"b\"",
        "root ::= " + repeated("r ", 60'000) + "\nr ::= [ab]?",
        "root ::= " + repeated("\"a\"? ", 100'000)}) {
    Walk(EbnfToGrammar(text), random, text.substr(0, 20));
  }
  std::string nested = "{}";
  for (int i = 0; i < 80; ++i) {
    nested = R"({"type":"object","properties":{"a":)" + nested + "}}";
  }
  std::string wide = R"({"type":"object","properties":{"a0":{})";
  for (int i = 1; i < 3'000; ++i) wide += ",\"a" + std::to_string(i) + R"(":{"type":"string"})";
  wide += R"(},"additionalProperties":true})";
  std::string listed = R"({"enum":["0")";
  for (int i = 1; i < 20'000; ++i) listed += ",\"text " + std::to_string(i) + "\"";
  for (const std::string& text :
       {nested, wide, listed + "]}", repeated(R"({"allOf":[)", 60) + "{}" + repeated("]}", 60)}) {
    const auto value = ParseJson(text);
    ASSERT_TRUE(value.ok()) << value.status().ToString();
    const auto grammar = JsonSchemaToGrammar(*value);
    Walk(grammar, random, text.substr(0, 20));
  }
}

}  // namespace
}  // namespace fathom
