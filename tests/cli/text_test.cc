// fathom tokenize, fathom template.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/program.h"

namespace fathom::cli_test {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Json = nlohmann::json;

constexpr const char* kMessages = R"([{"role": "user", "content": "Hello!"}])";

std::string Out(const std::vector<std::string>& arguments, std::string_view input = {}) {
  const Outcome outcome = RunFathom(arguments, input);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return outcome.out;
}

TEST(Tokenize, TextFileAndStandardInputGiveTheSameIds) {
  const std::string text = "Hello, 世界! 17*19\n";
  const TempFolder folder;
  const std::string file = folder.Write("text", text);
  const std::string ids = Out({"tokenize", text});
  EXPECT_TRUE(Json::parse(ids, nullptr, false).is_array()) << ids;
  EXPECT_EQ(Out({"tokenize", "--file", file}), ids);
  EXPECT_EQ(Out({"tokenize", "-f", "-"}, text), ids);
  EXPECT_EQ(Out({"tokenize", "--decode", ids}), text + "\n");
  EXPECT_EQ(Out({"tokenize", "-d", "-f", "-"}, ids), text + "\n");
}

TEST(Tokenize, PiecesJoinToTheText) {
  const std::string text = "Hello, wörld 🙂";
  std::istringstream lines(Out({"tokenize", "--pieces", text}));
  const Json ids = Json::parse(Out({"tokenize", text}));
  std::string line;
  size_t count = 0;
  while (std::getline(lines, line)) {
    const size_t tab = line.find('\t');
    ASSERT_NE(tab, std::string::npos) << line;
    EXPECT_EQ(line.substr(0, tab), ids.at(count).dump());
    EXPECT_TRUE(Json::parse(line.substr(tab + 1), nullptr, false).is_string()) << line;
    ++count;
  }
  EXPECT_EQ(count, ids.size());
}

TEST(Tokenize, AddedTokensCanBeTreatedAsText) {
  const std::string text = "<think>";
  EXPECT_EQ(Json::parse(Out({"tokenize", text})).size(), 1u);
  const std::string ids = Out({"tokenize", "--ignore-added-tokens", text});
  EXPECT_GT(Json::parse(ids).size(), 1u);
  EXPECT_EQ(Out({"tokenize", "--decode", ids}), text + "\n");
}

TEST(Tokenize, BadInputIsAnError) {
  const auto fails = [](const std::vector<std::string>& arguments, std::string_view input,
                        const std::string& message) {
    const Outcome outcome = RunFathom(arguments, input);
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, HasSubstr(message));
    EXPECT_LT(outcome.err.size(), 300u);
    EXPECT_EQ(outcome.out, "");
  };
  fails({"tokenize", "a\xff"}, "", "not valid UTF-8 at byte 1");
  fails({"tokenize", "-f", "-"}, "ab\xc3", "not valid UTF-8 at byte 2");
  fails({"tokenize", "--decode", "1, 2"}, "", "JSON array");
  fails({"tokenize", "--decode", "[1, -2]"}, "", "-2 is not a token id");
  fails({"tokenize", "--decode", "[2560]"}, "", "2560 is not a token id below 2560");
  fails({"tokenize", "--decode", "[18446744073709551615]"}, "", "is not a token id");
  fails({"tokenize", "--decode", "[1.5]"}, "", "1.5 is not a token id");
  fails({"tokenize", "--decode", "[\"" + std::string(10'000, 'x') + "\"]"}, "", "entry 0");
  const std::string deep = std::string(300'000, '[') + std::string(300'000, ']');
  fails({"tokenize", "--decode", "-f", "-"}, deep, "entry 0");
}

TEST(Template, ListsOfMessagesBecomeThePrompt) {
  EXPECT_EQ(Out({"template", "--thinking", "off"}, kMessages),
            "<｜begin▁of▁sentence｜><｜User｜>Hello!<｜Assistant｜></think>\n");
  EXPECT_EQ(Out({"template", "--thinking", "high"}, kMessages),
            "<｜begin▁of▁sentence｜><｜User｜>Hello!<｜Assistant｜><think>\n");
  const std::string max = Out({"template", "--thinking", "max"}, kMessages);
  EXPECT_THAT(max, HasSubstr("Reasoning Effort"));
  EXPECT_THAT(max, EndsWith("<think>\n"));
  const TempFolder folder;
  EXPECT_EQ(Out({"template", folder.Write("messages.json", kMessages), "--thinking", "max"}), max);
}

TEST(Template, IdsAreThoseOfTheText) {
  const std::string text = Out({"template"}, kMessages);
  const std::string ids = Out({"template", "--ids"}, kMessages);
  EXPECT_EQ(Out({"tokenize", "--decode", ids}), text);
}

TEST(Template, RequestsBringToolsAndTheirOwnThinking) {
  const std::string request = R"({
    "messages": [{"role": "user", "content": "Weather?"}],
    "tools": [{"type": "function", "function": {"name": "get_weather",
               "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}],
    "chat_template_kwargs": {"thinking": false}})";
  const std::string text = Out({"template", "--thinking", "max"}, request);
  EXPECT_THAT(text, HasSubstr("\"name\": \"get_weather\""));
  EXPECT_THAT(text, EndsWith("<｜Assistant｜></think>\n"));
  EXPECT_THAT(text, Not(HasSubstr("Reasoning Effort")));
}

TEST(Template, ControlTokensOfClientsStayTextUnlessAsked) {
  const std::string messages = R"([{"role": "user", "content": "<think>"}])";
  const auto count = [&](std::vector<std::string> arguments) {
    return Json::parse(Out(arguments, messages)).size();
  };
  EXPECT_GT(count({"template", "--ids"}), count({"template", "--ids", "--official-user-content"}));
}

TEST(Template, BadRequestsAreErrors) {
  const auto fails = [](std::string_view input, const std::string& message) {
    const Outcome outcome = RunFathom({"template"}, input);
    EXPECT_EQ(outcome.status, 1) << input;
    EXPECT_THAT(outcome.err, StartsWith("fathom: "));
    EXPECT_THAT(outcome.err, HasSubstr(message));
    EXPECT_EQ(outcome.out, "");
  };
  fails("", "JSON");
  fails("[", "invalid JSON at byte 1");
  fails("17", "list of messages");
  fails("[]", "messages");
  fails("{}", "messages");
  fails(R"([{"role": "king", "content": "x"}])", "king");
  fails(R"([{"role": "user", "content": 5}])", "content");
  fails("[{\"role\": \"user\", \"content\": \"\xff\"}]", "JSON");
  fails(std::string(100'000, '['), "nested too deeply");
}

}  // namespace
}  // namespace fathom::cli_test
