#include "chat/output_parser.h"

#include <gtest/gtest.h>

#include <random>
#include <regex>
#include <string>
#include <vector>

#include "chat/encoder.h"
#include "chat/markers.h"
#include "chat/output_test.h"
#include "chat/vector_file.h"

namespace fathom {
namespace {

using Kind = OutputDelta::Kind;

std::string TextOrEmpty(const JsonValue& object, std::string_view key) {
  const JsonValue* value = object.FindNonNull(key);
  return value == nullptr ? "" : *value->IfString();
}

OutputCase CaseOf(const JsonValue& vectors, const JsonValue& test) {
  OutputCase given;
  given.options.start =
      StringAt(test, "start") == "reasoning" ? OutputState::kReasoning : OutputState::kContent;
  if (const JsonValue* tools = test.FindNonNull("tools")) {
    given.options.tools = FunctionsOf(vectors.Find("tool_lists")->Find(*tools->IfString()));
  }
  if (const JsonValue* choice = test.FindNonNull("tool_choice")) {
    const std::string* word = choice->IfString();
    given.tool_choice = word == nullptr       ? ToolChoice::kNamed
                        : *word == "none"     ? ToolChoice::kNone
                        : *word == "required" ? ToolChoice::kRequired
                                              : ToolChoice::kAuto;
  }
  given.options.swallow_calls = given.tool_choice == ToolChoice::kNone;
  if (const JsonValue* parallel = test.FindNonNull("parallel_tool_calls")) {
    given.options.parallel_tool_calls = *parallel->IfBool();
  }
  given.engine_reason = StringAt(test, "engine_finish");
  return given;
}

ParsedOutput ExpectationOf(const JsonValue& test) {
  const JsonValue& expect = *test.Find("expect");
  ParsedOutput parsed;
  parsed.message.reasoning = TextOrEmpty(expect, "reasoning");
  parsed.message.content = TextOrEmpty(expect, "content");
  for (const JsonValue& call : ArrayAt(expect, "tool_calls")) {
    parsed.message.calls.push_back({StringAt(call, "name"), StringAt(call, "arguments")});
    // In the vectors a call is complete exactly when its arguments are JSON.
    parsed.all_calls_complete &= ParseArguments(parsed.message.calls.back().arguments).has_value();
  }
  parsed.finish_reason = StringAt(expect, "finish_reason");
  return parsed;
}

TEST(OutputParser, EqualsTheVectorsForEveryCut) {
  const JsonValue vectors = ReadVectorFile("chat/parse.json");
  int count = 0;
  for (const JsonValue& test : ArrayAt(vectors, "cases")) {
    SCOPED_TRACE(StringAt(test, "id") + " " + StringAt(test, "note"));
    ExpectForEveryCut(CaseOf(vectors, test), StringAt(test, "text"), ExpectationOf(test));
    ++count;
  }
  EXPECT_EQ(count, 175);
}

// What the model would have written officially for a message that was parsed.
std::string OfficialText(const OutputMessage& parsed) {
  ChatMessage user;
  user.content = "q";
  ChatMessage answer;
  answer.role = ChatRole::kAssistant;
  answer.reasoning = parsed.reasoning;
  answer.content = parsed.content;
  for (const OutputMessage::Call& call : parsed.calls) {
    answer.tool_calls.push_back({"", call.name, ParseArguments(call.arguments).value()});
  }
  EncodeOptions options;
  options.drop_thinking = false;
  const std::string before = PromptText(EncodeChat(std::vector{user}, options).value());
  const std::string all = PromptText(EncodeChat(std::vector{user, answer}, options).value());
  EXPECT_TRUE(all.starts_with(before));
  return all.substr(before.size());
}

// Spaces and digits of numbers may change on the way through the encoder, values may not.
OutputMessage Normalized(OutputMessage message) {
  for (OutputMessage::Call& call : message.calls) {
    call.arguments = ToPythonJson(JsonValue::FromObject(ParseArguments(call.arguments).value()));
  }
  return message;
}

TEST(OutputParser, WhatTheEncoderWritesOfAnAnswerReadsAsTheSameAnswer) {
  const JsonValue vectors = ReadVectorFile("chat/parse.json");
  int count = 0;
  for (const JsonValue& test : ArrayAt(vectors, "cases")) {
    const ParsedOutput expected = ExpectationOf(test);
    if (expected.message.calls.empty() || !expected.all_calls_complete) continue;
    SCOPED_TRACE(StringAt(test, "id"));
    OutputCase given = CaseOf(vectors, test);
    given.options.start = OutputState::kReasoning;
    given.engine_reason = "stop";
    const ParsedOutput again = ParsePieces(given, {OfficialText(expected.message)});
    ASSERT_TRUE(again.all_calls_complete);
    EXPECT_EQ(Normalized(again.message), Normalized(expected.message));
    ++count;
  }
  EXPECT_EQ(count, 110);
}

std::vector<JsonValue> Tools() {
  return FunctionsOf(&*ParseJson(R"([
    {"function": {"name": "f", "parameters": {"properties": {
      "s": {"type": "string"}, "n": {"type": "integer"}, "o": {"type": "object"}}}}},
    {"function": {"name": "free"}}])"));
}

OutputCase WithTools(OutputState start = OutputState::kContent) {
  OutputCase given;
  given.options.start = start;
  given.options.tools = Tools();
  return given;
}

const std::string kOpen = "<｜DSML｜tool_calls>\n";
const std::string kClose = "</｜DSML｜tool_calls>";
std::string Invoke(const std::string& body, const std::string& name = "f") {
  return "<｜DSML｜invoke name=\"" + name + "\">\n" + body + "</｜DSML｜invoke>\n";
}
std::string Parameter(const std::string& name, const std::string& value, bool is_string = true) {
  return "<｜DSML｜parameter name=\"" + name + "\" string=\"" + (is_string ? "true" : "false") +
         "\">" + value + "</｜DSML｜parameter>\n";
}

// What one parser gives for each text pushed.
class Feed {
 public:
  explicit Feed(const OutputCase& given) : parser(given.options) {}
  std::vector<std::string> Push(std::string_view text) {
    std::vector<OutputDelta> deltas;
    parser.Push(text, &deltas);
    return Texts(deltas);
  }
  std::vector<std::string> Finish(OutputEnd end = OutputEnd::kStop) {
    std::vector<OutputDelta> deltas;
    parser.Finish(end, &deltas);
    return Texts(deltas);
  }
  OutputParser parser;

 private:
  static std::vector<std::string> Texts(const std::vector<OutputDelta>& deltas) {
    static const char* kNames[] = {"r:", "c:", "call:", "a:"};
    std::vector<std::string> texts;
    for (const OutputDelta& delta : deltas) {
      texts.push_back(kNames[static_cast<int>(delta.kind)] + delta.text);
    }
    return texts;
  }
};
using Texts = std::vector<std::string>;

TEST(OutputParser, GivesOutTextWithThePushThatBroughtIt) {
  Feed feed(OutputCase{});
  EXPECT_EQ(feed.Push("a <"), Texts{"c:a "});
  EXPECT_EQ(feed.Push("b"), Texts{"c:<b"});
  EXPECT_EQ(feed.Push("</thin"), Texts{});
  EXPECT_EQ(feed.Push("g>"), Texts{"c:</thing>"});
  EXPECT_EQ(feed.Push("<｜end▁of"), Texts{});
  EXPECT_EQ(feed.Push("▁sentence｜>"), Texts{});
  EXPECT_EQ(feed.Push("c\n\n"), Texts{"c:c\n\n"}) << "no tools: line feeds need not be held";
  EXPECT_EQ(feed.Push("<th"), Texts{});
  EXPECT_EQ(feed.Finish(), Texts{"c:<th"});
  EXPECT_EQ(feed.Push("more"), Texts{}) << "it has ended";
}

TEST(OutputParser, WithToolsHoldsTwoLineFeedsAndTheBeginningOfATag) {
  Feed feed(WithTools());
  EXPECT_EQ(feed.Push("a\n\n\n"), Texts{"c:a\n"});
  EXPECT_EQ(feed.Push("\n"), Texts{"c:\n"});
  EXPECT_EQ(feed.Push("<｜DSML｜tool"), Texts{});
  EXPECT_EQ(feed.Push("_calls>\n<｜DSML｜invoke name=\"f\""), Texts{});
  EXPECT_EQ(feed.Push(">"), Texts{"call:f"}) << "the line feeds before the block are gone";
}

TEST(OutputParser, StringsStreamAndOtherValuesComeWhole) {
  Feed feed(WithTools());
  feed.Push(kOpen + "<｜DSML｜invoke name=\"f\">");
  EXPECT_EQ(feed.Push("<｜DSML｜parameter name=\"s\" string=\"true\">"), Texts{"a:{\"s\": \""});
  EXPECT_EQ(feed.Push("one \"two\" "), Texts{"a:one \\\"two\\\" "});
  EXPECT_EQ(feed.Push("2<"), Texts{"a:2"});
  EXPECT_EQ(feed.Push("3\n"), Texts{"a:<3"}) << "a line feed may belong to a missing closing tag";
  EXPECT_EQ(feed.Push("</｜DSML｜parameter"), Texts{});
  EXPECT_EQ(feed.Push(">"), Texts{"a:\\n\""});
  EXPECT_EQ(feed.Push("<｜DSML｜parameter name=\"o\" string=\"false\">{\"a\": "), Texts{});
  EXPECT_EQ(feed.Push("1}"), Texts{});
  EXPECT_EQ(feed.Push("</｜DSML｜parameter>"), Texts{"a:, \"o\": {\"a\": 1}"});
  EXPECT_EQ(feed.Push("</｜DSML｜invoke>"), Texts{"a:}"});
  EXPECT_EQ(feed.Finish(), Texts{});
}

TEST(OutputParser, OneDeltaPerKindAndCall) {
  Feed feed(WithTools(OutputState::kReasoning));
  EXPECT_EQ(feed.Push("r</think>c\n\n" + kOpen + Invoke(Parameter("s", "x")) + Invoke("", "free") +
                      kClose + "\nd"),
            (Texts{"r:r", "c:c", "call:f", "a:{\"s\": \"x\"}", "call:free", "a:{}", "c:\nd"}));
}

TEST(OutputParser, AThinkMarkDropsWhiteSpaceOnlyBeforeTheFirstContent) {
  const auto parse = [](const std::string& text) { return ParsePieces({}, {text}).message; };
  EXPECT_EQ(parse(" \n\t<think>r</think> \n<think>s</think> a"), (OutputMessage{"rs", " a", {}}));
  EXPECT_EQ(parse("a \n<think>r</think>b"), (OutputMessage{"r", "a \nb", {}}));
  EXPECT_EQ(parse(" </think> a"), (OutputMessage{"", "  a", {}}));
}

TEST(OutputParser, WithoutReasoningParserThinkMarksAreText) {
  OutputCase given = WithTools(OutputState::kReasoning);
  given.options.split_reasoning = false;
  const ParsedOutput parsed =
      ParsePieces(given, {"<think>r</think>a\n\n" + kOpen + Invoke(Parameter("s", "x")) + kClose});
  EXPECT_EQ(parsed.message, (OutputMessage{"", "<think>r</think>a", {{"f", "{\"s\": \"x\"}"}}}));
}

TEST(OutputParser, ABlockInReasoningWaitsForTheEnd) {
  const std::string block = kOpen + Invoke(Parameter("s", "a <think> b")) + kClose;
  Feed feed(WithTools(OutputState::kReasoning));
  EXPECT_EQ(feed.Push("so:\n\n" + block), Texts{"r:so:"});
  EXPECT_TRUE(feed.parser.in_reasoning());
  EXPECT_EQ(feed.parser.num_calls(), 0);
  EXPECT_EQ(feed.Push("\nmore"), Texts{});
  EXPECT_EQ(feed.Finish(), (Texts{"call:f", "a:{\"s\": \"a <think> b\"}", "c:more"}));
  EXPECT_FALSE(feed.parser.in_reasoning());

  const auto quoted = [&](const std::string& rest, const std::string& reason) {
    OutputCase given = WithTools(OutputState::kReasoning);
    given.engine_reason = reason;
    return ParsePieces(given, {"so:\n\n" + block + rest}).message;
  };
  const std::string shown =
      "so:\n\n" + kOpen + Invoke(Parameter("s", "a  b")) + kClose;  // without the mark
  EXPECT_EQ(quoted("\nno</think>ok", "stop"), (OutputMessage{shown + "\nno", "ok", {}}));
  EXPECT_EQ(quoted("\nno", "length"), (OutputMessage{shown + "\nno", "", {}}));
  EXPECT_EQ(quoted("\nno<｜DSML｜in", "abort"), (OutputMessage{shown + "\nno<｜DSML｜in", "", {}}));
}

TEST(OutputParser, AQuotationDoesNotHideTheCallAfterIt) {
  const std::string call = kOpen + Invoke(Parameter("s", "x")) + kClose;
  const std::string text = "like " + call + "</think>\n\n" + call;
  ExpectForEveryCut(WithTools(OutputState::kReasoning), text,
                    {{"like " + call, "", {{"f", "{\"s\": \"x\"}"}}}, "tool_calls", true, {}, {}});
}

TEST(OutputParser, AfterAHeldBlockTheRestIsReadLikeAnyOutput) {
  const std::string call = kOpen + Invoke(Parameter("s", "x")) + kClose;
  const std::string text = "r\n\n" + call + "\nc<think>s\n\n" + call + Invoke("", "free") + "d";
  const std::string x = "{\"s\": \"x\"}";
  ExpectForEveryCut(
      WithTools(OutputState::kReasoning), text,
      {{"rs", "c\nd", {{"f", x}, {"f", x}, {"free", "{}"}}}, "tool_calls", true, {}, {}});
}

TEST(OutputParser, AMissingClosingTagCostsAnyValueItsLastLineFeed) {
  const auto parse = [](const std::string& attributes, const std::string& text) {
    const std::string body = "<｜DSML｜parameter " + attributes + ">" + text;
    return ParsePieces(WithTools(), {kOpen + Invoke(body) + kClose}).message.calls.at(0).arguments;
  };
  EXPECT_EQ(parse("name=\"s\" string=\"true\"", "a\n\n"), "{\"s\": \"a\\n\"}");
  EXPECT_EQ(parse("name=\"n\" string=\"true\"", "a\n\n"), "{\"n\": \"a\\n\"}");
  EXPECT_EQ(parse("name=\"o\" string=\"false\"", "a\n"), "{\"o\": \"a\"}");
  EXPECT_EQ(parse("name=\"input\" string=\"true\"", "a\n"), "{\"input\": \"a\"}");
}

TEST(OutputParser, OnlyTheOfficialBlockMayNameUndeclaredTools) {
  const auto names = [](const std::string& text) {
    std::string joined;
    for (const auto& call : ParsePieces(WithTools(), {text}).message.calls)
      joined += call.name + " ";
    return joined;
  };
  EXPECT_EQ(names(kOpen + Invoke("", "x") + Invoke("", "f") + Invoke("", "x") + kClose), "x f x ");
  EXPECT_EQ(names("<｜DSML｜calls>" + Invoke("", "x") + kClose), "");
  EXPECT_EQ(names("<｜DSML｜calls>" + Invoke("", "f") + Invoke("", "x") + kClose), "f x ");
  EXPECT_EQ(names(Invoke("", "x") + Invoke("", "f") + Invoke("", "x") + Invoke("", "f")), "f f ");
}

TEST(OutputParser, AsksToStopAfterTheFirstCallUnlessItIsHeld) {
  OutputCase given = WithTools();
  given.options.parallel_tool_calls = false;
  Feed feed(given);
  feed.Push(kOpen + "<｜DSML｜invoke name=\"f\">");
  EXPECT_FALSE(feed.parser.wants_stop());
  feed.Push("</｜DSML｜invoke>");
  EXPECT_TRUE(feed.parser.wants_stop());
  EXPECT_EQ(feed.Push(Invoke("") + kClose + "text"), Texts{});
  EXPECT_EQ(feed.Finish(), Texts{});
  EXPECT_EQ(feed.parser.num_calls(), 1);

  given.options.start = OutputState::kReasoning;
  Feed held(given);
  held.Push(kOpen + Invoke("") + Invoke("", "free") + kClose);
  EXPECT_FALSE(held.parser.wants_stop());
  EXPECT_EQ(held.Finish(), (Texts{"call:f", "a:{}"}));
  EXPECT_TRUE(held.parser.all_calls_complete());
}

TEST(OutputParser, ToolChoiceNoneTakesBlocksOutWithAndWithoutTools) {
  OutputCase given;
  given.tool_choice = ToolChoice::kNone;
  given.options.swallow_calls = true;
  const std::string text = "A\n\n" + kOpen + Invoke(Parameter("s", "x")) + kClose + "\nB";
  const ParsedOutput expected{{"", "A\nB", {}}, "stop", true, {}, {}};
  ExpectForEveryCut(given, text, expected);
  given.options.tools = Tools();
  ExpectForEveryCut(given, text, expected);
}

TEST(OutputParser, ACallThatWasCutCantBeRun) {
  OutputCase given = WithTools();
  const std::string call = Invoke(Parameter("s", "a\nb") + Parameter("n", "5", false));
  const std::string bodies[] = {call,
                                "<｜DSML｜invoke name=\"f\">\n{\"s\": {}}\n</｜DSML｜invoke>"};
  for (const std::string& body : bodies) {
    const std::string text = kOpen + body;
    const size_t complete = text.rfind('>') + 1;
    for (size_t size = kOpen.size(); size < complete; ++size) {
      if (!StartsCharacter(text, size)) continue;
      given.engine_reason = "length";
      const ParsedOutput cut = ParsePieces(given, {text.substr(0, size)});
      EXPECT_EQ(cut.finish_reason, "length");
      if (cut.message.calls.empty()) continue;
      EXPECT_FALSE(cut.all_calls_complete) << text.substr(0, size);
      EXPECT_FALSE(ParseArguments(cut.message.calls[0].arguments)) << text.substr(0, size);
      given.engine_reason = "stop";
      const ParsedOutput stopped = ParsePieces(given, {text.substr(0, size)});
      EXPECT_EQ(ParseArguments(stopped.message.calls[0].arguments).has_value(),
                stopped.all_calls_complete);
      EXPECT_EQ(stopped.finish_reason, stopped.all_calls_complete ? "tool_calls" : "stop");
    }
  }
}

TEST(OutputParser, WhatIsNestedTooDeeplyToBeReadAgainIsAString) {
  for (const int depth : {255, 256, 100'000}) {
    const auto size = static_cast<size_t>(depth);
    const std::string value = std::string(size, '[') + std::string(size, ']');
    const ParsedOutput parsed =
        ParsePieces(WithTools(), {kOpen + Invoke(Parameter("o", value, false)) + kClose});
    const auto arguments = ParseArguments(parsed.message.calls.at(0).arguments);
    ASSERT_TRUE(arguments.has_value()) << depth;
    EXPECT_EQ(arguments->at(0).value.IfString() == nullptr, depth == 255);
  }
}

TEST(OutputParser, AnUnfinishedTagLeavesTheCallOpenAndAWholeBodyCompletesIt) {
  const auto stopped = [](const std::string& body) {
    return ParsePieces(WithTools(), {kOpen + "<｜DSML｜invoke name=\"f\">\n" + body});
  };
  EXPECT_TRUE(stopped(Parameter("s", "x")).all_calls_complete);
  EXPECT_FALSE(stopped(Parameter("s", "x") + "</｜DSML｜inv").all_calls_complete);
  EXPECT_TRUE(stopped("{\"s\": \"x\"}\n</｜DSML｜inv").all_calls_complete);
  EXPECT_FALSE(stopped("{\"s\": \"x\"").all_calls_complete);
}

TEST(OutputParser, RepairsAreCountedByKind) {
  const auto repairs = [](const std::string& text, bool swallow = false,
                          OutputState start = OutputState::kContent) {
    OutputCase given = WithTools(start);
    given.options.swallow_calls = swallow;
    Feed feed(given);
    feed.Push(text);
    feed.Finish();
    std::string names;
    for (size_t i = 0; i < kNumParserRepairs; ++i) {
      for (int n = 0; n < feed.parser.repairs()[i]; ++n) {
        names += (names.empty() ? "" : " ") + std::string(kParserRepairNames[i]);
      }
    }
    return names;
  };
  const std::string s = Parameter("s", "x");
  const std::string unclosed_value = "<｜DSML｜parameter name=\"s\" string=\"true\">x\n";
  EXPECT_EQ(repairs("a\n\n" + kOpen + Invoke(s) + kClose + "\n"), "");
  EXPECT_EQ(repairs("<｜DSML｜calls>" + Invoke(s) + kClose), "wrapper_spelling");
  EXPECT_EQ(repairs(Invoke(s)), "wrapper_missing");
  EXPECT_EQ(repairs(kOpen + "<|DSML|invoke name=\"f\"></|DSML|invoke>" + kClose), "tag_spelling");
  EXPECT_EQ(repairs("r" + kOpen + Invoke(s) + kClose, false, OutputState::kReasoning),
            "block_in_reasoning");
  EXPECT_EQ(repairs(kOpen + Invoke(unclosed_value) + kClose), "value_closer");
  EXPECT_EQ(repairs(kOpen + "<｜DSML｜invoke name=\"f\">" + s + kClose), "call_closer");
  EXPECT_EQ(repairs(kOpen + Invoke(s + s) + kClose), "repeated_parameter");
  EXPECT_EQ(repairs(kOpen + Invoke(Parameter("n", "5")) + kClose), "typed_value");
  EXPECT_EQ(repairs(kOpen + Invoke(Parameter("input", "{\"s\": \"x\"}")) + kClose),
            "wrapped_arguments");
  EXPECT_EQ(repairs(kOpen + Invoke("{\"s\": \"x\"}\n") + kClose), "json_body");
  EXPECT_EQ(repairs("a</｜DSML｜invoke>"), "stray_tag");
  EXPECT_EQ(repairs(kOpen + Invoke(s) + kClose, true), "swallowed_call");
}

// Marks, tags, halves of both and what lies between them: cutting the text never changes the
// answer, whole marks never reach the content, and arguments are JSON exactly when a call is whole.
TEST(OutputParser, MarkerSoupsGiveTheSameAnswerForEveryCut) {
  const std::string parts[] = {"<｜DSML｜tool_calls>",
                               "</｜DSML｜tool_calls>",
                               "<｜DSML｜ calls>",
                               "<｜DSML｜invoke name=\"f\">",
                               "<｜DSML｜invoke name=\"other\">",
                               "</｜DSML｜invoke>",
                               "<｜DSML｜parameter name=\"s\" string=\"true\">",
                               "<｜DSML｜parameter name=\"n\" string=\"true\">",
                               "<｜DSML｜parameter name=\"o\" string=\"false\">",
                               "<｜DSML｜parameter name=\"input\">",
                               "</｜DSML｜parameter>",
                               "<|DSML|invoke name=\"f\">",
                               "</|DSML|invoke>",
                               "</‖DSML‖parameter>",
                               "<think>",
                               "</think>",
                               "<｜end▁of▁sentence｜>",
                               "<",
                               "</",
                               "<｜",
                               "<｜DSML",
                               "<｜DSML｜",
                               "</th",
                               "invoke",
                               " name=\"",
                               "DSML｜",
                               ">",
                               "\"",
                               "{",
                               "}",
                               "{\"s\": 1}",
                               "5",
                               "True",
                               "\n",
                               "\n\n",
                               " ",
                               "a",
                               "é｜",
                               "｝"};  // the last begins with the bytes of a bar
  // A mark taken out between the halves of another leaves a whole one; that is no leak.
  const std::regex half_before_mark("<[^<> ]{0,30}<");
  const std::regex mark("</?(｜|\\||‖){0,2}DSML(｜|\\||‖)|</?think>|<｜end▁of▁sentence｜>");
  std::mt19937 random(11);
  int with_calls = 0;
  int checked_for_marks = 0;
  for (int round = 0; round < 4000; ++round) {
    const bool with_halves = random() % 2 == 0;
    std::string text;
    for (size_t i = 0, count = random() % 14; i < count; ++i) {
      const std::string& part = parts[random() % std::size(parts)];
      if (with_halves || part.find('<') == std::string::npos || part.ends_with('>')) text += part;
    }
    OutputCase given =
        WithTools(random() % 3 == 0 ? OutputState::kReasoning : OutputState::kContent);
    given.options.parallel_tool_calls = random() % 4 != 0;
    given.options.swallow_calls = random() % 8 == 0;
    if (random() % 3 == 0) given.engine_reason = "length";
    const ParsedOutput whole = ParsePieces(given, {text});
    for (size_t cut = 0; cut <= text.size(); ++cut) {
      ASSERT_EQ(ParsePieces(given, {text.substr(0, cut), text.substr(cut)}), whole) << text;
    }
    const ParsedOutput by_character = ParsePieces(given, CutEvery(text, 1));
    ASSERT_EQ(by_character, whole) << text;
    for (const OutputDelta& delta : by_character.deltas) {
      ASSERT_TRUE(ParseJson(JsonStringText(delta.text)).ok()) << "half a character: " << text;
    }
    ASSERT_EQ(ParsePieces(given, CutAtRandom(text, 4, random)), whole) << text;
    ASSERT_EQ(ParsePieces(given, CutAtRandom(text, 20, random)), whole) << text;

    const auto& calls = whole.message.calls;
    for (size_t i = 0; i < calls.size(); ++i) {
      const bool is_complete = i + 1 < calls.size() || whole.all_calls_complete;
      ASSERT_EQ(ParseArguments(calls[i].arguments).has_value(), is_complete) << text << "\n"
                                                                             << calls[i].arguments;
    }
    with_calls += calls.empty() ? 0 : 1;
    if (std::regex_search(text, half_before_mark)) continue;
    ASSERT_FALSE(std::regex_search(whole.message.content, mark)) << text;
    ++checked_for_marks;
  }
  EXPECT_GT(with_calls, 800);
  EXPECT_GT(checked_for_marks, 1500);
}

// Each would take minutes if anything were searched or copied again from its beginning.
TEST(OutputParser, IsLinearForTextThatAlmostMeansSomething) {
  const std::string parts[] = {"<",
                               "</｜DSML｜invoke",
                               "<｜DSML｜invoke name=\"",
                               "<｜DSML｜tool_calls>",
                               "\n",
                               "<think>",
                               "<think><｜DSML｜invoke name=\"f\">",
                               "<｜DSML｜invoke name=\"f\"></｜DSML｜invoke>",
                               "<｜DSML｜parameter name=\"s\">"};
  const std::string starts[] = {
      "", kOpen, kOpen + "<｜DSML｜invoke name=\"f\">",
      kOpen + "<｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"s\" string=\"true\">",
      kOpen + "<｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"o\" string=\"false\">"};
  constexpr size_t kSize = 300'000;
  for (const std::string& start : starts) {
    for (const std::string& part : parts) {
      for (const OutputState state : {OutputState::kReasoning, OutputState::kContent}) {
        std::string text = start;
        while (text.size() < kSize) text += part;
        OutputParser parser(WithTools(state).options);
        std::vector<OutputDelta> deltas;
        size_t given_out = 0;
        for (size_t at = 0; at < text.size(); ++at) {
          parser.Push(std::string_view(text).substr(at, 1), &deltas);
          for (const OutputDelta& delta : deltas) given_out += delta.text.size();
          deltas.clear();
        }
        parser.Finish(OutputEnd::kStop, &deltas);
        for (const OutputDelta& delta : deltas) given_out += delta.text.size();
        // Escaping doubles a character at most here; a call without arguments gets its braces.
        EXPECT_LE(given_out, 2 * text.size());
      }
    }
  }
}

TEST(FinishReasonFor, ToolCallsOnlyForWholeCallsAfterAStop) {
  EXPECT_EQ(FinishReasonFor("stop", ToolChoice::kAuto, 1, true), "tool_calls");
  EXPECT_EQ(FinishReasonFor("stop", ToolChoice::kRequired, 2, true), "tool_calls");
  EXPECT_EQ(FinishReasonFor("stop", ToolChoice::kAuto, 0, true), "stop");
  EXPECT_EQ(FinishReasonFor("stop", ToolChoice::kAuto, 1, false), "stop");
  EXPECT_EQ(FinishReasonFor("stop", ToolChoice::kNamed, 1, true), "stop");
  EXPECT_EQ(FinishReasonFor("length", ToolChoice::kAuto, 1, true), "length");
  EXPECT_EQ(FinishReasonFor("abort", ToolChoice::kNamed, 1, false), "abort");
}

}  // namespace
}  // namespace fathom
