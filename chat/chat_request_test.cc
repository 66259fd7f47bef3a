#include "chat/chat_request.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "chat/markers.h"
#include "chat/vector_file.h"

namespace fathom {
namespace {

JsonValue Json(std::string_view text) {
  Result<JsonValue> json = ParseJson(text);
  EXPECT_TRUE(json.ok()) << text << json.status().ToString();
  return json.ok() ? *json : JsonValue();
}

PreparedChat Prepare(const JsonValue& body, const ChatOptions& options = {}) {
  PreparedChat chat;
  const std::optional<RequestError> error = PrepareChat(body, options, chat);
  EXPECT_FALSE(error.has_value()) << error->param << ": " << error->message;
  return chat;
}
std::string Prompt(std::string_view body) { return Prepare(Json(body)).Text(); }

// "" when the request is accepted.
std::string ErrorParam(std::string_view body) {
  PreparedChat chat;
  const std::optional<RequestError> error = PrepareChat(Json(body), {}, chat);
  if (!error) return "";
  EXPECT_EQ(error->http_status, 400);
  EXPECT_FALSE(error->message.empty());
  return error->param;
}

std::string ModeName(ThinkingMode mode) {
  return mode == ThinkingMode::kThinking ? "thinking" : "chat";
}
std::string StartName(OutputState state) {
  return state == OutputState::kReasoning ? "reasoning" : "content";
}
EffortProfile ProfileOf(const JsonValue& test) {
  const JsonValue* profile = test.Find("profile");
  const bool is_0731 = profile != nullptr && *profile->IfString() == "0731";
  return is_0731 ? EffortProfile::k0731 : EffortProfile::kPreview;
}

TEST(PrepareChat, EqualsEveryServerVector) {
  const JsonValue vectors = ReadVectorFile("chat/encode.json");
  int prompts = 0;
  int errors = 0;
  for (const JsonValue& test : ArrayAt(vectors, "server")) {
    const std::string label = StringAt(test, "id") + " " + StringAt(test, "name");
    ChatOptions options;
    options.effort_profile = ProfileOf(test);
    if (const JsonValue* thinking = test.Find("server_default_thinking")) {
      options.defaults.thinking = *thinking->IfBool();
    }
    PreparedChat chat;
    const std::optional<RequestError> error = PrepareChat(*test.Find("request"), options, chat);
    if (const JsonValue* expected = test.Find("error")) {
      ASSERT_TRUE(error.has_value()) << label;
      EXPECT_EQ(error->http_status, expected->Find("status")->AsInt64()) << label;
      EXPECT_EQ(error->param, StringAt(*expected, "param")) << label;
      EXPECT_FALSE(error->message.empty()) << label;
      ++errors;
      continue;
    }
    ASSERT_FALSE(error.has_value()) << label << ": " << error->param << ": " << error->message;
    EXPECT_EQ(chat.Text(), StringAt(test, "prompt")) << label;
    EXPECT_EQ(ModeName(chat.thinking_mode), StringAt(test, "mode")) << label;
    EXPECT_EQ(StartName(chat.parser_start), StringAt(test, "parser_start")) << label;
    const JsonValue* effort = test.FindNonNull("effort_level");
    EXPECT_EQ(chat.effort ? EffortLevelName(*chat.effort) : "",
              effort == nullptr ? "" : *effort->IfString())
        << label;
    ++prompts;
  }
  EXPECT_EQ(prompts, 81);
  EXPECT_EQ(errors, 20);
}

// Reports of kind encode: what users of other engines saw go wrong, with the right behaviour.

// $CASE and $CASE_FIELD of a request stand for the values of one case.
JsonValue Substitute(const JsonValue& value, const JsonValue& test) {
  if (const std::string* text = value.IfString()) {
    return *text == "$CASE" ? test.IfObject()->front().value : value;
  }
  if (const JsonValue::Array* array = value.IfArray()) {
    JsonValue::Array out;
    for (const JsonValue& element : *array) out.push_back(Substitute(element, test));
    return JsonValue::FromArray(std::move(out));
  }
  if (const JsonValue::Object* object = value.IfObject()) {
    JsonValue::Object out;
    for (const JsonValue::Member& member : *object) {
      const bool is_field = member.key == "$CASE_FIELD";
      out.push_back(
          {is_field ? StringAt(test, "field") : member.key, Substitute(member.value, test)});
    }
    return JsonValue::FromObject(std::move(out));
  }
  return value;
}

// The request of a report, made for one of its cases.
JsonValue RequestOf(const JsonValue& input, const JsonValue& test) {
  JsonValue::Object body = *Substitute(*input.Find("request"), test).IfObject();
  JsonValue::Object kwargs;
  if (const JsonValue* thinking = input.Find("thinking")) kwargs.push_back({"thinking", *thinking});
  for (const JsonValue::Member& member : *test.IfObject()) {
    if (member.key == "drop_thinking") kwargs.push_back(member);
    if (member.key == "reasoning_effort" || member.key == "thinking") body.push_back(member);
    if (member.key == "chat_template_kwargs") kwargs = *member.value.IfObject();
  }
  if (!kwargs.empty()) {
    body.push_back({"chat_template_kwargs", JsonValue::FromObject(std::move(kwargs))});
  }
  return JsonValue::FromObject(std::move(body));
}

// Checks one expectation of a report against the prompts of its cases; false if it knows it not.
bool CheckExpectation(const JsonValue::Member& expect, const std::vector<JsonValue>& tests,
                      const std::vector<PreparedChat>& chats) {
  for (size_t i = 0; i < chats.size(); ++i) {
    const std::string prompt = chats[i].Text();
    const auto nth = [&]() { return *(*expect.value.IfArray())[i].IfString(); };
    if (expect.key == "prompt_contains" || expect.key == "prompt_not_contains") {
      for (const JsonValue& part : *expect.value.IfArray()) {
        const bool found = prompt.find(*part.IfString()) != std::string::npos;
        EXPECT_EQ(found, expect.key == "prompt_contains") << *part.IfString() << "\n" << prompt;
      }
    } else if (expect.key == "prompt_starts_with") {
      EXPECT_TRUE(prompt.starts_with(*expect.value.IfString())) << prompt;
    } else if (expect.key == "prompt_ends_with") {
      EXPECT_TRUE(prompt.ends_with(*expect.value.IfString())) << prompt;
    } else if (expect.key == "prompt_per_case") {
      EXPECT_EQ(prompt, nth());
    } else if (expect.key == "prompt_ends_with_per_case") {
      EXPECT_TRUE(prompt.ends_with(nth())) << prompt;
    } else if (expect.key == "parser_start_per_case") {
      EXPECT_EQ(StartName(chats[i].parser_start), nth());
    } else if (expect.key == "all_cases_equal") {
      EXPECT_EQ(prompt, chats[0].Text());
    } else if (expect.key == "prefix_after_bos") {
      const std::string key =
          StringAt(tests[i], "profile") + "/" + StringAt(tests[i], "reasoning_effort");
      const std::string prefix = StringAt(expect.value, key);
      const std::string after_bos = prompt.substr(markers::kBos.size());
      EXPECT_TRUE(after_bos.starts_with(prefix.empty() ? markers::kUser : prefix)) << key;
    } else if (expect.key != "status" && expect.key != "prompt_tokens") {
      return false;
    }
  }
  return true;
}

TEST(PrepareChat, AnswersTheReportsOfKindEncode) {
  for (const char* id :
       {"R006", "R008", "R010", "R012", "R013", "R014", "R069", "R129", "R131", "R132"}) {
    SCOPED_TRACE(id);
    const JsonValue report = ReadVectorFile("reports/" + std::string(id) + ".json");
    const JsonValue& input = *report.Find("input");
    ASSERT_EQ(StringAt(input, "kind"), "encode");
    std::vector<JsonValue> tests = {Json("{}")};
    if (const JsonValue* cases = input.Find("cases")) tests = *cases->IfArray();
    std::vector<PreparedChat> chats;
    for (const JsonValue& test : tests) {
      ChatOptions options;
      options.effort_profile = ProfileOf(test);
      chats.push_back(Prepare(RequestOf(input, test), options));
    }
    for (const JsonValue::Member& expect : *report.Find("expect")->IfObject()) {
      EXPECT_TRUE(CheckExpectation(expect, tests, chats)) << "unknown expectation " << expect.key;
    }
  }
}

TEST(PrepareChat, TypeErrorsNameTheField) {
  const auto with = [](std::string_view fields) {
    return R"({"messages":[{"role":"user","content":"a"}],)" + std::string(fields) + "}";
  };
  EXPECT_EQ(ErrorParam(with(R"("chat_template_kwargs":5)")), "chat_template_kwargs");
  EXPECT_EQ(ErrorParam(with(R"("chat_template_kwargs":{"thinking":"yes"})")),
            "chat_template_kwargs.thinking");
  EXPECT_EQ(ErrorParam(with(R"("chat_template_kwargs":{"enable_thinking":1})")),
            "chat_template_kwargs.enable_thinking");
  EXPECT_EQ(ErrorParam(with(R"("chat_template_kwargs":{"drop_thinking":0})")),
            "chat_template_kwargs.drop_thinking");
  EXPECT_EQ(ErrorParam(with(R"("chat_template_kwargs":{"native_developer":[]})")),
            "chat_template_kwargs.native_developer");
  EXPECT_EQ(ErrorParam(with(R"("reasoning_effort":3)")), "reasoning_effort");
  EXPECT_EQ(ErrorParam(with(R"("thinking":true)")), "thinking");
  EXPECT_EQ(ErrorParam(with(R"("thinking":{})")), "thinking.type");
  EXPECT_EQ(ErrorParam(with(R"("tools":{})")), "tools");
  EXPECT_EQ(ErrorParam(with(R"("tools":[3])")), "tools.0");
  EXPECT_EQ(ErrorParam(with(R"("tool_choice":{"type":"function"})")), "tool_choice");
  EXPECT_EQ(ErrorParam(with(R"("tool_choice":7)")), "tool_choice");
  EXPECT_EQ(ErrorParam(with(R"("continue_final_message":"no")")), "continue_final_message");
  EXPECT_EQ(ErrorParam(with(R"("add_generation_prompt":1)")), "add_generation_prompt");
  PreparedChat chat;
  EXPECT_TRUE(PrepareChat(Json("[]"), {}, chat).has_value());

  const auto message = [](std::string_view fields) {
    return R"({"messages":[{"role":"user"},{"role":"assistant",)" + std::string(fields) + "}]}";
  };
  EXPECT_EQ(ErrorParam(R"({"messages":{}})"), "messages");
  EXPECT_EQ(ErrorParam(R"({"messages":["hi"]})"), "messages.0");
  EXPECT_EQ(ErrorParam(R"({"messages":[{"role":1}]})"), "messages.0.role");
  EXPECT_EQ(ErrorParam(R"({"messages":[{"content":"x"}]})"), "messages.0.role");
  EXPECT_EQ(ErrorParam(message(R"("content":{"type":"text","text":"a"})")), "messages.1.content");
  EXPECT_EQ(ErrorParam(message(R"("content":[1])")), "messages.1.content.0");
  EXPECT_EQ(ErrorParam(message(R"("content":["a",{"type":3}])")), "messages.1.content.1.type");
  EXPECT_EQ(ErrorParam(message(R"("content":[{"a":3}])")), "messages.1.content.0.type");
  EXPECT_EQ(ErrorParam(message(R"("reasoning":{})")), "messages.1.reasoning");
  EXPECT_EQ(ErrorParam(message(R"("reasoning_content":1)")), "messages.1.reasoning_content");
  EXPECT_EQ(ErrorParam(message(R"("tool_calls":{})")), "messages.1.tool_calls");
  EXPECT_EQ(ErrorParam(message(R"("tool_calls":[1])")), "messages.1.tool_calls.0");
  EXPECT_EQ(ErrorParam(message(R"("tool_calls":[{"function":{"name":null}}])")),
            "messages.1.tool_calls.0.function.name");
  EXPECT_EQ(ErrorParam(message(R"("tool_calls":[{"id":1,"function":{"name":"f"}}])")),
            "messages.1.tool_calls.0.id");
  EXPECT_EQ(ErrorParam(message(R"("prefix":"x")")), "messages.1.prefix");
  EXPECT_EQ(ErrorParam(message(R"("task":4)")), "messages.1.task");
  EXPECT_EQ(ErrorParam(message(R"("tools":[{"type":"function"}])")), "messages.1.tools.0");
}

TEST(PrepareChat, MessagesEchoOnlyTheBeginningOfABadValue) {
  std::string role;
  for (int i = 0; i < 100'000; ++i) role += "é";
  const JsonValue body = Json(R"({"messages":[{"role":")" + role + R"("}]})");
  PreparedChat chat;
  const std::optional<RequestError> error = PrepareChat(body, {}, chat);
  ASSERT_TRUE(error.has_value());
  EXPECT_LT(error->message.size(), 400u);
  EXPECT_TRUE(ParseJson('"' + error->message.substr(error->message.rfind(" \"") + 2)).ok())
      << "cut between characters: " << error->message;
}

TEST(PrepareChat, ContentPartsOfEverySpelling) {
  EXPECT_EQ(Prompt(R"({"messages":[{"role":"user","content":["a",{"text":"b"},
      {"type":"input_text","text":"c"},{"type":"output_text","text":"d"},
      {"type":"refusal","refusal":"e"},{"type":"refusal","text":"f"}]}]})"),
            "<｜begin▁of▁sentence｜><｜User｜>a\nb\nc\nd\ne\nf<｜Assistant｜><think>");
}

TEST(PrepareChat, TrailingSystemWithToolsKeepsThem) {
  const std::string tools = R"("tools":[{"type":"function","function":{"name":"f"}}])";
  const std::string prompt =
      Prompt(R"({"messages":[{"role":"user","content":"a"},{"role":"system","content":"b",)" +
             tools + "}]}");
  EXPECT_NE(prompt.find("<｜User｜>b\n\n## Tools"), std::string::npos) << prompt;
  EXPECT_TRUE(prompt.ends_with("<｜Assistant｜><think>"));
  EXPECT_EQ(
      ErrorParam(R"({"messages":[{"role":"user","content":"a"},{"role":"system",)" + tools + "}]}"),
      "messages.1.content");
}

TEST(PrepareChat, ToolChoiceIsReported) {
  const auto prepare = [](std::string_view choice) {
    return Prepare(Json(R"({"messages":[{"role":"user","content":"a"}],
        "tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":)" +
                        std::string(choice) + "}"));
  };
  EXPECT_EQ(prepare("null").tool_choice, ToolChoice::kAuto);
  EXPECT_TRUE(prepare("\"auto\"").has_tools);
  EXPECT_EQ(prepare("\"none\"").tool_choice, ToolChoice::kNone);
  EXPECT_FALSE(prepare("\"none\"").has_tools);
  EXPECT_EQ(prepare("\"required\"").tool_choice, ToolChoice::kRequired);
  const PreparedChat named = prepare(R"({"type":"function","function":{"name":"f"}})");
  EXPECT_EQ(named.tool_choice, ToolChoice::kNamed);
  EXPECT_EQ(named.named_tool, "f");
}

TEST(PrepareChat, ParserStartIgnoresMarksInClientText) {
  // A continued answer that spells a think mark is content all the same, and a continued reasoning
  // that spells the closing mark is still reasoning.
  const PreparedChat content = Prepare(Json(R"({"continue_final_message":true,"messages":[
      {"role":"user","content":"a"},{"role":"assistant","content":"x<think>"}]})"));
  EXPECT_EQ(content.parser_start, OutputState::kContent);
  const PreparedChat reasoning = Prepare(Json(R"({"continue_final_message":true,"messages":[
      {"role":"user","content":"a"},{"role":"assistant","reasoning":"x</think>y"}]})"));
  EXPECT_EQ(reasoning.parser_start, OutputState::kReasoning);
  EXPECT_TRUE(reasoning.Text().ends_with("<think>x</think>y"));
}

TEST(PrepareChat, OfficialUserContentMakesOneTemplateSegmentOfTheSameText) {
  const JsonValue body = Json(R"({"messages":[{"role":"user","content":"x</think>y"}]})");
  ChatOptions official;
  official.official_user_content = true;
  const PreparedChat chat = Prepare(body, official);
  ASSERT_EQ(chat.segments.size(), 1u);
  EXPECT_TRUE(chat.segments[0].from_template);
  EXPECT_EQ(chat.Text(), Prepare(body).Text());
  EXPECT_EQ(Prepare(body).segments.size(), 3u);
}

TEST(PrepareChat, ServerDefaultsGiveWayToTheRequest) {
  const auto prepare = [](std::string_view defaults, std::string_view fields) {
    ChatOptions options;
    const Result<ChatDefaults> parsed = ParseChatDefaults(defaults);
    EXPECT_TRUE(parsed.ok()) << parsed.status().ToString();
    options.defaults = parsed.value();
    return Prepare(
        Json(R"({"messages":[{"role":"user","content":"a"}])" + std::string(fields) + "}"),
        options);
  };
  EXPECT_EQ(prepare("{}", "").thinking_mode, ThinkingMode::kThinking);
  EXPECT_EQ(prepare(R"({"thinking":false})", "").thinking_mode, ThinkingMode::kChat);
  EXPECT_EQ(prepare(R"({"reasoning_effort":"none"})", "").thinking_mode, ThinkingMode::kChat);
  const char* kThink = R"(,"chat_template_kwargs":{"thinking":true})";
  EXPECT_EQ(prepare(R"({"reasoning_effort":"none"})", kThink).effort, EffortLevel::kHigh);
  EXPECT_EQ(prepare(R"({"reasoning_effort":"max"})", "").effort, EffortLevel::kMax);
  EXPECT_EQ(prepare(R"({"reasoning_effort":"max"})", R"(,"reasoning_effort":"low")").effort,
            EffortLevel::kHigh);
  EXPECT_EQ(prepare(R"({"thinking":false,"reasoning_effort":"max"})", "").effort, std::nullopt);
  EXPECT_FALSE(ParseChatDefaults(R"({"thinking":false)").ok());
  EXPECT_FALSE(ParseChatDefaults(R"(["thinking"])").ok());
  EXPECT_FALSE(ParseChatDefaults(R"({"thinkin":false})").ok());
  EXPECT_FALSE(ParseChatDefaults(R"({"thinking":"off"})").ok());
  EXPECT_FALSE(ParseChatDefaults(R"({"reasoning_effort":"extreme"})").ok());
  EXPECT_FALSE(
      ParseChatDefaults(R"({"drop_thinking":false,"native_developer":true})")->drop_thinking);
}

// Puts `piece` in the place of one node of `value`, chosen at random.
JsonValue Damage(const JsonValue& value, const JsonValue& piece, std::mt19937& random) {
  if (random() % 4 == 0) return piece;
  if (const JsonValue::Array* array = value.IfArray(); array != nullptr && !array->empty()) {
    JsonValue::Array out = *array;
    JsonValue& chosen = out[random() % out.size()];
    chosen = Damage(chosen, piece, random);
    return JsonValue::FromArray(std::move(out));
  }
  if (const JsonValue::Object* object = value.IfObject(); object != nullptr && !object->empty()) {
    JsonValue::Object out = *object;
    JsonValue& chosen = out[random() % out.size()].value;
    chosen = Damage(chosen, piece, random);
    return JsonValue::FromObject(std::move(out));
  }
  return piece;
}

TEST(PrepareChat, DamagedRequestsGetAnErrorOrAPromptOfTheRightShape) {
  const JsonValue vectors = ReadVectorFile("chat/encode.json");
  const JsonValue pieces = Json(R"([null,true,0,-1.5,"","x","system","assistant","tool",[],{},["a"],
      {"type":"text"},{"role":"system"},{"role":"latest_reminder","content":"d"},[{"role":"tool"}],
      {"type":"function","function":{"name":"f"}},{"function":{"name":"f","arguments":"{"}}])");
  std::mt19937 random(5);
  int refused = 0;
  int prepared = 0;
  for (const JsonValue& test : ArrayAt(vectors, "server")) {
    for (int round = 0; round < 200; ++round) {
      const JsonValue& piece = (*pieces.IfArray())[random() % pieces.IfArray()->size()];
      const JsonValue body = Damage(*test.Find("request"), piece, random);
      PreparedChat chat;
      if (const std::optional<RequestError> error = PrepareChat(body, {}, chat)) {
        ASSERT_EQ(error->http_status, 400);
        ASSERT_FALSE(error->message.empty());
        ++refused;
        continue;
      }
      ++prepared;
      ASSERT_TRUE(chat.segments.front().from_template);
      ASSERT_TRUE(chat.Text().starts_with(markers::kBos));
      for (size_t i = 1; i < chat.segments.size(); ++i) {
        ASSERT_NE(chat.segments[i].from_template, chat.segments[i - 1].from_template);
      }
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(prepared, 1000);
}

}  // namespace
}  // namespace fathom
