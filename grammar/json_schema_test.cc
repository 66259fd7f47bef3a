#include "grammar/json_schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "grammar/schema_check.h"
#include "grammar/test_grammars.h"

namespace fathom {
namespace {

using nlohmann::json;
using testing::Accepts;
using ::testing::AllOf;
using testing::Compiled;
using ::testing::HasSubstr;
using testing::Random;

JsonValue Value(std::string_view text) {
  auto parsed = ParseJson(text);
  FATHOM_CHECK(parsed.ok(), parsed.status().ToString());
  return std::move(parsed).value();
}

size_t NumCodePoints(const std::string& text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

enum class Objects {
  kAsTheStandardSays,
  kClosed,  // undeclared members are wrong where `properties` is given and additionalProperties not
};

// What the standard says about the keywords that the random schemas use, in a few plain lines.
bool Conforms(const json& value, const json& schema, const json& root,
              Objects objects = Objects::kAsTheStandardSays) {
  if (schema.is_boolean()) return schema.get<bool>();
  if (schema.contains("$ref")) {
    const auto name = schema["$ref"].get<std::string>();
    const json& target = name == "#" ? root : root["$defs"][name.substr(8)];
    if (!Conforms(value, target, root, objects)) return false;
  }
  if (schema.contains("const") && value != schema["const"]) return false;
  if (schema.contains("enum")) {
    bool is_listed = false;
    for (const json& other : schema["enum"]) is_listed = is_listed || value == other;
    if (!is_listed) return false;
  }
  if (schema.contains("type")) {
    const json types = schema["type"].is_array() ? schema["type"] : json::array({schema["type"]});
    bool is_ok = false;
    for (const json& type : types) {
      is_ok = is_ok || (type == "null" && value.is_null()) ||
              (type == "boolean" && value.is_boolean()) ||
              (type == "string" && value.is_string()) || (type == "array" && value.is_array()) ||
              (type == "object" && value.is_object()) || (type == "number" && value.is_number()) ||
              (type == "integer" && value.is_number() &&
               std::floor(value.get<double>()) == value.get<double>());
    }
    if (!is_ok) return false;
  }
  if (value.is_number()) {
    const auto number = value.get<double>();
    if (schema.contains("minimum") && number < schema["minimum"].get<double>()) return false;
    if (schema.contains("maximum") && number > schema["maximum"].get<double>()) return false;
    if (schema.contains("exclusiveMinimum") && number <= schema["exclusiveMinimum"].get<double>()) {
      return false;
    }
  }
  if (value.is_string()) {
    const size_t length = NumCodePoints(value.get<std::string>());
    if (schema.contains("minLength") && length < schema["minLength"].get<size_t>()) return false;
    if (schema.contains("maxLength") && length > schema["maxLength"].get<size_t>()) return false;
  }
  if (value.is_array()) {
    if (schema.contains("minItems") && value.size() < schema["minItems"].get<size_t>())
      return false;
    if (schema.contains("maxItems") && value.size() > schema["maxItems"].get<size_t>())
      return false;
    const size_t num_prefix = schema.contains("prefixItems") ? schema["prefixItems"].size() : 0;
    for (size_t i = 0; i < value.size(); ++i) {
      if (i < num_prefix) {
        if (!Conforms(value[i], schema["prefixItems"][i], root, objects)) return false;
      } else if (schema.contains("items") && !Conforms(value[i], schema["items"], root, objects)) {
        return false;
      }
    }
  }
  if (value.is_object()) {
    for (const auto& [key, member] : value.items()) {
      if (schema.contains("properties") && schema["properties"].contains(key)) {
        if (!Conforms(member, schema["properties"][key], root, objects)) return false;
      } else if (schema.contains("additionalProperties") &&
                 !Conforms(member, schema["additionalProperties"], root, objects)) {
        return false;
      } else if (objects == Objects::kClosed && schema.contains("properties") &&
                 !schema.contains("additionalProperties")) {
        return false;
      }
    }
    for (const json& name : schema.value("required", json::array())) {
      if (!value.contains(name.get<std::string>())) return false;
    }
  }
  std::set<std::string> declared;
  for (json part : schema.value("allOf", json::array())) {
    for (const auto& [key, member] : part["properties"].items()) declared.insert(key);
    part["additionalProperties"] = true;  // the parts are closed together, not each
    if (!Conforms(value, part, root, objects)) return false;
  }
  if (objects == Objects::kClosed && schema.contains("allOf")) {
    for (const auto& [key, member] : value.items()) {
      if (!declared.contains(key)) return false;
    }
  }
  if (schema.contains("anyOf")) {
    bool is_any = false;
    for (const json& part : schema["anyOf"])
      is_any = is_any || Conforms(value, part, root, objects);
    if (!is_any) return false;
  }
  return true;
}

// Schemas whose members are named a, b, c, ... so that nlohmann's order is the declared one.
class RandomSchema {
 public:
  explicit RandomSchema(Random& random) : random_(random) {}

  json Make() {
    json root = Schema(3);
    if (root.is_boolean()) root = json::object();
    root["$defs"] = {
        {"tree",
         {{"type", "object"},
          {"properties",
           {{"kids", {{"type", "array"}, {"items", {{"$ref", "#/$defs/tree"}}}, {"maxItems", 2}}},
            {"name", {{"type", "string"}}}}},
          {"required", {"name"}},
          {"additionalProperties", false}}}};
    return root;
  }

 private:
  json Schema(int depth) {
    switch (depth == 0 ? random_.Below(7) : random_.Below(14)) {
      case 0:
        return {{"type", "null"}};
      case 1:
        return {{"type", "boolean"}};
      case 2: {
        json schema = {{"type", "string"}};
        if (random_.OneIn(2)) schema["minLength"] = random_.Below(3);
        if (random_.OneIn(2)) schema["maxLength"] = 3 + random_.Below(60);
        return schema;
      }
      case 3: {
        json schema = {{"type", random_.OneIn(3) ? "number" : "integer"}};
        const int low = random_.Below(400) - 200;
        if (random_.OneIn(2)) schema["minimum"] = low;
        if (random_.OneIn(2)) schema["maximum"] = low + random_.Below(1'500);
        return schema;
      }
      case 4:
        return {{"enum", {"x", "é\"", nullptr, 7, 1.5, json::array({1, "q"})}}};
      case 5:
        return {{"const", random_.OneIn(2) ? json("only\n") : json({{"k", 1}})}};
      case 6:
        return {{"type", json::array({"string", "integer", "null"})}};
      case 7:
      case 8: {
        json schema = {{"type", "array"}};
        if (random_.OneIn(3)) schema["prefixItems"] = {Schema(depth - 1), Schema(depth - 1)};
        if (random_.OneIn(2)) schema["items"] = Schema(depth - 1);
        if (random_.OneIn(2)) schema["minItems"] = random_.Below(3);
        if (random_.OneIn(2)) schema["maxItems"] = 2 + random_.Below(3);
        return schema;
      }
      case 9:
        return {{"anyOf", {Schema(depth - 1), Schema(depth - 1), {{"$ref", "#/$defs/tree"}}}}};
      case 10:
        return {{"$ref", "#/$defs/tree"}};
      case 11:
        return {{"allOf", {Object(depth, 'a', false), Object(0, 'f', false)}}};
      default:
        return Object(depth, 'a', random_.OneIn(3));
    }
  }

  json Object(int depth, char first_key, bool is_open) {
    json schema = {{"type", "object"}, {"properties", json::object()}, {"required", json::array()}};
    for (int i = random_.Below(5); i > 0; --i) {
      const std::string key(1, static_cast<char>(first_key + random_.Below(6)));
      schema["properties"][key] = depth > 0 ? Schema(depth - 1) : json{{"type", "integer"}};
      if (random_.OneIn(2)) schema["required"].push_back(key);
    }
    if (depth > 0 && is_open) schema["additionalProperties"] = Schema(0);
    return schema;
  }

  Random& random_;
};

// Random values, most of which conform; the rest is left to Conforms.
json RandomValue(const json& schema, const json& root, Random& random, int depth) {
  if (schema.is_boolean() || depth > 8) return random.Below(10);
  if (schema.contains("$ref")) {
    return RandomValue(root["$defs"][schema["$ref"].get<std::string>().substr(8)], root, random,
                       depth + 1);
  }
  if (schema.contains("const")) return schema["const"];
  if (schema.contains("enum")) {
    return schema["enum"]
                 [static_cast<size_t>(random.Below(static_cast<int>(schema["enum"].size())))];
  }
  if (schema.contains("anyOf")) {
    return RandomValue(schema["anyOf"][static_cast<size_t>(
                           random.Below(static_cast<int>(schema["anyOf"].size())))],
                       root, random, depth + 1);
  }
  if (schema.contains("allOf")) {
    json value = RandomValue(schema["allOf"][0], root, random, depth + 1);
    value.update(RandomValue(schema["allOf"][1], root, random, depth + 1));
    return value;
  }
  json type = schema.value("type", json("integer"));
  if (type.is_array()) {
    type = type[static_cast<size_t>(random.Below(static_cast<int>(type.size())))];
  }
  if (type == "null") return nullptr;
  if (type == "boolean") return random.OneIn(2);
  if (type == "string") {
    std::string text;
    const int count = random.Below(schema.value("maxLength", 8) + 2);
    for (int i = 0; i < count; ++i) {
      text += random.Of<std::string>({"a", "Z", "é", "\"", "\\", "\n", "😀", " ", "/"});
    }
    return text;
  }
  if (type == "integer") return schema.value("minimum", 0) + random.Below(300) - 10;
  if (type == "number") return schema.value("minimum", 0) + random.Below(3'000) / 8.0 - 5;
  if (type == "array") {
    json value = json::array();
    const auto count = static_cast<size_t>(random.Below(5));
    for (size_t i = 0; i < count; ++i) {
      const bool in_prefix = schema.contains("prefixItems") && i < schema["prefixItems"].size();
      value.push_back(
          in_prefix ? RandomValue(schema["prefixItems"][i], root, random, depth + 1)
                    : RandomValue(schema.value("items", json(true)), root, random, depth + 1));
    }
    return value;
  }
  json value = json::object();
  const json properties = schema.value("properties", json::object());
  const json required = schema.value("required", json::array());
  for (const auto& [key, member] : properties.items()) {
    const bool is_required = std::find(required.begin(), required.end(), key) != required.end();
    if (is_required || random.OneIn(2)) {
      value[key] = RandomValue(member, root, random, depth + 1);
    }
  }
  // Keys after the declared ones, which are single letters up to f.
  if (schema.contains("additionalProperties") && !schema["additionalProperties"].is_boolean() &&
      random.OneIn(2)) {
    value["zé"] = RandomValue(schema["additionalProperties"], root, random, depth + 1);
  }
  return value;
}

struct Spelling {
  int indent;
  char fill;
};

TEST(JsonSchema, RandomDocumentsAreAcceptedExactlyIfTheyConform) {
  Random random(11);
  int num_conforming = 0, num_other = 0, num_refused = 0;
  for (int i = 0; i < 200; ++i) {
    const json schema = RandomSchema(random).Make();
    const auto grammar = JsonSchemaToGrammar(Value(schema.dump()));
    ASSERT_TRUE(grammar.ok()) << grammar.status().ToString() << schema;
    const auto compiled = CompileGrammar(*grammar, testing::NanoTrie().get());
    if (!compiled.ok()) {  // nothing conforms, say an enum that allOf left empty
      EXPECT_THAT(compiled.status().message(), HasSubstr("no text"));
      ++num_refused;
      continue;
    }
    for (int j = 0; j < 30; ++j) {
      const json value = RandomValue(schema, schema, random, 0);
      const bool conforms = Conforms(value, schema, schema, Objects::kClosed);
      for (const Spelling& spelling : {Spelling{-1, ' '}, Spelling{2, ' '}, Spelling{1, '\t'}}) {
        const std::string text = value.dump(spelling.indent, spelling.fill);
        const bool is_accepted = Accepts(*compiled, text);
        ASSERT_EQ(is_accepted, conforms) << schema << "\n" << text;
      }
      (conforms ? num_conforming : num_other) += 1;
      if (!conforms) continue;
      const std::string text = value.dump();
      const auto tokens = testing::NanoTokenizer().Encode(text, AddedTokens::kIgnore);
      ASSERT_TRUE(tokens.ok());
      Matcher matcher(*compiled);
      Matcher::Config at = matcher.start();
      for (const TokenId token : *tokens) {
        std::vector<uint64_t> mask(64, 0);
        ComputeTokenMask(matcher, at, *testing::NanoTrie(), mask);
        ASSERT_TRUE(mask[static_cast<size_t>(token) / 64] >> (token % 64) & 1) << text;
        at = testing::StepToken(matcher, at, *testing::NanoTrie(), token);
      }
      ASSERT_TRUE(matcher.IsComplete(at));
    }
  }
  EXPECT_GT(num_conforming, 1'500);
  EXPECT_GT(num_other, 150);
  EXPECT_LT(num_refused, 25);
}

TEST(JsonSchema, WhatIsAcceptedParsesAndConforms) {
  Random random(12);
  for (int i = 0; i < 250; ++i) {
    const json schema = RandomSchema(random).Make();
    const auto grammar = JsonSchemaToGrammar(Value(schema.dump()));
    ASSERT_TRUE(grammar.ok());
    const auto compiled = CompileGrammar(*grammar, testing::NanoTrie().get());
    if (!compiled.ok()) continue;
    for (int j = 0; j < 6; ++j) {
      const std::string text =
          testing::RandomText(*compiled, *testing::NanoTrie(), random, random.Below(60));
      const json value = json::parse(text, nullptr, false);
      ASSERT_FALSE(value.is_discarded()) << text;
      ASSERT_TRUE(ParseJson(text).ok()) << text;
      ASSERT_TRUE(Conforms(value, schema, schema)) << schema << "\n" << text;
      // One byte more, less or other: mostly no JSON any more, but never one that does not conform.
      for (int k = 0; k < 20; ++k) {
        std::string broken = text;
        const auto at = static_cast<size_t>(random.Below(static_cast<int>(text.size())));
        const char byte = random.Of<char>({'"', '1', ',', '}', 'x', ' ', '\\', '-', ']', '.'});
        if (k % 3 == 0) broken.insert(at, 1, byte);
        if (k % 3 == 1) broken.erase(at, 1);
        if (k % 3 == 2) broken[at] = byte;
        if (!Accepts(*compiled, broken)) continue;
        const json other = json::parse(broken, nullptr, false);
        ASSERT_FALSE(other.is_discarded()) << broken;
        ASSERT_TRUE(Conforms(other, schema, schema)) << schema << "\n" << broken;
      }
    }
  }
}

TEST(JsonSchema, IntegersBetweenBoundsAreCountedOut) {
  Random random(13);
  const std::vector<int64_t> bounds = {-1'005, -100, -99, -10, -9,  -1,  0,    1,
                                       7,      9,    10,  99,  100, 123, 1'000};
  for (int i = 0; i < 60; ++i) {
    const int64_t a = random.Of(bounds), b = random.Of(bounds);
    json schema = {{"type", random.OneIn(3) ? "number" : "integer"}};
    const bool has_low = !random.OneIn(4), has_high = !random.OneIn(4);
    if (has_low) schema["minimum"] = std::min(a, b);
    if (has_high) schema["maximum"] = std::max(a, b);
    const auto grammar = Compiled(JsonSchemaToGrammar(Value(schema.dump())));
    for (int64_t value = -1'200; value <= 1'200; ++value) {
      const bool is_between =
          (!has_low || value >= std::min(a, b)) && (!has_high || value <= std::max(a, b));
      ASSERT_EQ(Accepts(grammar, std::to_string(value)), is_between) << schema << value;
    }
    ASSERT_FALSE(Accepts(grammar, "007"));
  }
  const auto bounded =
      Compiled(JsonSchemaToGrammar(Value(R"({"type":"number","minimum":-1,"maximum":2})")));
  for (const char* text : {"-1", "-1.0", "-0.99", "0", "1.999", "2", "2.00"}) {
    EXPECT_TRUE(Accepts(bounded, text)) << text;
  }
  for (const char* text : {"-1.01", "2.01", "3", "1e1", "-2"}) {
    EXPECT_FALSE(Accepts(bounded, text)) << text;
  }
}

TEST(JsonSchema, NumbersKeepToTheirBoundsWithFractions) {
  Random random(14);
  for (int i = 0; i < 60; ++i) {
    const int low = random.Below(25) - 12, high = low + random.Below(14);
    json schema = {{"type", "number"}};
    const bool low_open = random.OneIn(2), high_open = random.OneIn(2);
    const bool has_low = !random.OneIn(4), has_high = !random.OneIn(4);
    if (has_low) schema[low_open ? "exclusiveMinimum" : "minimum"] = low;
    if (has_high) schema[high_open ? "exclusiveMaximum" : "maximum"] = high;
    const auto made = JsonSchemaToGrammar(Value(schema.dump()));
    ASSERT_TRUE(made.ok());
    const auto grammar = CompileGrammar(*made, nullptr);
    if (!grammar.ok()) {
      ASSERT_TRUE(low == high && has_low && has_high) << schema;
      continue;
    }
    for (int eighths = -200; eighths <= 200; ++eighths) {
      const double value = eighths / 8.0;
      const bool is_between = (!has_low || (low_open ? value > low : value >= low)) &&
                              (!has_high || (high_open ? value < high : value <= high));
      ASSERT_EQ(Accepts(*grammar, json(value).dump()), is_between) << schema << value;
    }
  }
}

TEST(JsonSchema, PatternsAndFormatsHoldInsideJsonStrings) {
  const auto accepts = [](const char* schema, const char* text) {
    return Accepts(JsonSchemaToGrammar(Value(schema)), text);
  };
  EXPECT_TRUE(accepts(R"re({"type":"string","pattern":"^a\"\\n.$"})re", R"("a\"\nb")"));
  EXPECT_FALSE(accepts(R"re({"type":"string","pattern":"^a\"\\n.$"})re", "\"a\"\nb\""));
  EXPECT_TRUE(accepts(R"({"type":"string","pattern":"b+"})", R"("xxbbyy\\")"));
  EXPECT_FALSE(accepts(R"({"type":"string","pattern":"b+"})", R"("xx")"));
  const char* date = R"({"type":"string","format":"date"})";
  EXPECT_TRUE(accepts(date, "\"2024-02-29\""));
  EXPECT_FALSE(accepts(date, "\"2023-02-29\""));
  EXPECT_FALSE(accepts(date, "\"2023-04-31\""));
  EXPECT_TRUE(accepts(date, "\"2000-02-29\""));
  EXPECT_FALSE(accepts(date, "\"1900-02-29\""));
  EXPECT_TRUE(
      accepts(R"({"type":"string","format":"date-time"})", "\"2024-02-29T23:59:59.5+02:00\""));
  EXPECT_TRUE(
      accepts(R"({"type":"string","format":"uuid"})", "\"123e4567-e89b-12d3-a456-426614174000\""));
  EXPECT_TRUE(accepts(R"({"type":"string","format":"email"})", "\"a.b@example.org\""));
  EXPECT_FALSE(accepts(R"({"type":"string","format":"email"})", "\"a.b\""));
  EXPECT_TRUE(accepts(R"({"type":"string","format":"ipv4"})", "\"192.168.0.1\""));
  EXPECT_FALSE(accepts(R"({"type":"string","format":"ipv4"})", "\"256.1.1.1\""));
  EXPECT_TRUE(accepts(R"({"type":"string","format":"uri"})", "\"https://example.org/a?b=%20\""));
  EXPECT_TRUE(accepts(R"({"type":"integer","format":"int32"})", "5"));
}

TEST(JsonSchema, CombinatorsAreWorkedIn) {
  const auto accepts = [](const char* schema, const char* text) {
    return Accepts(JsonSchemaToGrammar(Value(schema)), text);
  };
  const char* shapes = R"({"oneOf":[
      {"type":"object","properties":{"kind":{"const":"circle"},"r":{"type":"integer"}},"required":["kind","r"]},
      {"type":"object","properties":{"kind":{"const":"square"},"side":{"type":"integer"}},"required":["kind","side"]}]})";
  EXPECT_TRUE(accepts(shapes, R"({"kind":"circle","r":1})"));
  EXPECT_FALSE(accepts(shapes, R"({"kind":"circle","side":1})"));
  const char* base =
      R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},
      "anyOf":[{"required":["a"]},{"required":["b"]}]})";
  EXPECT_TRUE(accepts(base, R"({"b":1})"));
  EXPECT_FALSE(accepts(base, R"({})"));
  const char* list = R"({"$ref":"#/$defs/list","$defs":{"list":{"anyOf":[{"type":"null"},
      {"type":"object","properties":{"v":{"type":"integer"},"next":{"$ref":"#/$defs/list"}},
       "required":["v","next"]}]}}})";
  EXPECT_TRUE(accepts(list, R"({"v":1,"next":{"v":2,"next":null}})"));
  EXPECT_FALSE(accepts(list, R"({"v":1,"next":{"v":2}})"));
  EXPECT_TRUE(
      accepts(R"({"allOf":[{"type":"integer","minimum":3},{"type":"number","maximum":5}]})", "4"));
  EXPECT_FALSE(
      accepts(R"({"allOf":[{"type":"integer","minimum":3},{"type":"number","maximum":5}]})", "6"));
  EXPECT_TRUE(accepts("null", "[1]"));
  EXPECT_TRUE(
      accepts(R"({"type":"object","required":null,"description":null,"properties":null})", "{}"));
}

Status ErrorOf(const char* schema) {
  const auto grammar = JsonSchemaToGrammar(Value(schema), {}, "tools[0].function.parameters");
  return grammar.ok() ? OkStatus() : grammar.status();
}

TEST(JsonSchema, WhatCannotBeEnforcedIsNamed) {
  for (const auto& [schema, place] : std::vector<std::pair<const char*, const char*>>{
           {R"({"properties":{"a":{"not":{"type":"null"}}}})", "parameters.properties.a.not"},
           {R"({"type":"number","multipleOf":0.1})", "parameters.multipleOf"},
           {R"({"type":"number","minimum":0.5})", "parameters.minimum"},
           {R"({"type":"array","uniqueItems":true})", "parameters.uniqueItems"},
           {R"({"type":"object","patternProperties":{"x":{}}})", "parameters.patternProperties"},
           {R"re({"type":"string","pattern":"(?=a)"})re", "parameters.pattern"},
           {R"({"type":"string","pattern":"a","minLength":2})", "parameters.minLength"},
           {R"({"type":"string","format":"ipv6"})", "parameters.format"},
           {R"({"$ref":"https://example.org/x"})", "parameters.$ref"},
           {R"({"oneOf":[{"type":"string"},{"type":"string","maxLength":3}]})",
            "parameters.oneOf[1]"},
           {R"({"type":"object","minProperties":1})", "parameters.minProperties"},
           {R"({"enum":["a"],"maxLength":1})", "parameters.maxLength"},
           {R"({"allOf":[{"pattern":"a","type":"string"},{"pattern":"b"}]})", "pattern"}}) {
    const Status status = ErrorOf(schema);
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented) << schema << status.ToString();
    EXPECT_THAT(status.message(), AllOf(HasSubstr("tools[0].function"), HasSubstr(place)))
        << schema;
    // Not strict: the rest still holds.
    if (std::string_view(schema).find("https:") != std::string_view::npos) continue;
    const auto lenient = JsonSchemaToGrammar(Value(schema), {.lenient = true});
    ASSERT_TRUE(lenient.ok()) << schema << lenient.status().ToString();
    EXPECT_TRUE(CompileGrammar(*lenient, nullptr).ok()) << schema;
  }
}

TEST(ValidateSchema, NamesThePlaceOfAMistake) {
  for (const auto& [schema, place] : std::vector<std::pair<const char*, const char*>>{
           {R"({"type":"object","properties":{"a":{"type":"nope"}}})",
            "tools[0].function.parameters.properties.a.type"},
           {R"({"type":["string","int"]})", "parameters.type"},
           {R"({"properties":[]})", "parameters.properties"},
           {R"({"required":"a"})", "parameters.required"},
           {R"({"required":[1]})", "parameters.required"},
           {R"({"items":3})", "parameters.items"},
           {R"({"anyOf":[]})", "parameters.anyOf"},
           {R"({"anyOf":[{"enum":[]}]})", "parameters.anyOf[0].enum"},
           {R"({"minLength":-1})", "parameters.minLength"},
           {R"({"maximum":"3"})", "parameters.maximum"},
           {R"({"pattern":"["})", "parameters.pattern"},
           {R"({"properties":{"a b":{"$ref":"#/$defs/no"}}})", "[\"a b\"].$ref"},
           {R"([])", "parameters"},
           {R"("x")", "parameters"}}) {
    const Status status = ValidateSchema(Value(schema), "tools[0].function.parameters");
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << schema;
    EXPECT_THAT(status.message(), HasSubstr(place)) << schema;
    EXPECT_EQ(ErrorOf(schema).code(), StatusCode::kInvalidArgument) << schema;
  }
  for (const char* schema :
       {"null", "true", "{}", R"({"type":"object","properties":{},"required":null})",
        R"({"description":null,"x-mine":[1]})", R"({"not":{"type":"null"}})",
        R"({"$ref":"#/properties/a~1b","properties":{"a/b":{"type":"integer"}}})"}) {
    EXPECT_TRUE(ValidateSchema(Value(schema), "p").ok()) << schema;
  }
}

TEST(JsonSchema, ReferencesInCirclesAreErrors) {
  for (const char* schema :
       {R"({"$ref":"#"})",
        R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}})",
        R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})", R"({"allOf":[{"$ref":"#"}]})"}) {
    EXPECT_EQ(ErrorOf(schema).code(), StatusCode::kInvalidArgument) << schema;
  }
  // Without end: every object needs another one.
  const auto endless = JsonSchemaToGrammar(
      Value(R"({"type":"object","properties":{"n":{"$ref":"#"}},"required":["n"]})"));
  ASSERT_TRUE(endless.ok());
  EXPECT_EQ(CompileGrammar(*endless, nullptr).status().code(), StatusCode::kInvalidArgument);
}

// Two references per level would be 2^40 alternatives.
TEST(JsonSchema, CombinationsAreBounded) {
  json schema = {{"$ref", "#/$defs/d0"}, {"$defs", json::object()}};
  for (int i = 0; i < 40; ++i) {
    const json next = {{"$ref", "#/$defs/d" + std::to_string(i + 1)}};
    schema["$defs"]["d" + std::to_string(i)] = {{"anyOf", {next, next}}};
  }
  schema["$defs"]["d40"] = {{"type", "null"}};
  const auto grammar = JsonSchemaToGrammar(Value(schema.dump()));
  ASSERT_FALSE(grammar.ok());
  EXPECT_EQ(grammar.status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fathom
