// /v1/completions: plain text in and out.
#include "server/api_server_fixture.h"

namespace fathom {
namespace {

using ::testing::ElementsAre;

class Completions : public ApiServerTest {};

TEST_F(Completions, WholeAnswer) {
  engine_.Script(IdsAndEos("<think>a</think>b"));
  const Json json = Parse(Complete(R"("prompt": "Once")"));
  EXPECT_EQ(json["id"].get<std::string>().rfind("cmpl-", 0), 0u);
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_EQ(json["model"], "fathom-nano");
  const Json& choice = json["choices"][0];
  EXPECT_EQ(choice["index"], 0);
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_TRUE(choice["stop_reason"].is_null());
  EXPECT_TRUE(choice["logprobs"].is_null());
  EXPECT_EQ(engine_.requests()[0].max_tokens, 16);
  EXPECT_EQ(json["usage"]["completion_tokens"], 5);
  EXPECT_EQ(json["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);
}

TEST_F(Completions, TextIsRaw) {
  engine_.Script(IdsAndEos("  a</think>\n"));
  const std::string text = Parse(Complete(R"("prompt": "x")"))["choices"][0]["text"];
  EXPECT_EQ(text.substr(0, 3), "  a");  // nothing is trimmed or taken for reasoning
  EXPECT_EQ(text.back(), '\n');
}

TEST_F(Completions, PromptsAreTextOrIds) {
  engine_.Script(IdsAndEos("x"));
  Complete(R"("prompt": [5, 6, 7])");
  EXPECT_THAT(engine_.requests()[0].prompt, ElementsAre(5, 6, 7));
  // Control tokens in a plain prompt are the client's own wish.
  Complete(R"("prompt": "</think>")");
  EXPECT_EQ(engine_.requests()[1].prompt, Ids("</think>"));
}

TEST_F(Completions, SeveralPromptsMakeSeveralChoices) {
  engine_.Script(IdsAndEos("xy"));
  const Json json = Parse(Complete(R"("prompt": [[5, 6], [7]], "logprobs": 0)"));
  ASSERT_EQ(json["choices"].size(), 2u);
  EXPECT_EQ(json["choices"][1]["index"], 1);
  EXPECT_EQ(json["choices"][1]["text"], "xy");
  EXPECT_THAT(json["choices"][1]["logprobs"]["text_offset"], ElementsAre(0, 1, 2));
  EXPECT_EQ(json["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(json["usage"]["completion_tokens"], 6);
  EXPECT_THAT(engine_.requests()[1].prompt, ElementsAre(7));

  const auto events = Events(Complete(R"("prompt": ["a", "b"], "stream": true)"));
  std::string text[2];
  for (const Json& event : events) {
    const Json& choice = event["choices"][0];
    text[choice["index"].get<int>()] += choice["text"].get<std::string>();
  }
  EXPECT_EQ(text[0], "xy");
  EXPECT_EQ(text[1], "xy");
}

TEST_F(Completions, CachedTokensOfAllPromptsAreSummed) {
  engine_.Script(IdsAndEos("x"));
  engine_.SetCachedTokens(1);
  const Json usage = Parse(Complete(R"("prompt": [[5, 6], [7, 8, 9]])"))["usage"];
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 2);
  EXPECT_EQ(usage["prompt_cache_miss_tokens"], 3);
}

TEST_F(Completions, Stream) {
  engine_.Script(IdsAndEos("ab"));
  const auto events = Events(
      Complete(R"("prompt": "x", "stream": true, "stream_options": {"include_usage": true})"));
  ASSERT_EQ(events.size(), 4u);  // a, b, end, usage; no role
  EXPECT_EQ(events[0]["choices"][0]["text"], "a");
  EXPECT_TRUE(events[0]["choices"][0]["finish_reason"].is_null());
  EXPECT_EQ(events[2]["choices"][0]["text"], "");
  EXPECT_EQ(events[2]["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(events[3]["choices"].empty());
  EXPECT_EQ(events[3]["usage"]["completion_tokens"], 3);
  for (const Json& event : events) EXPECT_EQ(event["object"], "text_completion");
}

TEST_F(Completions, EchoGivesThePromptBack) {
  engine_.Script(IdsAndEos("xy"));
  EXPECT_EQ(Parse(Complete(R"("prompt": "Once ", "echo": true)"))["choices"][0]["text"], "Once xy");
  const std::string ids = std::to_string(Ids("Q")[0]);
  EXPECT_EQ(Parse(Complete(R"("prompt": [)" + ids + R"(], "echo": true)"))["choices"][0]["text"],
            "Qxy");
  const auto events = Events(Complete(R"("prompt": "Once", "echo": true, "stream": true)"));
  EXPECT_EQ(events[0]["choices"][0]["text"], "Once");
}

TEST_F(Completions, EchoWithoutTokensAsksNoEngine) {
  const Json json = Parse(Complete(R"("prompt": ["a", "b"], "echo": true, "max_tokens": 0)"));
  EXPECT_EQ(json["choices"][0]["text"], "a");
  EXPECT_EQ(json["choices"][1]["text"], "b");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(json["usage"]["completion_tokens"], 0);
  EXPECT_TRUE(engine_.requests().empty());
  const auto events =
      Events(Complete(R"("prompt": "a", "echo": true, "max_tokens": 0, "stream": true)"));
  EXPECT_EQ(events.size(), 2u);
}

TEST_F(Completions, Logprobs) {
  engine_.Script(
      IdsAndEos("a\xe4\xbd\xa0"
                "b"));
  const Json logprobs =
      Parse(Complete(R"("prompt": "x", "logprobs": 2)"))["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"][0], "a");
  EXPECT_EQ(logprobs["tokens"][1], "bytes:\\xe4");
  EXPECT_EQ(logprobs["token_logprobs"][0], -0.5);
  EXPECT_EQ(logprobs["top_logprobs"][0].size(), 2u);
  EXPECT_EQ(logprobs["top_logprobs"][0]["b"], -1.5);
  EXPECT_THAT(logprobs["text_offset"], ElementsAre(0, 1, 2, 2, 2, 3));
}

TEST_F(Completions, StopStrings) {
  engine_.Script(IdsAndEos("one\n\ntwo"));
  const Json choice = Parse(Complete(R"("prompt": "x", "stop": "\n\n")"))["choices"][0];
  EXPECT_EQ(choice["text"], "one");
  EXPECT_EQ(choice["stop_reason"], "\n\n");
}

TEST_F(Completions, APromptThatLeavesNoRoomIsRefused) {
  std::string ids = "5";
  for (int i = 1; i < 1000; ++i) ids += ",5";
  const Reply reply = Complete(R"("prompt": [)" + ids + "]");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(Parse(reply)["error"]["code"], "context_length_exceeded");
  // All of the context may be echoed.
  EXPECT_EQ(Complete(R"("echo": true, "max_tokens": 0, "prompt": [)" + ids + "]").status, 200);
}

}  // namespace
}  // namespace fathom
