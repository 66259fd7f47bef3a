#include "grammar/tool_call_grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "grammar/test_grammars.h"

namespace fathom {
namespace {

using nlohmann::json;
using testing::Accepts;
using testing::Compiled;
using ::testing::HasSubstr;
using testing::Random;

JsonValue Value(std::string_view text) {
  auto parsed = ParseJson(text);
  FATHOM_CHECK(parsed.ok(), parsed.status().ToString());
  return std::move(parsed).value();
}

struct Call {
  std::string name;
  std::vector<std::pair<std::string, json>> parameters;
};

// The official format to the letter, and only that: nothing is repaired.
class StrictReader {
 public:
  explicit StrictReader(std::string_view text) : text_(text) {}

  std::optional<std::vector<Call>> Read() {
    std::vector<Call> calls;
    if (!Take("\n\n<｜DSML｜tool_calls>")) return std::nullopt;
    while (Take("\n<｜DSML｜invoke name=\"")) {
      const auto name = Until("\">\n");
      if (!name.has_value()) return std::nullopt;
      calls.push_back({*name, {}});
      bool is_first = true;
      while (!text_.starts_with("\n</｜DSML｜invoke>")) {
        if (!is_first && !Take("\n")) return std::nullopt;
        is_first = false;
        if (!Take("<｜DSML｜parameter name=\"")) return std::nullopt;
        const auto key = Until("\" string=\"");
        const bool is_string = Take("true\">");
        if (!key.has_value() || (!is_string && !Take("false\">"))) return std::nullopt;
        const auto value = Until("</｜DSML｜parameter>");
        if (!value.has_value()) return std::nullopt;
        json parsed = is_string ? json(*value) : json::parse(*value, nullptr, false);
        if (parsed.is_discarded() || (!is_string && parsed.is_string())) return std::nullopt;
        calls.back().parameters.emplace_back(*key, std::move(parsed));
      }
      Take("\n</｜DSML｜invoke>");
    }
    if (calls.empty() || !Take("\n</｜DSML｜tool_calls>") || !text_.empty()) return std::nullopt;
    return calls;
  }

 private:
  bool Take(std::string_view word) {
    if (!text_.starts_with(word)) return false;
    text_.remove_prefix(word.size());
    return true;
  }
  std::optional<std::string> Until(std::string_view end) {
    const size_t at = text_.find(end);
    if (at == std::string_view::npos) return std::nullopt;
    std::string part(text_.substr(0, at));
    text_.remove_prefix(at + end.size());
    return part;
  }

  std::string_view text_;
};

class ToolCalls : public ::testing::Test {
 protected:
  const JsonValue write_ = Value(R"({"type":"object","properties":{
      "path":{"type":"string"},"mode":{"type":"string","enum":["w","a"]},
      "lines":{"type":"array","items":{"type":"integer"}},
      "note":{"type":["string","null"]},"any":{}},"required":["path","lines"]})");
  const JsonValue open_ = Value(R"({"type":"object"})");
  const std::vector<ToolSpec> tools_ = {
      {.name = "write", .parameters = &write_, .path = "tools[0].function.parameters"},
      {.name = "stop", .path = "tools[1].function.parameters"},
      {.name = "free", .parameters = &open_, .path = "tools[2].function.parameters"}};
};

TEST_F(ToolCalls, HaveTheOfficialText) {
  const auto grammar = Compiled(ToolCallGrammar(tools_, {}));
  const std::string one =
      "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"write\">\n"
      "<｜DSML｜parameter name=\"path\" string=\"true\">a \"b\" </p> <｜</｜DSML｜parameter>\n"
      "<｜DSML｜parameter name=\"mode\" string=\"true\">a</｜DSML｜parameter>\n"
      "<｜DSML｜parameter name=\"lines\" string=\"false\">[1, 2]</｜DSML｜parameter>\n"
      "<｜DSML｜parameter name=\"note\" string=\"false\">null</｜DSML｜parameter>\n"
      "</｜DSML｜invoke>";
  const std::string stop = "\n<｜DSML｜invoke name=\"stop\">\n\n</｜DSML｜invoke>";
  const std::string end = "\n</｜DSML｜tool_calls>";
  EXPECT_TRUE(Accepts(grammar, one + end));
  EXPECT_TRUE(Accepts(grammar, one + stop + end));
  EXPECT_FALSE(Accepts(grammar, one + stop));
  EXPECT_FALSE(Accepts(grammar, one + end + "\n"));
  const auto replaced = [&](std::string_view from, std::string_view to) {
    std::string text = one + end;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  EXPECT_FALSE(Accepts(grammar, replaced("\">a</", "\">x</")));      // not of the enum
  EXPECT_FALSE(Accepts(grammar, replaced("[1, 2]", "[1, \"2\"]")));  // not of the schema
  EXPECT_FALSE(Accepts(grammar, replaced("name=\"path\"", "name=\"p\"")));
  EXPECT_FALSE(Accepts(grammar, replaced("\"write\"", "\"wipe\"")));
  EXPECT_TRUE(Accepts(grammar, replaced("\"false\">null", "\"true\">null")));
  EXPECT_FALSE(Accepts(grammar, replaced("<｜</", "</｜DSML｜invoke></")));
  EXPECT_FALSE(Accepts(grammar, replaced("<｜</", "\xFF</")));

  const auto single = Compiled(ToolCallGrammar(tools_, {.parallel = false}));
  EXPECT_TRUE(Accepts(single, one + end));
  EXPECT_FALSE(Accepts(single, one + stop + end));
  const auto opened = Compiled(ToolCallGrammar(tools_, {.is_opened = true}));
  const std::string rest = (one + end).substr(std::string("\n\n<｜DSML｜tool_calls>").size());
  EXPECT_TRUE(Accepts(opened, rest));
  EXPECT_TRUE(Accepts(opened, rest + "\n and \xFF more"));
}

TEST_F(ToolCalls, OfRandomTokensReadStrictlyAndConform) {
  const auto trie = testing::NanoTrie();
  const auto grammar = Compiled(ToolCallGrammar(tools_, {}), trie.get());
  ASSERT_EQ(grammar->control_tokens.size(), 1u);
  Random random(21);
  int num_parameters = 0;
  for (int i = 0; i < 400; ++i) {
    const std::string text = testing::RandomText(grammar, *trie, random, random.Below(80));
    const auto calls = StrictReader(text).Read();
    ASSERT_TRUE(calls.has_value()) << text;
    for (const Call& call : *calls) {
      num_parameters += static_cast<int>(call.parameters.size());
      if (call.name == "stop") {
        ASSERT_TRUE(call.parameters.empty());
      }
      if (call.name != "write") continue;
      std::vector<std::string> keys;
      for (const auto& [key, value] : call.parameters) {
        keys.push_back(key);
        if (key == "path") {
          ASSERT_TRUE(value.is_string());
        }
        if (key == "mode") {
          ASSERT_TRUE(value == "w" || value == "a") << value;
        }
        if (key == "note") {
          ASSERT_TRUE(value.is_string() || value.is_null());
        }
        if (key != "lines") continue;
        ASSERT_TRUE(value.is_array());
        for (const json& line : value) ASSERT_TRUE(line.is_number_integer() || line.is_number());
      }
      const std::vector<std::string> order = {"path", "mode", "lines", "note", "any"};
      std::vector<std::string> expected;
      for (const std::string& key : order) {
        const bool is_there = std::find(keys.begin(), keys.end(), key) != keys.end();
        if (is_there || key == "path" || key == "lines") expected.push_back(key);
      }
      ASSERT_EQ(keys, expected) << text;
    }
  }
  EXPECT_GT(num_parameters, 150);
}

// The model has one token for the middle of a tag, and text that only looks like it is no tag.
TEST_F(ToolCalls, TagsAreMadeOfTheControlToken) {
  const auto trie = testing::NanoTrie();
  const auto grammar = Compiled(ToolCallGrammar(tools_, {}), trie.get());
  const TokenId dsml = *trie->FindControl("｜DSML｜");
  Matcher matcher(grammar);
  Matcher::Config at = matcher.StepText(matcher.start(), "\n\n<");
  ASSERT_NE(at, Matcher::kDead);
  EXPECT_EQ(matcher.StepText(at, "｜"), Matcher::kDead);
  at = testing::StepToken(matcher, at, *trie, dsml);
  at = matcher.StepText(at, "tool_calls>\n<");
  at = testing::StepToken(matcher, at, *trie, dsml);
  at = matcher.StepText(at, "invoke name=\"write\">\n<");
  at = testing::StepToken(matcher, at, *trie, dsml);
  at = matcher.StepText(at, "parameter name=\"path\" string=\"true\">");
  ASSERT_NE(at, Matcher::kDead);
  EXPECT_EQ(testing::StepToken(matcher, at, *trie, dsml), Matcher::kDead);
  EXPECT_NE(matcher.StepText(at, "｜DSML｜ is a mark, <｜DSML｜tool_calls> a tag"), Matcher::kDead);
  EXPECT_EQ(matcher.StepText(at, "x</｜DSML｜"), Matcher::kDead);
  EXPECT_EQ(testing::StepToken(matcher, at, *trie, *trie->FindControl("</think>")), Matcher::kDead);
}

TEST_F(ToolCalls, StringsKeepTheirBounds) {
  const JsonValue schema = Value(R"({"type":"object","properties":{
      "id":{"type":"string","pattern":"^[a-z]{2}\\d+$"},"s":{"type":"string","maxLength":3}},
      "required":["id","s"]})");
  const std::vector<ToolSpec> tools = {
      {.name = "t", .parameters = &schema, .strict = true, .path = "tools[0]"}};
  const auto grammar = Compiled(ToolCallGrammar(tools, {}));
  const auto text = [](std::string_view id, std::string_view s) {
    return "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"t\">\n"
           "<｜DSML｜parameter name=\"id\" string=\"true\">" +
           std::string(id) +
           "</｜DSML｜parameter>\n<｜DSML｜parameter name=\"s\" string=\"true\">" + std::string(s) +
           "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
  };
  EXPECT_TRUE(Accepts(grammar, text("ab12", "\"é\n")));
  EXPECT_FALSE(Accepts(grammar, text("ab", "x")));
  EXPECT_FALSE(Accepts(grammar, text("ab1", "four")));
}

TEST_F(ToolCalls, WhatCannotBeCalledIsNamed) {
  const auto error_of = [](const ToolSpec& tool) {
    const auto grammar = ToolCallGrammar(std::span(&tool, 1), {});
    return grammar.ok() ? std::string("none") : grammar.status().ToString();
  };
  const JsonValue text = Value(R"({"type":"string"})");
  EXPECT_THAT(error_of({.name = "a", .parameters = &text, .path = "tools[0]"}),
              HasSubstr("tools[0]: the parameters of a tool must be an object"));
  EXPECT_THAT(error_of({.name = "a\"b", .path = "tools[0].function.name"}),
              HasSubstr("tools[0].function.name"));
  const JsonValue key = Value(R"({"type":"object","properties":{"a<b":{"type":"string"}}})");
  EXPECT_THAT(error_of({.name = "a", .parameters = &key, .path = "tools[0]"}),
              HasSubstr("tools[0].properties[\"a<b\"]"));
  const JsonValue tag =
      Value(R"({"type":"object","properties":{"x":{"enum":["</｜DSML｜parameter>"]}}})");
  EXPECT_THAT(error_of({.name = "a", .parameters = &tag, .path = "tools[0]"}),
              HasSubstr("tools[0].properties.x"));
  const JsonValue step =
      Value(R"({"type":"object","properties":{"x":{"type":"number","multipleOf":2}}})");
  EXPECT_THAT(error_of({.name = "a", .parameters = &step, .strict = true, .path = "tools[0]"}),
              HasSubstr("tools[0].properties.x.multipleOf"));
  EXPECT_EQ(error_of({.name = "a", .parameters = &step, .path = "tools[0]"}), "none");
  EXPECT_FALSE(ToolCallGrammar({}, {}).ok());
}

TEST(ToolCallGrammar, TagsOnly) {
  const JsonValue parameters = Value(R"({"type": "object", "required": ["a"], "properties": {
      "a": {"type": "integer"}}})");
  std::vector<ToolSpec> tools(2);
  tools[0] = {.name = "f", .parameters = &parameters, .tags_only = true, .path = "tools[0]"};
  tools[1] = {.name = "no\"tag", .tags_only = true, .path = "tools[1]"};
  const auto grammar = ToolCallGrammar(tools, {});
  ASSERT_TRUE(grammar.ok()) << grammar.status().ToString();
  const auto compiled = Compiled(*grammar);
  const std::string open = "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"";
  const std::string close = "\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
  EXPECT_TRUE(Accepts(compiled, open + "f\">\n" + close));
  EXPECT_TRUE(
      Accepts(compiled, open +
                            "f\">\n<｜DSML｜parameter name=\"b\" string=\"true\">x<y"
                            "</｜DSML｜parameter>\n<｜DSML｜parameter name=\"a\" string=\"false\">"
                            "?</｜DSML｜parameter>" +
                            close));
  EXPECT_FALSE(Accepts(compiled, open + "g\">\n" + close));
  EXPECT_FALSE(Accepts(compiled, open + "no\"tag\">\n" + close));
  EXPECT_FALSE(Accepts(compiled, open + "f\">\n<｜DSML｜parameter nme=\"b\"" + close));
  // Nothing is left when no tool has a name that a tag can carry.
  const auto none = ToolCallGrammar(std::span(tools).subspan(1), {});
  EXPECT_FALSE(none.ok() && CompileGrammar(*none, nullptr).ok());
}

}  // namespace
}  // namespace fathom
