#include "chat/tool_values.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "chat/json_parse.h"

namespace fathom {
namespace {

JsonTypes Types(const std::string& schema) { return JsonTypes::OfSchema(*ParseJson(schema)); }

// The types of which a value is accepted, by one value of each.
std::string Accepted(const std::string& schema) {
  const JsonTypes types = Types(schema);
  if (types.is_unknown()) return "unknown";
  std::string accepted;
  for (const char* value : {"null", "true", "5", "5.5", "\"s\"", "[]", "{}"}) {
    if (types.Contain(*ParseJson(value)))
      accepted += (accepted.empty() ? "" : " ") + std::string(value);
  }
  return accepted;
}

TEST(JsonTypes, ComeFromTypeAlternativesOrEnum) {
  EXPECT_EQ(Accepted(R"({"type": "integer"})"), "5");
  EXPECT_EQ(Accepted(R"({"type": "number"})"), "5 5.5");
  EXPECT_EQ(Accepted(R"({"type": ["object", "null"]})"), "null {}");
  EXPECT_EQ(Accepted(R"({"anyOf": [{"type": "array"}, {"oneOf": [{"type": "boolean"}]}]})"),
            "true []");
  EXPECT_EQ(Accepted(R"({"enum": ["a", 1, null]})"), "null 5 \"s\"");
  EXPECT_EQ(Accepted(R"({"type": "string", "enum": [1]})"), "\"s\"");
}

TEST(JsonTypes, AreUnknownWhereTheSchemaLeavesThemOpen) {
  for (const char* schema :
       {"{}", "true", "null", R"({"$ref": "#/x"})", R"({"type": "any"})", R"({"type": 5})",
        R"({"type": ["string", "text"]})", R"({"anyOf": [{"type": "null"}, {"$ref": "#/x"}]})",
        R"({"anyOf": {}})", R"({"enum": []})"}) {
    EXPECT_EQ(Accepted(schema), "unknown") << schema;
    EXPECT_TRUE(Types(schema).may_be_string());
  }
}

TEST(JsonTypes, WholeNumbersAreIntegersHoweverTheyAreSpelled) {
  const JsonTypes integer = Types(R"({"type": "integer"})");
  for (const char* text : {"5", "-0", "5.0", "5e3", "123456789012345678901234567890"}) {
    EXPECT_TRUE(integer.Contain(*ParseJson(text))) << text;
  }
  EXPECT_FALSE(integer.Contain(*ParseJson("5e-1")));
}

TEST(JsonTypes, DeepAlternativesAreReadWithoutRecursion) {
  std::string schema = R"({"type": "integer"})";
  for (int i = 0; i < 120; ++i) schema = R"({"anyOf": [)" + schema + "]}";
  EXPECT_EQ(Accepted(schema), "5");
}

TEST(ToolTable, KnowsToolsByNameAndTheFirstOfTwoCounts) {
  const JsonValue list = *ParseJson(R"([
    {"name": "f", "parameters": {"properties": {"n": {"type": "integer"}}}},
    {"name": "f", "parameters": {"properties": {"n": {"type": "string"}}}},
    {"name": "g"}, {"name": 5}, {}])");
  const ToolTable tools(*list.IfArray());
  ASSERT_NE(tools.Find("f"), nullptr);
  EXPECT_FALSE(tools.Find("f")->TypesOf("n").may_be_string());
  EXPECT_TRUE(tools.Find("f")->TypesOf("m").is_unknown());
  ASSERT_NE(tools.Find("g"), nullptr);
  EXPECT_FALSE(tools.Find("g")->has_properties);
  EXPECT_EQ(tools.Find("h"), nullptr);
}

TEST(ToolValues, TheTableOfTypesAndMarks) {
  struct Row {
    const char* schema;
    std::optional<std::string> mark;
    const char* text;
    const char* json;  // null: a string that needs no look at its text
    bool repaired = false;
  };
  const char* integer = R"({"type": "integer"})";
  const char* string = R"({"type": "string"})";
  const char* either = R"({"type": ["string", "integer"]})";
  const std::vector<Row> rows = {
      {"{}", "true", "5", nullptr},
      {either, "true", "5", nullptr},
      {integer, "true", " 5 ", "5", true},
      {integer, "true", " soon ", "\" soon \""},
      {string, "false", " \"s\" ", "\"s\""},
      {string, "false", "5", "\"5\"", true},
      {string, "false", " s ", "\" s \"", true},
      {integer, "false", "\n1.50 ", "1.50"},
      {integer, "false", "True", "true", true},
      {integer, "false", "False", "false", true},
      {integer, "false", "None", "null", true},
      {"{}", "false", "[1, 2", "\"[1, 2\"", true},
      {"{}", "false", "[1, ]", "\"[1, ]\"", true},
      {"{}", "false", "", "\"\"", true},
      {string, std::nullopt, "5", nullptr},
      {integer, std::nullopt, "5", "5", true},
      {integer, "no", "five", "\"five\"", true},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(std::string(row.schema) + " " + row.mark.value_or("-") + " " + row.text);
    EXPECT_EQ(IsStringParameter(Types(row.schema), row.mark), row.json == nullptr);
    if (row.json == nullptr) continue;
    const TypedValue value = ReadTypedValue(Types(row.schema), row.mark, row.text);
    EXPECT_EQ(value.json, row.json);
    EXPECT_EQ(value.repaired, row.repaired);
  }
}

}  // namespace
}  // namespace fathom
