// /v1/messages: Anthropic's API over the same engine.
#include "server/api_server_fixture.h"

namespace fathom {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kTools[] = R"("tools": [{"name": "look", "description": "d", "input_schema":
    {"type": "object", "properties": {"at": {"type": "string"}}}}])";

class Messages : public ApiServerTest {
 protected:
  static std::string Body(std::string_view fields) {
    std::string body =
        R"({"model": "fathom-nano", "max_tokens": 200, "messages": [{"role": "user", "content": "Hi"}])";
    if (!fields.empty()) body.append(", ").append(fields);
    return body + "}";
  }
  Reply Ask(std::string_view fields = {}) { return Post("/v1/messages", Body(fields)); }
  std::string LastPrompt() { return front_end_.Decode(engine_.requests().back().prompt, false); }

  static void ExpectFailure(const Reply& reply, int status, const char* type) {
    EXPECT_EQ(reply.status, status) << reply.body;
    const Json json = Parse(reply);
    EXPECT_EQ(json["type"], "error");
    EXPECT_EQ(json["error"]["type"], type) << reply.body;
    EXPECT_NE(json["error"].value("message", ""), "");
  }
};

TEST_F(Messages, WholeAnswer) {
  engine_.Script(IdsAndEos(kCallText));
  engine_.SetCachedTokens(3);
  const Json json = Parse(Ask(kTools));
  EXPECT_EQ(json["id"].get<std::string>().rfind("msg_", 0), 0u);
  EXPECT_EQ(json["type"], "message");
  EXPECT_EQ(json["role"], "assistant");
  EXPECT_EQ(json["model"], "fathom-nano");
  EXPECT_EQ(json["stop_reason"], "tool_use");
  EXPECT_TRUE(json["stop_sequence"].is_null());
  ASSERT_EQ(json["content"].size(), 3u);
  EXPECT_EQ(json["content"][0]["type"], "thinking");
  EXPECT_EQ(json["content"][0]["thinking"], "so");
  EXPECT_NE(json["content"][0]["signature"], "");
  EXPECT_EQ(json["content"][1], Json({{"type", "text"}, {"text", "Let me look."}}));
  EXPECT_EQ(json["content"][2]["type"], "tool_use");
  EXPECT_EQ(json["content"][2]["name"], "look");
  EXPECT_EQ(json["content"][2]["input"], Json({{"at", "it"}}));
  EXPECT_EQ(json["content"][2]["id"].get<std::string>().rfind("toolu_", 0), 0u);
  const auto num_prompt = static_cast<int64_t>(engine_.requests()[0].prompt.size());
  EXPECT_EQ(json["usage"]["input_tokens"], num_prompt - 3);
  EXPECT_EQ(json["usage"]["cache_read_input_tokens"], 3);
  EXPECT_EQ(json["usage"]["output_tokens"], IdsAndEos(kCallText).size());
  // The answer goes back as it came: the next prompt begins with this one and the exact answer.
  const std::string first = LastPrompt();
  const std::string next =
      R"({"model": "fathom-nano", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"},
          {"role": "assistant", "content": )" +
      json["content"].dump() + R"(}, {"role": "user", "content": [{"type": "text", "text": "well?"},
          {"type": "tool_result", "tool_use_id": )" +
      json["content"][2]["id"].dump() +
      R"(, "content": [{"type": "text", "text": "one"}, {"type": "image"}]}]}], )" + kTools + "}";
  EXPECT_EQ(Post("/v1/messages", next).status, 200);
  EXPECT_EQ(LastPrompt().rfind(first + kCallText, 0), 0u);
  // Results stand before what the user says.
  EXPECT_THAT(LastPrompt(),
              HasSubstr("<tool_result>one\n[Unsupported image]</tool_result>\n\nwell?"));
}

TEST_F(Messages, StreamOrder) {
  engine_.Script(IdsAndEos(kCallText));
  engine_.SetCachedTokens(3);
  const auto events = NamedEvents(Ask(std::string(kTools) + R"(, "stream": true)"));
  ASSERT_GT(events.size(), 8u);
  EXPECT_EQ(events.front()["type"], "message_start");
  const Json& usage = events.front()["message"]["usage"];
  EXPECT_EQ(usage["cache_read_input_tokens"], 3);
  EXPECT_EQ(usage["input_tokens"], engine_.requests()[0].prompt.size() - 3);
  int open = -1;
  std::vector<std::string> types;
  std::string thinking, text, input, signature;
  for (size_t i = 1; i + 2 < events.size(); ++i) {
    const Json& data = events[i];
    if (events[i]["type"] == "content_block_start") {
      EXPECT_EQ(open, -1) << "blocks overlap";
      open = data["index"];
      EXPECT_EQ(open, static_cast<int>(types.size()));
      types.push_back(data["content_block"]["type"]);
    } else if (events[i]["type"] == "content_block_stop") {
      EXPECT_EQ(data["index"], open);
      open = -1;
    } else {
      ASSERT_EQ(events[i]["type"], "content_block_delta");
      EXPECT_EQ(data["index"], open);
      const Json& delta = data["delta"];
      thinking += delta.value("thinking", "");
      text += delta.value("text", "");
      input += delta.value("partial_json", "");
      signature += delta.value("signature", "");
      const std::string& type = types.back();
      const std::string kind = delta["type"];
      EXPECT_TRUE(type == "text"       ? kind == "text_delta"
                  : type == "tool_use" ? kind == "input_json_delta"
                                       : kind == "thinking_delta" || kind == "signature_delta")
          << kind << " in " << type;
    }
  }
  EXPECT_THAT(types, ElementsAre("thinking", "text", "tool_use"));
  EXPECT_EQ(thinking, "so");
  EXPECT_EQ(text, "Let me look.");
  EXPECT_EQ(Json::parse(input), Json({{"at", "it"}}));
  EXPECT_NE(signature, "");
  EXPECT_EQ(events[events.size() - 2]["type"], "message_delta");
  EXPECT_EQ(events[events.size() - 2]["delta"]["stop_reason"], "tool_use");
  EXPECT_EQ(events[events.size() - 2]["usage"]["output_tokens"], IdsAndEos(kCallText).size());
  EXPECT_EQ(events.back()["type"], "message_stop");
}

TEST_F(Messages, StopReasons) {
  engine_.Script(IdsAndEos("</think>abcd"));
  EXPECT_EQ(Parse(Ask())["stop_reason"], "end_turn");
  const Json stopped = Parse(Ask(R"("stop_sequences": ["c"])"));
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], "c");
  EXPECT_EQ(stopped["content"][0]["text"], "ab");
  const std::string body =
      R"({"model": "fathom-nano", "max_tokens": 3, "messages": [{"role": "user", "content": "Hi"}]})";
  EXPECT_EQ(Parse(Post("/v1/messages", body))["stop_reason"], "max_tokens");
}

TEST_F(Messages, ACallThatWasCutOffIsLeftOut) {
  std::string cut = kCallText;
  cut.resize(cut.find("it</"));
  engine_.Script(IdsAndEos(cut));
  const Json json = Parse(Ask(kTools));
  EXPECT_EQ(json["stop_reason"], "max_tokens");
  for (const Json& block : json["content"]) EXPECT_NE(block["type"], "tool_use");
}

TEST_F(Messages, SystemPrompts) {
  engine_.Script(IdsAndEos("</think>x"));
  const std::string body = R"({"model": "fathom-nano", "max_tokens": 9,
      "system": [{"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=abc"},
                 {"type": "text", "text": "One.", "cache_control": {"type": "ephemeral"}},
                 {"type": "text", "text": "Two."}],
      "messages": [{"role": "system", "content": "Three."}, {"role": "msg", "content": "Hi"}]})";
  ASSERT_EQ(Post("/v1/messages?beta=true", body).status, 200);
  EXPECT_THAT(LastPrompt(), HasSubstr("One.\n\nTwo.\n\nThree."));
  EXPECT_EQ(LastPrompt().find("billing"), std::string::npos);
}

TEST_F(Messages, ThinkingAndToolChoice) {
  engine_.Script(IdsAndEos("x"));
  Ask(R"("thinking": {"type": "disabled"})");
  EXPECT_THAT(LastPrompt(), ::testing::EndsWith("</think>"));
  Ask(R"("thinking": {"type": "adaptive"}, "output_config": {"effort": "high"})");
  EXPECT_THAT(LastPrompt(), ::testing::EndsWith("<think>"));
  Ask(std::string(kTools) + R"(, "tool_choice": {"type": "none"})");
  EXPECT_EQ(LastPrompt().find("look"), std::string::npos);
}

TEST_F(Messages, CountTokensEqualsTheRequest) {
  engine_.Script(IdsAndEos("x"));
  const std::string counted =
      std::string(R"({"model": "fathom-nano", "messages": [{"role": "user", "content": "Hi"}], )") +
      kTools + "}";
  const Json count = Parse(Post("/v1/messages/count_tokens", counted));
  ASSERT_EQ(Ask(kTools).status, 200);
  EXPECT_EQ(count["input_tokens"], engine_.requests()[0].prompt.size());
}

TEST_F(Messages, ErrorsHaveAnthropicsForm) {
  ExpectFailure(Post("/v1/messages", "{"), 400, "invalid_request_error");
  ExpectFailure(Post("/v1/messages", R"({"model": "fathom-nano", "max_tokens": 5})"), 400,
                "invalid_request_error");
  const std::string messages = R"("messages": [{"role": "user", "content": "Hi"}])";
  ExpectFailure(Post("/v1/messages", R"({"model": "fathom-nano", )" + messages + "}"), 400,
                "invalid_request_error");
  ExpectFailure(Post("/v1/messages", R"({"max_tokens": 5, )" + messages + "}"), 400,
                "invalid_request_error");
  ExpectFailure(Post("/v1/messages", R"({"model": "other", "max_tokens": 5, )" + messages + "}"),
                404, "not_found_error");
  ExpectFailure(Ask(R"("messages": [{"role": "user", "content": [{"type": "image"}]}])"), 400,
                "invalid_request_error");
  ExpectFailure(Ask(R"("tools": [{"type": "web_search_20250305", "name": "web_search"}])"), 400,
                "invalid_request_error");
  ExpectFailure(Ask(R"("tool_choice": {"type": "any"})"), 400, "invalid_request_error");
  ExpectFailure(Ask(R"("temperature": 9)"), 400, "invalid_request_error");
  ExpectFailure(Get("/v1/messages"), 405, "invalid_request_error");
  engine_.SetSubmitStatus(Unavailable("the queue is full"));
  ExpectFailure(Ask(), 529, "overloaded_error");
}

TEST_F(Messages, ErrorsNameFieldsAsAnthropicDoes) {
  auto message = [](const Reply& reply) {
    return Parse(reply)["error"]["message"].get<std::string>();
  };
  EXPECT_EQ(message(Ask(R"("stop_sequences": 5)")),
            "stop_sequences must be a string or a list of strings, got 5");
  EXPECT_THAT(message(Ask(R"("output_config": {"effort": "huge"})")),
              HasSubstr("output_config.effort must be"));
  EXPECT_THAT(message(Ask(R"("thinking": {"type": "enabled", "budget_tokens": "x"})")),
              HasSubstr("thinking.budget_tokens must be"));
  const std::string counted = R"({"model": "fathom-nano", "stop_sequences": [""], "messages": [)"
                              R"({"role": "user", "content": "Hi"}]})";
  EXPECT_EQ(message(Post("/v1/messages/count_tokens", counted)),
            "stop_sequences must not hold an empty string");
}

TEST_F(Messages, RequestsThatNeverBecameWholeAreRefusedInThatForm) {
  options_.max_body_bytes = 100;
  options_.body_timeout = std::chrono::milliseconds(50);
  ExpectFailure(Ask(R"("system": ")" + std::string(200, 'x') + "\""), 413, "request_too_large");
  ExpectFailure(Post("/v1/messages/count_tokens", std::string(200, 'x')), 413, "request_too_large");
  http::TestClient slow(port());
  slow.SendRaw("POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{");
  ExpectFailure(slow.ReadReply(), 408, "invalid_request_error");
  http::TestClient long_head(port());
  long_head.SendRaw("POST /v1/messages HTTP/1.1\r\nX: " + std::string(20'000, 'x'));
  ExpectFailure(long_head.ReadReply(), 431, "invalid_request_error");
}

TEST_F(Messages, AnErrorInTheStreamIsAnEvent) {
  engine_.ScriptError(Ids("</think>ab"), Internal("exploded"));
  const auto events = NamedEvents(Ask(R"("stream": true)"));
  EXPECT_EQ(events.back()["type"], "error");
  EXPECT_EQ(events.back()["error"]["type"], "api_error");
}

// Reports R045.
TEST_F(Messages, SilenceIsFilledWithPings) {
  options_.keep_alive_interval = std::chrono::milliseconds(20);
  engine_.Script(IdsAndEos("</think>ab"));
  engine_.SetGate(false);
  http::TestClient client(port());
  client.SendRequest("POST", "/v1/messages", Body(R"("stream": true)"));
  EXPECT_EQ(client.ReadHead().status, 200);
  std::string chunk;
  ASSERT_TRUE(client.ReadChunk(&chunk));
  EXPECT_EQ(chunk, "event: ping\ndata: {\"type\":\"ping\"}\n\n");
  engine_.SetGate(true);
  while (chunk.find("message_start") == std::string::npos) ASSERT_TRUE(client.ReadChunk(&chunk));
}

TEST_F(Messages, KeysOfEitherHeader) {
  options_.api_keys = {"secret"};
  engine_.Script(IdsAndEos("</think>ab"));
  ExpectFailure(Ask(), 401, "authentication_error");
  http::TestClient client(port());
  const Reply reply = client.Ask("POST", "/v1/messages", Body(""), "x-api-key: secret\r\n");
  EXPECT_EQ(reply.status, 200) << reply.body;
}

}  // namespace
}  // namespace fathom
