// fathom serve --replay: scripted answers through the whole stack.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>

#include "tests/cli/server.h"

namespace fathom::cli_test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr const char* kChat = "/v1/chat/completions";

class Replay {
 public:
  explicit Replay(std::string_view script, std::vector<std::string> options = {})
      : server_([&] {
          options.insert(options.begin(), {"--replay", folder_.Write("r.json", script)});
          return options;
        }()) {
    EXPECT_NE(server_.port(), 0);
  }
  // The first choice of the answer to a chat of one user message.
  Json Choice(Json body) {
    if (!body.contains("messages")) body["messages"] = {{{"role", "user"}, {"content", "count"}}};
    const auto reply = server_.Post(kChat, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    last_ = Json::parse(reply.body, nullptr, false);
    return last_.value("choices", Json::array({Json::object()})).at(0);
  }
  [[nodiscard]] const Json& last() const { return last_; }
  Server& server() { return server_; }

 private:
  TempFolder folder_;
  Server server_;
  Json last_;
};

// Field report R021: the token budget is used up by the reasoning.
TEST(Replay, TokensAreCountedAsTheFileGivesThem) {
  Replay replay(R"([{"tokens": ["one", " two", " three", " four", " five", " six", " seven"]}])");
  const Json choice =
      replay.Choice({{"max_tokens", 6}, {"chat_template_kwargs", {{"thinking", true}}}});
  EXPECT_EQ(choice.at("finish_reason"), "length");
  EXPECT_EQ(choice.at("message").at("content"), nullptr);
  EXPECT_EQ(choice.at("message").at("reasoning"), "one two three four five six");
  EXPECT_EQ(replay.last().at("usage").at("completion_tokens"), 6);
  EXPECT_EQ(replay.last().at("usage").at("completion_tokens_details").at("reasoning_tokens"), 6);
}

TEST(Replay, TheSameAnswerServesRequestsThatThinkAndThatDoNot) {
  Replay replay(R"([{"reasoning": "Hm.", "content": "Yes.", "cached_tokens": 2}])");
  for (const bool thinking : {true, false}) {
    const Json message =
        replay.Choice({{"chat_template_kwargs", {{"thinking", thinking}}}}).at("message");
    EXPECT_EQ(message.at("content"), "Yes.");
    EXPECT_EQ(message.value("reasoning", Json()), thinking ? Json("Hm.") : Json());
    EXPECT_EQ(replay.last().at("usage").at("prompt_tokens_details").at("cached_tokens"), 2);
  }
}

TEST(Replay, APromptPicksItsAnswer) {
  Replay replay(R"([{"content": "first"},
                    {"content": "done", "when": {"contains": "<tool_result>"}}])");
  const Json call = {
      {"id", "a"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", "{}"}}}};
  const Json loop = {{{"role", "user"}, {"content", "go"}},
                     {{"role", "assistant"}, {"content", ""}, {"tool_calls", {call}}},
                     {{"role", "tool"}, {"tool_call_id", "a"}, {"content", "7"}}};
  EXPECT_EQ(replay.Choice(Json::object()).at("message").at("content"), "first");
  EXPECT_EQ(replay.Choice({{"messages", loop}}).at("message").at("content"), "done");
}

TEST(Replay, FaultsReachTheClient) {
  Replay replay(R"([{"submit_error": "queue_full"},
                    {"text": "half an answer", "fail_after_tokens": 2},
                    {"content": "a", "finish": "length"}])",
                {"--backend", "cpu"});
  const Json body = {{"messages", {{{"role", "user"}, {"content", "x"}}}}};
  EXPECT_EQ(replay.server().Post(kChat, body).status, 503);
  EXPECT_EQ(replay.server().Post(kChat, body).status, 500);
  EXPECT_EQ(replay.Choice(body).at("finish_reason"), "length");
  replay.server().program().Signal(SIGTERM);
  const Outcome outcome = replay.server().program().Finish();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("--backend has no effect"));
}

TEST(Replay, AStalledStreamEndsWithItsClientAndWithTheServer) {
  Replay replay(R"([{"text": "a b c d", "stall_after_tokens": 2}])", {"--shutdown-timeout", "0"});
  const Json body = {{"stream", true}, {"messages", {{{"role", "user"}, {"content", "x"}}}}};
  http::TestClient stays(replay.server().port());
  {
    http::TestClient leaves(replay.server().port());
    for (http::TestClient* client : {&leaves, &stays}) {
      client->SendRequest("POST", kChat, body.dump());
      ASSERT_EQ(client->ReadHead().status, 200);
      std::string chunk;
      ASSERT_TRUE(client->ReadChunk(&chunk));
    }
  }
  const auto running = [&replay] {
    const std::string text = http::TestClient(replay.server().port()).Ask("GET", "/metrics").body;
    const std::string name = "vllm:num_requests_running{model_name=\"fathom-nano\",engine=\"0\"} ";
    const size_t at = text.find(name);
    return at == std::string::npos ? -1 : std::atoi(text.c_str() + at + name.size());
  };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (running() == 2 && std::chrono::steady_clock::now() < deadline) {
  }
  EXPECT_EQ(running(), 1) << "the one that left does not run on";
  replay.server().program().Signal(SIGTERM);
  std::string rest, chunk;
  while (stays.ReadChunk(&chunk)) rest += chunk;
  EXPECT_THAT(rest, HasSubstr("abort"));
  EXPECT_EQ(replay.server().program().Finish().status, 0);
}

TEST(Replay, NeedsNoWeightsAndNoConfig) {
  const TempFolder folder;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    std::filesystem::copy_file(ProjectPath("models/fathom-nano") / name, folder.path() / name);
  }
  Server server({"--model", folder.path().string(), "--replay",
                 folder.Write("r.jsonl", "{\"content\": \"one\"}\n{\"content\": \"two\"}\n")});
  ASSERT_NE(server.port(), 0);
  for (const char* want : {"one", "two", "two"}) {
    const auto reply = server.Post(kChat, {{"messages", {{{"role", "user"}, {"content", "x"}}}}});
    EXPECT_THAT(reply.body, HasSubstr("\"content\":\"" + std::string(want) + "\""));
  }
}

TEST(Replay, MistakesInTheFileAreSaidBeforeAPortIsTaken) {
  const TempFolder folder;
  const Outcome outcome =
      RunFathom({"serve", "--port", "0", "--replay",
                 folder.Write("bad.json", R"([{"text": "a"}, {"text": "b", "delay": 3}])")});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("bad.json: answers[1]: unknown field 'delay'"));
  EXPECT_THAT(RunFathom({"serve", "--replay", "/no/such/file"}).err, HasSubstr("/no/such/file"));
}

}  // namespace
}  // namespace fathom::cli_test
