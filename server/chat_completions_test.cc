// /v1/chat/completions: what clients get for the tokens that the engine gives.
#include "server/api_server_fixture.h"

namespace fathom {
namespace {

using http::TestClient;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ChatCompletions : public ApiServerTest {
 protected:
  // The kind of every chunk, in order: role, reasoning, content, end, usage.
  static std::vector<std::string> Kinds(const std::vector<Json>& events) {
    std::vector<std::string> kinds;
    for (const Json& event : events) {
      if (event["choices"].empty()) {
        kinds.emplace_back("usage");
        continue;
      }
      const Json& choice = event["choices"][0];
      const Json& delta = choice["delta"];
      if (!choice["finish_reason"].is_null()) {
        kinds.emplace_back("end");
      } else if (delta.contains("role")) {
        kinds.emplace_back("role");
      } else {
        kinds.emplace_back(delta.contains("content") ? "content" : "reasoning");
      }
    }
    return kinds;
  }
};

TEST_F(ChatCompletions, WholeAnswer) {
  engine_.Script(IdsAndEos("let me see</think>It is 323."));
  const Reply reply = Chat();
  EXPECT_EQ(reply.headers.at("Content-Type"), "application/json");
  const Json json = Parse(reply);
  EXPECT_EQ(json["id"].get<std::string>().rfind("chatcmpl-", 0), 0u);
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_TRUE(json["created"].is_number_integer());
  EXPECT_EQ(json["model"], "fathom-nano");
  ASSERT_EQ(json["choices"].size(), 1u);
  const Json& choice = json["choices"][0];
  EXPECT_EQ(choice["index"], 0);
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_TRUE(choice["stop_reason"].is_null());
  EXPECT_TRUE(choice["logprobs"].is_null());
  const Json& message = choice["message"];
  EXPECT_EQ(message["role"], "assistant");
  EXPECT_EQ(message["content"], "It is 323.");
  EXPECT_EQ(message["reasoning"], "let me see");
  EXPECT_EQ(message["reasoning_content"], "let me see");
  EXPECT_TRUE(message["refusal"].is_null());
  EXPECT_FALSE(message.contains("tool_calls"));
  const Json& usage = json["usage"];
  const auto num_prompt = static_cast<int64_t>(engine_.requests()[0].prompt.size());
  EXPECT_EQ(usage["prompt_tokens"], num_prompt);
  EXPECT_EQ(usage["completion_tokens"], 22);  // 10 + mark + 10 + end
  EXPECT_EQ(usage["total_tokens"], num_prompt + 22);
  EXPECT_EQ(usage["completion_tokens_details"]["reasoning_tokens"], 11);
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_EQ(usage["prompt_cache_hit_tokens"], 0);
  EXPECT_EQ(usage["prompt_cache_miss_tokens"], num_prompt);
}

// Reports R070: hits that the usage does not show.
TEST_F(ChatCompletions, UsageTellsCachedTokensWhateverEndsTheAnswer) {
  engine_.Script(IdsAndEos("</think>abc"));
  engine_.SetCachedTokens(2);
  auto expect_cached = [this](const Json& usage, int64_t cached) {
    const auto num_prompt = static_cast<int64_t>(engine_.requests().back().prompt.size());
    EXPECT_EQ(usage["prompt_tokens"], num_prompt);
    EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], cached) << usage;
    EXPECT_EQ(usage["prompt_cache_hit_tokens"], cached);
    EXPECT_EQ(usage["prompt_cache_miss_tokens"], num_prompt - cached);
  };
  for (const std::string end : {R"("seed": 1)", R"("stop": "b")", R"("max_tokens": 2)"}) {
    expect_cached(Parse(Chat(end))["usage"], 2);
    const auto events =
        Events(Chat(end + R"(, "stream": true, "stream_options": {"include_usage": true})"));
    expect_cached(events.back()["usage"], 2);
  }
  const auto running = Events(Chat(
      R"("stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true})"));
  for (const Json& event : running) expect_cached(event["usage"], 2);
}

TEST_F(ChatCompletions, NoThinkingAndNoContent) {
  engine_.Script({kEos});
  const Json message =
      Parse(Chat(R"("chat_template_kwargs": {"thinking": false})"))["choices"][0]["message"];
  EXPECT_TRUE(message["content"].is_null());
  EXPECT_TRUE(message["reasoning"].is_null());
}

TEST_F(ChatCompletions, StreamOrder) {
  engine_.Script(IdsAndEos("ab</think>cd"));
  const Reply reply = Chat(R"("stream": true, "stream_options": {"include_usage": true})");
  EXPECT_EQ(reply.headers.at("Content-Type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(reply.headers.at("Cache-Control"), "no-cache");
  EXPECT_EQ(reply.headers.at("X-Accel-Buffering"), "no");
  const auto events = Events(reply);
  EXPECT_THAT(Kinds(events),
              ElementsAre("role", "reasoning", "reasoning", "content", "content", "end", "usage"));
  const Json role = events[0]["choices"][0]["delta"];
  EXPECT_EQ(role, Json({{"role", "assistant"}, {"content", ""}}));
  EXPECT_EQ(events[1]["choices"][0]["delta"],
            Json({{"reasoning", "a"}, {"reasoning_content", "a"}}));
  EXPECT_EQ(events[5]["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(events[5]["choices"][0].contains("stop_reason"));
  EXPECT_EQ(events[6]["usage"]["completion_tokens"], 6);
  for (const Json& event : events) {
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    EXPECT_EQ(event["id"], events[0]["id"]);
    EXPECT_EQ(event["created"], events[0]["created"]);
    EXPECT_EQ(event.contains("usage"), event == events.back());
  }
}

// More answer waits than a client may leave unread: it loses its connection, nobody else anything.
TEST_F(ApiServerTest, AClientThatNeverReadsIsCutOffAndTheOthersGoOn) {
  ScriptedEngine engine({2560, 1'000'000, {kEos}});
  engine.Script(std::vector<TokenId>(40'000, Ids("x")[0]));
  Bind();
  server_->Serve(&engine, &front_end_);
  {
    TestClient deaf(port());
    deaf.SendRequest("POST", "/v1/chat/completions",
                     ChatBody(R"("stream": true, "logprobs": true, "top_logprobs": 20)"));
    ASSERT_EQ(deaf.ReadHead().status, 200);
    EXPECT_TRUE(engine.WaitFor(0, 0, std::chrono::seconds(60)));
    EXPECT_EQ(Get("/health").status, 200);
    EXPECT_EQ(Parse(Chat(R"("stop": "xxx")"))["choices"][0]["stop_reason"], "xxx");
  }
  server_.reset();  // before its engine
}

TEST_F(ChatCompletions, StreamsEachTokenWhenItIsMade) {
  engine_.ScriptEndless(Ids("x")[0]);
  TestClient client(port());
  client.SendRequest("POST", "/v1/chat/completions", ChatBody(R"("stream": true)"));
  EXPECT_EQ(client.ReadHead().status, 200);
  std::string chunk;
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(client.ReadChunk(&chunk));  // the answer never ends
}

TEST_F(ChatCompletions, RunningUsageInEveryChunk) {
  engine_.Script(IdsAndEos("a</think>b"));
  const auto events = Events(Chat(
      R"("stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true})"));
  std::vector<int> counts;
  for (const Json& event : events) counts.push_back(event["usage"]["completion_tokens"]);
  EXPECT_THAT(counts, ElementsAre(1, 1, 3, 4, 4));
}

TEST_F(ChatCompletions, ForcedUsage) {
  options_.force_include_usage = true;
  engine_.Script(IdsAndEos("</think>b"));
  EXPECT_EQ(Kinds(Events(Chat(R"("stream": true)"))).back(), "usage");
}

TEST_F(ChatCompletions, TheReasoningFieldIsAChoice) {
  engine_.Script(IdsAndEos("a</think>b"));
  options_.reasoning_field = ReasoningField::kReasoning;
  const Json message = Parse(Chat())["choices"][0]["message"];
  EXPECT_TRUE(message.contains("reasoning"));
  EXPECT_FALSE(message.contains("reasoning_content"));
  options_.reasoning_field = ReasoningField::kReasoningContent;
  Start();
  const auto events = Events(Chat(R"("stream": true)"));
  EXPECT_EQ(Joined(events, "reasoning"), "");
  EXPECT_EQ(Joined(events, "reasoning_content"), "a");
}

TEST_F(ChatCompletions, ReasoningCanBeLeftOut) {
  engine_.Script(IdsAndEos("ab</think>c"));
  const std::string fields = R"("include_reasoning": false, "logprobs": true)";
  const Json json = Parse(Chat(fields));
  EXPECT_TRUE(json["choices"][0]["message"]["reasoning"].is_null());
  EXPECT_EQ(json["choices"][0]["message"]["content"], "c");
  EXPECT_EQ(json["choices"][0]["logprobs"]["content"].size(), 2u);  // "c" and the end
  EXPECT_EQ(json["usage"]["completion_tokens_details"]["reasoning_tokens"], 3);
  EXPECT_THAT(Kinds(Events(Chat(fields + R"(, "stream": true)"))),
              ElementsAre("role", "content", "end"));
}

TEST_F(ChatCompletions, NeverSendsHalfACharacter) {
  engine_.Script(IdsAndEos("</think>\xe4\xbd\xa0\xe5\xa5\xbd"));
  const auto events = Events(Chat(R"("stream": true)"));
  EXPECT_THAT(Kinds(events), ElementsAre("role", "content", "content", "end"));
  EXPECT_EQ(Joined(events, "content"), "\xe4\xbd\xa0\xe5\xa5\xbd");
}

TEST_F(ChatCompletions, AnIncompleteCharacterAtTheEndIsOneReplacement) {
  engine_.Script(IdsAndEos("</think>a\xe4\xbd"));
  EXPECT_EQ(Parse(Chat())["choices"][0]["message"]["content"], "a\xef\xbf\xbd");
}

TEST_F(ChatCompletions, StopStringsMatchOverTokenBorders) {
  engine_.Script(IdsAndEos("think</think>one STOP two"));
  const std::string fields = R"("stop": ["two", "STOP"])";
  const Json whole = Parse(Chat(fields));
  EXPECT_EQ(whole["choices"][0]["message"]["content"], "one ");
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(whole["choices"][0]["stop_reason"], "STOP");
  EXPECT_EQ(whole["usage"]["completion_tokens"], 14);  // up to the P, although the engine ran ahead
  const auto events = Events(Chat(fields + R"(, "stream": true)"));
  EXPECT_EQ(Joined(events, "content"), "one ");
  EXPECT_EQ(events.back()["choices"][0]["stop_reason"], "STOP");
  const Json included = Parse(Chat(fields + R"(, "include_stop_str_in_output": true)"));
  EXPECT_EQ(included["choices"][0]["message"]["content"], "one STOP");
}

TEST_F(ChatCompletions, StopStringsEndTheRequestInTheEngine) {
  engine_.ScriptEndless(Ids("x")[0]);
  const Json json = Parse(Chat(R"("stop": "xxx")"));
  EXPECT_EQ(json["choices"][0]["stop_reason"], "xxx");
  EXPECT_EQ(json["usage"]["completion_tokens"], 3);
  EXPECT_TRUE(engine_.WaitFor(0, 0, std::chrono::seconds(1)));
}

TEST_F(ChatCompletions, StopStringsCountInReasoningToo) {
  engine_.Script(IdsAndEos("one STOP two</think>x"));
  const Json choice = Parse(Chat(R"("stop": "STOP")"))["choices"][0];
  EXPECT_EQ(choice["message"]["reasoning"], "one ");
  EXPECT_TRUE(choice["message"]["content"].is_null());
}

TEST_F(ChatCompletions, HeldTextComesAtTheEnd) {
  engine_.Script(IdsAndEos("</think>one ST"));
  EXPECT_EQ(Joined(Events(Chat(R"("stop": "STOP", "stream": true)")), "content"), "one ST");
}

TEST_F(ChatCompletions, StopTokensAreNamedAndNotShown) {
  engine_.Script(Ids("</think>ab!cd"));
  const TokenId bang = Ids("!")[0];
  const std::string fields = R"("stop_token_ids": [)" + std::to_string(bang) + "]";
  const Json choice = Parse(Chat(fields))["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "ab");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], bang);
  EXPECT_EQ(engine_.requests()[0].stop_token_ids, std::vector<TokenId>{bang});
  const Json included = Parse(Chat(fields + R"(, "include_stop_str_in_output": true)"));
  EXPECT_EQ(included["choices"][0]["message"]["content"], "ab!");
}

TEST_F(ChatCompletions, IgnoredEndTokensDoNotShow) {
  std::vector<TokenId> script = IdsAndEos("</think>a");
  script.push_back(Ids("b")[0]);
  engine_.Script(script);
  const Json choice = Parse(Chat(R"("ignore_eos": true)"))["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "ab");
  EXPECT_EQ(choice["finish_reason"], "length");
}

TEST_F(ChatCompletions, MaxTokensIsLoweredToWhatFits) {
  engine_.Script(Ids("</think>abc"));
  EXPECT_EQ(Parse(Chat(R"("max_tokens": 3)"))["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(engine_.requests()[0].max_tokens, 3);
  Chat(R"("max_tokens": 1000000)");
  Chat();
  const auto requests = engine_.requests();
  for (size_t i : {1u, 2u}) {
    EXPECT_EQ(requests[i].max_tokens,
              kMaxModelLen - static_cast<int64_t>(requests[i].prompt.size()));
  }
  ExpectError(Chat(R"("min_tokens": 1000)"), 400, "BadRequestError", "min_tokens");
}

TEST_F(ChatCompletions, APromptThatLeavesNoRoomIsRefused) {
  std::string words;
  for (int i = 0; i < 1000; ++i) words += "1";  // digits are a token each
  const std::string body = R"({"messages": [{"role": "user", "content": ")" + words + R"("}]
      , "max_tokens": 7})";
  const Reply reply = Post("/v1/chat/completions", body);
  EXPECT_EQ(reply.status, 400);
  const Json error = Parse(reply)["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_EQ(error["param"], "input_tokens");
  const std::string message = error["message"];
  EXPECT_THAT(message, HasSubstr("maximum context length"));
  EXPECT_THAT(message, HasSubstr("1000 tokens"));
  EXPECT_THAT(message, HasSubstr("7 tokens"));
  const Reply cut = Post("/v1/chat/completions",
                         body.substr(0, body.size() - 1) + R"(, "truncate_prompt_tokens": 100})");
  EXPECT_EQ(cut.status, 200);
  EXPECT_EQ(engine_.requests()[0].prompt.size(), 100u);
}

TEST_F(ChatCompletions, Logprobs) {
  engine_.Script(IdsAndEos("</think>\xe4\xbd\xa0"));
  const Json whole = Parse(Chat(R"("logprobs": true, "top_logprobs": 2)"));
  const Json content = whole["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 5u);  // every token, marks included
  EXPECT_EQ(content[0]["token"], "</think>");
  EXPECT_EQ(content[1]["token"], "\xef\xbf\xbd");
  EXPECT_EQ(content[1]["bytes"], Json({0xe4}));  // exact, although no character by itself
  EXPECT_EQ(content[1]["logprob"], -0.5);
  ASSERT_EQ(content[1]["top_logprobs"].size(), 2u);
  EXPECT_EQ(content[1]["top_logprobs"][1]["logprob"], -1.5);
  EXPECT_EQ(engine_.requests()[0].num_logprobs, 2);

  const auto events = Events(Chat(R"("logprobs": true, "stream": true)"));
  std::vector<std::vector<int>> bytes;  // of all chunks, joined
  for (const Json& event : events) {
    const Json& logprobs = event["choices"][0]["logprobs"];
    if (logprobs.is_null()) continue;
    for (const Json& entry : logprobs["content"]) {
      EXPECT_TRUE(entry["top_logprobs"].empty());
      bytes.push_back(entry["bytes"]);
    }
  }
  ASSERT_EQ(bytes.size(), 5u);
  EXPECT_THAT(bytes[3], ElementsAre(0xa0));
}

TEST_F(ChatCompletions, LogprobsEndWithTheTokenThatCompletesAStopString) {
  engine_.Script(IdsAndEos("</think>abSTOPcd"));
  const Json json = Parse(Chat(R"("logprobs": true, "stop": "STOP")"));
  EXPECT_EQ(json["choices"][0]["logprobs"]["content"].size(), 7u);
}

TEST_F(ChatCompletions, PromptErrorsNameTheirField) {
  auto ask = [this](const std::string& body) { return Post("/v1/chat/completions", body); };
  ExpectError(ask("{}"), 400, "BadRequestError", "messages");
  ExpectError(ask(R"({"messages": []})"), 400, "BadRequestError", "messages");
  ExpectError(ask(R"({"messages": [{"role": "alien", "content": "x"}]})"), 400, "BadRequestError",
              "messages.0.role");
  ExpectError(Chat(R"("reasoning_effort": "huge")"), 400, "BadRequestError", "reasoning_effort");
  ExpectError(Chat(R"("tool_choice": "required")"), 400, "BadRequestError", "tool_choice");
  ExpectError(Chat(R"("temperature": 3)"), 400, "BadRequestError", "temperature");
  ExpectError(Chat(R"("stream": true, "top_p": 7)"), 400, "BadRequestError", "top_p");
}

constexpr char kTool[] = R"("tools": [{"type": "function", "function": {"name": "look",
    "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}}])";
constexpr char kQuotingCallText[] =
    "so</think>Let me look.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"look\">\n"
    "<｜DSML｜parameter name=\"at\" string=\"true\">it \"now\"</｜DSML｜parameter>\n"
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
constexpr char kCallArguments[] = R"({"at": "it \"now\""})";

TEST_F(ChatCompletions, ToolCallInOnePiece) {
  engine_.Script(IdsAndEos(kQuotingCallText));
  const Json choice = Parse(Chat(kTool))["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "Let me look.");
  EXPECT_EQ(choice["message"]["reasoning"], "so");
  const Json& calls = choice["message"]["tool_calls"];
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0]["type"], "function");
  EXPECT_EQ(calls[0]["id"].get<std::string>().rfind("call_", 0), 0u);
  EXPECT_EQ(calls[0]["id"].get<std::string>().size(), 5u + 24u);
  EXPECT_EQ(calls[0]["function"]["name"], "look");
  EXPECT_EQ(calls[0]["function"]["arguments"], kCallArguments);
  // The next turn takes the answer back as it came, and continues its exact tokens.
  const std::string turn = R"({"messages": [{"role": "user", "content": "Hi"}, )" +
                           choice["message"].dump() + R"(, {"role": "tool", "tool_call_id": )" +
                           calls[0]["id"].dump() + R"(, "content": "found"}], )" + kTool + "}";
  EXPECT_EQ(Post("/v1/chat/completions", turn).status, 200);
  const auto requests = engine_.requests();
  const std::string first = front_end_.Decode(requests[0].prompt, false);
  EXPECT_EQ(front_end_.Decode(requests[1].prompt, false).rfind(first + kQuotingCallText, 0), 0u);
}

TEST_F(ChatCompletions, ToolCallAsItStreams) {
  engine_.Script(IdsAndEos(kQuotingCallText));
  const auto events = Events(Chat(std::string(kTool) + R"(, "stream": true)"));
  std::string arguments;
  int starts = 0, pieces = 0;
  for (const Json& event : events) {
    const Json& delta = event["choices"][0]["delta"];
    EXPECT_EQ(event.dump().find("DSML"), std::string::npos) << event;
    if (!delta.contains("tool_calls")) continue;
    EXPECT_EQ(delta.size(), 1u) << "one kind in a chunk";
    const Json& call = delta["tool_calls"][0];
    EXPECT_EQ(call["index"], 0);
    if (call.contains("id")) {
      ++starts;
      EXPECT_EQ(call["function"], Json({{"name", "look"}, {"arguments", ""}}));
    } else {
      ++pieces;
      arguments += call["function"]["arguments"].get<std::string>();
    }
  }
  EXPECT_EQ(starts, 1);
  EXPECT_GT(pieces, 5) << "a string value goes out as it is made";
  EXPECT_EQ(arguments, kCallArguments);
  EXPECT_EQ(Joined(events, "content"), "Let me look.");
  EXPECT_EQ(events.back()["choices"][0]["finish_reason"], "tool_calls");
}

TEST_F(ChatCompletions, AnswersThatWereCutDoNotEndWithToolCalls) {
  engine_.Script(IdsAndEos(kQuotingCallText));
  const std::string cut = R"(, "max_tokens": 80)";
  const Json choice = Parse(Chat(kTool + cut))["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length");
}

TEST_F(ChatCompletions, OneCallEndsTheAnswerWhereOneWasAskedFor) {
  std::string two = kQuotingCallText;
  const std::string invoke = "<｜DSML｜invoke name=\"look\">\n</｜DSML｜invoke>\n";
  two.insert(two.find("</｜DSML｜tool_calls>"), invoke);
  engine_.Script(IdsAndEos(two));
  EXPECT_EQ(Parse(Chat(kTool))["choices"][0]["message"]["tool_calls"].size(), 2u);
  const Json choice =
      Parse(Chat(kTool + std::string(R"(, "parallel_tool_calls": false)")))["choices"][0];
  EXPECT_EQ(choice["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
}

TEST_F(ChatCompletions, ToolChoiceNoneGivesNeitherCallsNorMarkup) {
  engine_.Script(IdsAndEos(kQuotingCallText));
  const Json choice = Parse(Chat(kTool + std::string(R"(, "tool_choice": "none")")))["choices"][0];
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  EXPECT_EQ(choice["message"]["content"], "Let me look.");
  EXPECT_EQ(choice["finish_reason"], "stop");
  const std::string prompt = front_end_.Decode(engine_.requests()[0].prompt, false);
  EXPECT_EQ(prompt.find("look"), std::string::npos);
}

TEST_F(ChatCompletions, AutoToolChoiceCanBeTurnedOff) {
  options_.auto_tool_choice = false;
  ExpectError(Chat(kTool), 400, "BadRequestError", "tool_choice");
  EXPECT_EQ(Chat(kTool + std::string(R"(, "tool_choice": "none")")).status, 200);
}

TEST_F(ChatCompletions, SamplesComeAsChoices) {
  engine_.Script(IdsAndEos("a</think>b"));
  const Json json = Parse(Chat(R"("n": 3, "seed": 5, "logprobs": true)"));
  ASSERT_EQ(json["choices"].size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(json["choices"][i]["index"], i);
    EXPECT_EQ(json["choices"][i]["message"]["content"], "b");
    EXPECT_EQ(json["choices"][i]["logprobs"]["content"].size(), 4u);
  }
  const auto requests = engine_.requests();
  ASSERT_EQ(requests.size(), 3u);
  std::vector<int64_t> seeds;
  for (const auto& request : requests) seeds.push_back(*request.sampling.seed);
  EXPECT_THAT(seeds, ::testing::UnorderedElementsAre(5, 6, 7));
  // The prompt counts once, answers each.
  EXPECT_EQ(json["usage"]["prompt_tokens"], requests[0].prompt.size());
  EXPECT_EQ(json["usage"]["completion_tokens"], 3 * 4);

  const auto events =
      Events(Chat(R"("n": 3, "stream": true, "stream_options": {"include_usage": true})"));
  std::vector<std::string> texts(3);
  int ends = 0;
  for (const Json& event : events) {
    if (event["choices"].empty()) continue;
    const Json& choice = event["choices"][0];
    texts[choice["index"].get<size_t>()] += choice["delta"].value("content", "");
    ends += choice["finish_reason"].is_null() ? 0 : 1;
  }
  EXPECT_THAT(texts, ElementsAre("b", "b", "b"));
  EXPECT_EQ(ends, 3);
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 3 * 4);
}

TEST_F(ChatCompletions, FurtherSamplesWaitForThePromptOfTheFirst) {
  options_.track_load = true;
  engine_.AddThreads(3);
  engine_.Script(IdsAndEos("a</think>b"));
  engine_.SetGate(false);
  TestClient client(port());
  client.SendRequest("POST", "/v1/chat/completions", ChatBody(R"("n": 4)"));
  EXPECT_TRUE(engine_.WaitFor(1, 0, std::chrono::seconds(10)));
  EXPECT_EQ(Parse(Get("/load"))["server_load"], 1);
  engine_.SetGate(true);
  EXPECT_TRUE(engine_.WaitFor(0, 0, std::chrono::seconds(10)));
}

TEST_F(ChatCompletions, IdsAndTextForWhoeverAsks) {
  engine_.Script(IdsAndEos("a</think>b"));
  const std::string ask = R"("return_token_ids": true, "return_prompt_text": true)";
  const Reply asked = Chat(ask);
  ASSERT_EQ(asked.status, 200) << asked.body;
  const Json json = Parse(asked);
  ASSERT_TRUE(json.contains("prompt_token_ids")) << asked.body;
  EXPECT_EQ(json["prompt_token_ids"], Json(engine_.requests()[0].prompt));
  EXPECT_EQ(json["prompt_text"], front_end_.Decode(engine_.requests()[0].prompt, false));
  EXPECT_EQ(json["choices"][0]["token_ids"], Json(IdsAndEos("a</think>b")));
  std::vector<TokenId> streamed;
  const auto events = Events(Chat(ask + R"(, "stream": true)"));
  EXPECT_EQ(events[0]["prompt_token_ids"], json["prompt_token_ids"]);
  for (const Json& event : events) {
    for (const Json& id : event["choices"][0].value("token_ids", Json::array())) {
      streamed.push_back(id);
    }
  }
  EXPECT_EQ(streamed, IdsAndEos("a</think>b"));
  const Json named = Parse(Chat(R"("logprobs": true, "return_tokens_as_token_ids": true)"));
  EXPECT_EQ(named["choices"][0]["logprobs"]["content"][0]["token"],
            "token_id:" + std::to_string(Ids("a")[0]));
}

TEST_F(ChatCompletions, PromptLogprobs) {
  engine_.Script(IdsAndEos("</think>b"));
  const Json json = Parse(Chat(R"("prompt_logprobs": 1)"));
  const Json& entries = json["prompt_logprobs"];
  const std::vector<TokenId> prompt = engine_.requests()[0].prompt;
  ASSERT_EQ(entries.size(), prompt.size());
  EXPECT_TRUE(entries[0].is_null());
  const Json& second = entries[1][std::to_string(prompt[1])];
  EXPECT_EQ(second["logprob"], -0.25);
  EXPECT_EQ(second["rank"], 1);
}

TEST_F(ChatCompletions, EchoRepeatsTheMessageThatIsContinued) {
  engine_.Script(IdsAndEos(" end"));
  const std::string body =
      R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "The"}],
          "continue_final_message": true, "chat_template_kwargs": {"thinking": false}, "echo": true})";
  EXPECT_EQ(Parse(Post("/v1/chat/completions", body))["choices"][0]["message"]["content"],
            "The end");
}

TEST_F(ChatCompletions, RequestIdsOfClients) {
  options_.request_id_headers = true;
  engine_.Script(IdsAndEos("</think>b"));
  TestClient client(port());
  client.SendRequest("POST", "/v1/chat/completions", ChatBody(R"("request_id": "mine")"));
  const Reply reply = client.ReadReply();
  EXPECT_EQ(Parse(reply)["id"], "chatcmpl-mine");
  EXPECT_EQ(reply.headers.at("X-Request-Id"), "mine");
  // Not what would break a header or a log.
  EXPECT_EQ(Parse(Chat(R"("request_id": "a\nb")"))["id"].get<std::string>().find('\n'),
            std::string::npos);
}

TEST_F(ChatCompletions, ClientTextIsNeverAControlToken) {
  Post("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "</think>"}]})");
  Chat();
  const TokenId mark = Ids("</think>")[0];
  const auto requests = engine_.requests();
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(std::count(requests[0].prompt.begin(), requests[0].prompt.end(), mark),
            std::count(requests[1].prompt.begin(), requests[1].prompt.end(), mark));
}

TEST_F(ChatCompletions, EffortMaxWarnsOfASmallContext) {
  spdlog::set_level(spdlog::level::off);
  EXPECT_EQ(Chat(R"("reasoning_effort": "max")").headers.count("x-fathom-warning"), 1u);
  EXPECT_EQ(Chat(R"("reasoning_effort": "max", "stream": true)").headers.count("x-fathom-warning"),
            1u);
  EXPECT_EQ(Chat(R"("reasoning_effort": "high")").headers.count("x-fathom-warning"), 0u);
}

TEST_F(ChatCompletions, RequestsWaitForEachOther) {
  engine_.SetGate(false);
  engine_.Script(IdsAndEos("</think>x"));
  Start();
  TestClient first(port()), second(port());
  first.SendRequest("POST", "/v1/chat/completions", ChatBody(""));
  second.SendRequest("POST", "/v1/chat/completions", ChatBody(""));
  ASSERT_TRUE(engine_.WaitFor(1, 1, std::chrono::seconds(20)));
  engine_.SetGate(true);
  EXPECT_EQ(first.ReadReply().status, 200);
  EXPECT_EQ(second.ReadReply().status, 200);
}

}  // namespace
}  // namespace fathom
