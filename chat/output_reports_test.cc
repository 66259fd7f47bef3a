// The field reports about reading the model's output (tests/data/vectors/README.md: kinds parse,
// stream and encode_roundtrip), by id.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "chat/json_parse.h"
#include "chat/markers.h"
#include "chat/output_test.h"
#include "chat/vector_file.h"

namespace fathom {
namespace {

JsonValue Report(const std::string& id) { return ReadVectorFile("reports/" + id + ".json"); }

OutputCase CaseOf(const JsonValue& input, const JsonValue* tools) {
  OutputCase given;
  const bool thinking = *input.Find("thinking")->IfBool();
  given.options.start = thinking ? OutputState::kReasoning : OutputState::kContent;
  given.options.tools = FunctionsOf(tools);
  if (input.Find("tool_choice") != nullptr) {
    EXPECT_EQ(StringAt(input, "tool_choice"), "none");
    given.tool_choice = ToolChoice::kNone;
    given.options.swallow_calls = true;
  }
  given.engine_reason = StringAt(input, "finish");
  return given;
}

// The pieces that the report asks for, once for each of its ways of cutting.
std::vector<std::vector<std::string>> PiecesOf(const JsonValue& input) {
  std::vector<std::vector<std::string>> ways;
  if (input.Find("chunks") != nullptr) {
    for (const JsonValue& chunk : ArrayAt(input, "chunks")) {
      if (ways.empty()) ways.emplace_back();
      ways.back().push_back(*chunk.IfString());
    }
    return ways;
  }
  const std::string text = StringAt(input, "text");
  const JsonValue* split_json = input.Find("split");
  const std::string split = split_json == nullptr ? "" : *split_json->IfString();
  if (split.empty()) {
    ways = {{text}};
  } else if (split == "every_char") {
    ways = {CutEvery(text, 1)};
  } else if (split == "all_fixed_sizes_1_to_17") {
    for (size_t size = 1; size <= 17; ++size) ways.push_back(CutEvery(text, size));
  } else if (split == "all_two_chunk_splits") {
    for (size_t at = 0; at <= text.size(); ++at) {
      if (StartsCharacter(text, at)) ways.push_back({text.substr(0, at), text.substr(at)});
    }
  } else if (split.starts_with("size_")) {
    ways = {CutEvery(text, static_cast<size_t>(std::stoi(split.substr(5))))};
  } else {
    ADD_FAILURE() << "unknown split " << split;
  }
  return ways;
}

void ExpectCalls(const JsonValue::Array& expected, const ParsedOutput& parsed) {
  const auto& calls = parsed.message.calls;
  ASSERT_EQ(calls.size(), expected.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(calls[i].name, StringAt(expected[i], "name"));
    const Result<JsonValue> arguments = ParseJson(calls[i].arguments);
    ASSERT_TRUE(arguments.ok()) << calls[i].arguments;
    EXPECT_EQ(ToPythonJson(*arguments), ToPythonJson(*expected[i].Find("arguments")));
  }
}

void ExpectDeltas(const JsonValue::Array& expected, const ParsedOutput& parsed) {
  ASSERT_EQ(parsed.deltas.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const bool is_reasoning = parsed.deltas[i].kind == OutputDelta::Kind::kReasoning;
    EXPECT_TRUE(is_reasoning || parsed.deltas[i].kind == OutputDelta::Kind::kContent);
    EXPECT_EQ(parsed.deltas[i].text,
              StringAt(expected[i], is_reasoning ? "reasoning_content" : "content"));
  }
}

// Indices of the deltas.
std::vector<size_t> ArgumentDeltas(const ParsedOutput& parsed) {
  std::vector<size_t> indices;
  for (size_t i = 0; i < parsed.deltas.size(); ++i) {
    if (parsed.deltas[i].kind == OutputDelta::Kind::kToolArguments) indices.push_back(i);
  }
  return indices;
}

void Expect(const JsonValue& expect, const ParsedOutput& parsed) {
  for (const auto& [key, value] : *expect.IfObject()) {
    SCOPED_TRACE(key);
    if (key == "reasoning_content") {
      EXPECT_EQ(parsed.message.reasoning, *value.IfString());
    } else if (key == "content") {
      EXPECT_EQ(parsed.message.content, *value.IfString());
    } else if (key == "finish_reason") {
      EXPECT_EQ(parsed.finish_reason, *value.IfString());
    } else if (key == "tool_calls") {
      ExpectCalls(*value.IfArray(), parsed);
    } else if (key == "indices") {
      int index = 0;
      for (const OutputDelta& delta : parsed.deltas) {
        if (delta.kind != OutputDelta::Kind::kToolCall) continue;
        EXPECT_EQ(delta.call, index++);
      }
      EXPECT_EQ(static_cast<size_t>(index), value.IfArray()->size());
    } else if (key == "reasoning_contains") {
      for (const JsonValue& part : *value.IfArray()) {
        EXPECT_NE(parsed.message.reasoning.find(*part.IfString()), std::string::npos);
      }
    } else if (key == "no_output_contains" || key == "no_delta_contains") {
      // Joined, so that no part of it went out either.
      for (const JsonValue& part : *value.IfArray()) {
        EXPECT_EQ(parsed.message.content.find(*part.IfString()), std::string::npos);
        EXPECT_EQ(parsed.message.reasoning.find(*part.IfString()), std::string::npos);
        for (const auto& call : parsed.message.calls) {
          EXPECT_EQ(call.arguments.find(*part.IfString()), std::string::npos);
        }
      }
    } else if (key == "argument_deltas_min") {
      EXPECT_GE(static_cast<int64_t>(ArgumentDeltas(parsed).size()), value.AsInt64());
    } else if (key == "first_argument_delta_before_text_offset") {
      ASSERT_FALSE(ArgumentDeltas(parsed).empty());
      EXPECT_LT(static_cast<int64_t>(parsed.offsets[ArgumentDeltas(parsed).front()]),
                value.AsInt64());
    } else if (key == "deltas") {
      ExpectDeltas(*value.IfArray(), parsed);
    } else if (key == "any_of") {
      // R035: the other dialect's tags are read, the first alternative.
      Expect(value.IfArray()->front(), parsed);
    } else if (key == "each_case") {
      Expect(value, parsed);
    } else {
      // Held by ExpectCalls (valid JSON), by ExpectForEveryCut, by the type of a delta, or by what
      // makes ids and items of the calls (server/).
      const std::set<std::string> elsewhere = {"arguments_is_valid_json",
                                               "same_for_every_split",
                                               "all_cases_equal",
                                               "no_delta_has_both",
                                               "no_crash",
                                               "concatenation_is_valid_json",
                                               "ids_unique",
                                               "function_call_items"};
      EXPECT_TRUE(elsewhere.contains(key)) << "no check for this";
    }
  }
}

void RunReport(const std::string& id) {
  SCOPED_TRACE(id);
  const JsonValue report = Report(id);
  const JsonValue& input = *report.Find("input");
  std::vector<const JsonValue*> tool_lists = {input.Find("tools")};
  if (input.Find("cases") != nullptr) {
    tool_lists.clear();
    for (const JsonValue& one : ArrayAt(input, "cases")) tool_lists.push_back(one.Find("tools"));
  }
  for (const JsonValue* tools : tool_lists) {
    const OutputCase given = CaseOf(input, tools);
    const auto ways = PiecesOf(input);
    ASSERT_FALSE(ways.empty());
    for (const auto& pieces : ways) Expect(*report.Find("expect"), ParsePieces(given, pieces));
    std::string text;
    for (const std::string& piece : ways.front()) text += piece;
    ExpectForEveryCut(given, text, ParsePieces(given, {text}));
  }
}

TEST(OutputReports, WholeOutputs) {
  for (const char* id : {"R016", "R018", "R019", "R023", "R025", "R027", "R028", "R029", "R032",
                         "R033", "R034", "R035"}) {
    RunReport(id);
  }
}

TEST(OutputReports, OutputsInPieces) {
  for (const char* id :
       {"R005", "R036", "R037", "R038", "R040", "R041", "R044", "R046", "R047", "R134"}) {
    RunReport(id);
  }
}

TEST(OutputReports, R067TheNextPromptBeginsWithWhatTheModelHasSeen) {
  const JsonValue report = Report("R067");
  const JsonValue& input = *report.Find("input");
  const std::string generated = StringAt(input, "generated");
  JsonValue::Array messages = ArrayAt(*input.Find("turn1"), "messages");
  const auto prepare = [&] {
    PreparedChat chat;
    const JsonValue body = JsonValue::FromObject(
        {{"messages", JsonValue::FromArray(messages)}, {"tools", *input.Find("tools")}});
    EXPECT_FALSE(PrepareChat(body, {}, chat).has_value());
    return chat;
  };
  const PreparedChat first = prepare();
  OutputCase given;
  given.options.start = first.parser_start;
  given.options.tools = FunctionsOf(input.Find("tools"));
  const OutputMessage answer = ParsePieces(given, CutEvery(generated, 3)).message;
  ASSERT_EQ(answer.calls.size(), 1u);

  const JsonValue call = JsonValue::FromObject(
      {{"id", JsonValue::String("call_1")},
       {"type", JsonValue::String("function")},
       {"function",
        JsonValue::FromObject({{"name", JsonValue::String(answer.calls[0].name)},
                               {"arguments", JsonValue::String(answer.calls[0].arguments)}})}});
  messages.push_back(
      JsonValue::FromObject({{"role", JsonValue::String("assistant")},
                             {"content", JsonValue::String(answer.content)},
                             {"reasoning_content", JsonValue::String(answer.reasoning)},
                             {"tool_calls", JsonValue::FromArray({call})}}));
  messages.push_back(JsonValue::FromObject({{"role", JsonValue::String("tool")},
                                            {"tool_call_id", JsonValue::String("call_1")},
                                            {"content", JsonValue::String("ok")}}));
  EXPECT_TRUE(prepare().Text().starts_with(first.Text() + generated + std::string(markers::kEos)));
}

}  // namespace
}  // namespace fathom
