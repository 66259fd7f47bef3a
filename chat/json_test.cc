#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "chat/json_parse.h"
#include "chat/json_value.h"

namespace fathom {
namespace {

std::string Rewrite(std::string_view text, bool allow_non_finite = false) {
  JsonParseOptions options;
  options.allow_non_finite = allow_non_finite;
  const Result<JsonValue> value = ParseJson(text, options);
  return value.ok() ? ToPythonJson(value.value()) : "ERROR " + value.status().message();
}

bool Accepts(std::string_view text) { return ParseJson(text).ok(); }

// The right sides were printed by Python 3.11: json.dumps(json.loads(left), ensure_ascii=False).
TEST(PythonJson, NumbersAreWrittenAsPythonWritesThem) {
  const std::pair<const char*, const char*> kCases[] = {
      {"1.0", "1.0"},
      {"1e3", "1000.0"},
      {"1E-7", "1e-07"},
      {"0.0001", "0.0001"},
      {"0.00001", "1e-05"},
      {"123456789012345680.0", "1.2345678901234568e+17"},
      {"1e16", "1e+16"},
      {"9999999999999998.0", "9999999999999998.0"},
      {"1e15", "1000000000000000.0"},
      {"-0.0", "-0.0"},
      {"-0", "0"},
      {"1.50", "1.5"},
      {"5e-324", "5e-324"},
      {"1.7976931348623157e308", "1.7976931348623157e+308"},
      {"1e22", "1e+22"},
      {"0.1", "0.1"},
      {"100000000000000000.0", "1e+17"},
      {"12345678901234567890123", "12345678901234567890123"},
      {"3.141592653589793", "3.141592653589793"},
      {"2.5e-5", "2.5e-05"},
      {"1e-400", "0.0"},
      {"-0.00000000000000000000000000000000000000000000000001e-300", "-0.0"},
      {"123.456e2", "12345.6"},
  };
  for (const auto& [text, python] : kCases) EXPECT_EQ(Rewrite(text), python) << text;
}

TEST(PythonJson, SeparatorsOrderAndRepeatedKeys) {
  EXPECT_EQ(Rewrite(R"({"b":1,"a":{"b":[],"c":{}},"b":2})"),
            R"({"b": 2, "a": {"b": [], "c": {}}})");
  EXPECT_EQ(Rewrite(" [ true , false,null,\"x\" ]\n"), R"([true, false, null, "x"])");
  EXPECT_EQ(Rewrite(R"({"a":1,"b":2,"a":3,"b":4,"a":5})"), R"({"a": 5, "b": 4})");
}

TEST(PythonJson, OnlyQuoteBackslashAndControlCharactersAreEscaped) {
  EXPECT_EQ(Rewrite(R"("\u0000\u0007\u001f\b\f\n\r\t\"\\\/\u007f\u2028\ud83d\ude00\u00e9")"),
            "\"\\u0000\\u0007\\u001f\\b\\f\\n\\r\\t\\\"\\\\/\x7f\u2028\U0001F600é\"");
}

TEST(ParseJson, NonFiniteNumbersOnlyWhereAsked) {
  EXPECT_EQ(Rewrite("[NaN,Infinity,-Infinity,1e999,-1e999]", true),
            "[NaN, Infinity, -Infinity, Infinity, -Infinity]");
  for (const char* text : {"NaN", "Infinity", "-Infinity", "1e999", "[-1e999]"}) {
    EXPECT_FALSE(Accepts(text)) << text;
  }
}

TEST(ParseJson, RejectsWhatIsNotJson) {
  const std::string kBad[] = {
      "",          " ",           "tru",     "[1,]",
      "[1 2]",     "{\"a\":1,}",  "{a:1}",   "{\"a\"}",
      "{\"a\":}",  "[",           "{",       "\"",
      "\"\\",      "\"\\x\"",     "01",      "1.",
      ".5",        "-",           "+1",      "1e",
      "1e+",       "'a'",         "[1]]",    "\"\n\"",
      "\"\\u12\"", "\"\\u12G4\"", "nullx",   "\xEF\xBB\xBF[]",
      "{\"a\" 1}", "[1}",         "// c\n1", "\"a\"\"b\"",
      "{,}",       "[,1]",        "\"\t\"",
  };
  for (const std::string& text : kBad) EXPECT_FALSE(Accepts(text)) << text;
}

TEST(ParseJson, RejectsInvalidUtf8AndLoneSurrogates) {
  for (const char* bytes :
       {"\xC3", "\x80", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xE4\xB8", "\xE4\xB8\"x"}) {
    EXPECT_FALSE(Accepts("\"" + std::string(bytes) + "\"")) << bytes;
  }
  for (const char* text : {R"("\ud800")", R"("\udc00")", R"("\ud800x")", R"("\ud800\ud800")",
                           R"("\ud83d\n")", R"({"\ud800":1})"}) {
    EXPECT_FALSE(Accepts(text)) << text;
  }
  EXPECT_TRUE(Accepts("\"\uFFFF \uFFFD \U0010FFFF\"")) << "noncharacters are ordinary text";
}

TEST(ParseJson, DepthAndNumberOfValuesAreLimited) {
  JsonParseOptions options;
  const auto nested = [](int depth) {
    return std::string(static_cast<size_t>(depth), '[') +
           std::string(static_cast<size_t>(depth), ']');
  };
  EXPECT_TRUE(ParseJson(nested(options.max_depth), options).ok());
  EXPECT_FALSE(ParseJson(nested(options.max_depth + 1), options).ok());
  EXPECT_FALSE(ParseJson(std::string(5'000'000, '['), options).ok());
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_FALSE(ParseJson(objects, options).ok());
  options.max_values = 4;
  EXPECT_TRUE(ParseJson("[1,2,3]", options).ok());
  EXPECT_FALSE(ParseJson("[1,2,3,4]", options).ok());
}

TEST(ParseJson, ErrorsNameTheByte) {
  EXPECT_EQ(Rewrite("[1, x]"), "ERROR invalid JSON at byte 4: expected a value");
}

TEST(ParseJson, ManyEqualKeysTakeNoQuadraticTime) {
  std::string text = "{";
  for (int i = 0; i < 200'000; ++i) text += "\"k" + std::to_string(i % 70'000) + "\":1,";
  text += "\"k0\":2}";
  const Result<JsonValue> value = ParseJson(text);
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(value.value().IfObject()->size(), 70'000u);
  EXPECT_EQ(value.value().Find("k0")->AsInt64(), 2);
}

TEST(JsonValue, NumbersAsIntegersAndDoubles) {
  const auto number = [](const char* text) { return JsonValue::NumberFromText(text); };
  EXPECT_EQ(number("9223372036854775807").AsInt64(), INT64_MAX);
  EXPECT_EQ(number("9223372036854775808").AsInt64(), std::nullopt);
  EXPECT_EQ(number("1.0").AsInt64(), std::nullopt);
  EXPECT_EQ(JsonValue::String("1").AsInt64(), std::nullopt);
  EXPECT_EQ(JsonValue::Bool(true).AsDouble(), std::nullopt);
  EXPECT_EQ(number("0.25").AsDouble(), 0.25);
  EXPECT_EQ(number("1e400").AsDouble(), std::nullopt);
  EXPECT_EQ(*number("1e3").IfNumberText(), "1e3");
}

// Same verdict as an independent reader on damaged documents, and the text written from what was
// read means the same.
TEST(ParseJson, AgreesWithAnotherReaderOnMutatedDocuments) {
  const std::string kSeeds[] = {
      R"({"a":[1,-2.5e3,true,null,"x\n\u00e9"],"b":{"c":"é","d":[]}})",
      R"([0,-0,10,1e2,1E+2,0.5,"\ud83d\ude00","\\",{}])",
  };
  const std::string kBytes = "{}[]\",:0123456789.eE+-ntfu\\ \n\xC3\xA9x";
  std::mt19937 random(7);
  int accepted = 0;
  for (int round = 0; round < 40'000; ++round) {
    std::string text = kSeeds[random() % 2];
    const size_t edits = 1 + random() % 3;
    for (size_t i = 0; i < edits && !text.empty(); ++i) {
      const size_t at = random() % text.size();
      const char byte = kBytes[random() % kBytes.size()];
      switch (random() % 3) {
        case 0:
          text[at] = byte;
          break;
        case 1:
          text.insert(at, 1, byte);
          break;
        default:
          text.erase(at, 1);
      }
    }
    const nlohmann::ordered_json other = nlohmann::ordered_json::parse(text, nullptr, false);
    const Result<JsonValue> ours = ParseJson(text);
    ASSERT_EQ(ours.ok(), !other.is_discarded()) << text;
    if (!ours.ok()) continue;
    ++accepted;
    const auto again = nlohmann::ordered_json::parse(ToPythonJson(ours.value()), nullptr, false);
    ASSERT_EQ(again, other) << text;
  }
  EXPECT_GT(accepted, 1000);
}

}  // namespace
}  // namespace fathom
