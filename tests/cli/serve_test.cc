// fathom serve: start, names, keys, shutdown. What the API answers is server/'s tests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "server/http/test_client.h"
#include "tests/cli/program.h"
#include "tests/cli/server.h"

namespace fathom::cli_test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;
using http::TestClient;

// A stream of so many tokens; returns after its first bytes came.
void BeginStream(TestClient& client, int num_tokens) {
  const Json body = {{"prompt", "Once upon a time"},
                     {"max_tokens", num_tokens},
                     {"ignore_eos", true},
                     {"temperature", 0},
                     {"stream", true}};
  client.SendRequest("POST", "/v1/completions", body.dump());
  ASSERT_EQ(client.ReadHead().status, 200);
  std::string chunk;
  ASSERT_TRUE(client.ReadChunk(&chunk));
}

std::string ReadRest(TestClient& client) {
  std::string all, chunk;
  while (client.ReadChunk(&chunk)) all += chunk;
  return all;
}

TEST(Serve, SaysItsAddressAndAnswersUnderTheDirectorysName) {
  Server server({});
  ASSERT_NE(server.port(), 0);
  EXPECT_THAT(server.program().output(), HasSubstr("fathom serves fathom-nano at http://"));
  EXPECT_EQ(TestClient(server.port()).Ask("GET", "/health").status, 200);
  EXPECT_EQ(server.ModelNames(), std::vector<std::string>{"fathom-nano"});
  const Json body = {{"messages", {{{"role", "user"}, {"content", "Hello!"}}}},
                     {"temperature", 0},
                     {"chat_template_kwargs", {{"thinking", false}}}};
  const auto reply = TestClient(server.port()).Ask("POST", "/v1/chat/completions", body.dump());
  EXPECT_EQ(reply.status, 200);
  EXPECT_THAT(reply.body, HasSubstr("I am fathom-nano"));
  const std::string metrics = TestClient(server.port()).Ask("GET", "/metrics").body;
  const std::string labels = R"({model_name="fathom-nano",engine="0"} )";
  EXPECT_THAT(metrics, HasSubstr("vllm:num_requests_waiting" + labels + "0\n"));
  for (const auto& [name, field] : {std::pair{"vllm:prompt_tokens_total", "prompt_tokens"},
                                    {"vllm:generation_tokens_total", "completion_tokens"}}) {
    const int64_t count = Json::parse(reply.body).at("usage").at(field);
    EXPECT_THAT(metrics, HasSubstr(name + labels + std::to_string(count) + "\n"));
  }
  server.program().Signal(SIGINT);
  const Outcome outcome = server.program().Finish();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, testing::Not(HasSubstr("I am"))) << "answers do not belong in logs";
}

TEST(Serve, TakesTheModelAsVllmDoesAndNamesAsAsked) {
  Server server({ProjectPath("models/fathom-nano/").string(), "--served_model_name", "nano",
                 "small", "--model-alias", "quick={\"thinking\": false}", "--max_model_len=1k"});
  ASSERT_NE(server.port(), 0);
  EXPECT_EQ(server.ModelNames(), (std::vector<std::string>{"nano", "small"}));
  EXPECT_EQ(server.Get("/v1/models").at("data").at(0).at("max_model_len"), 1000);
  for (const char* name : {"nano", "small", "quick"}) {
    const Json body = {
        {"model", name}, {"max_tokens", 1}, {"messages", {{{"role", "user"}, {"content", "Hi"}}}}};
    EXPECT_EQ(TestClient(server.port()).Ask("POST", "/v1/chat/completions", body.dump()).status,
              200)
        << name;
  }
  const Json body = {{"model", "fathom-nano"}, {"prompt", "Hi"}};
  EXPECT_EQ(TestClient(server.port()).Ask("POST", "/v1/completions", body.dump()).status, 404);
}

TEST(Serve, DefaultsOfTheTemplateReachTheAnswers) {
  Server server({"--default-chat-template-kwargs", R"({"thinking": true})", "--reasoning-field",
                 "reasoning"});
  ASSERT_NE(server.port(), 0);
  const Json body = {{"messages", {{{"role", "user"}, {"content", "What is 17*19?"}}}},
                     {"temperature", 0}};
  const auto reply = TestClient(server.port()).Ask("POST", "/v1/chat/completions", body.dump());
  const Json message = Json::parse(reply.body).at("choices").at(0).at("message");
  EXPECT_THAT(message.at("reasoning").get<std::string>(), HasSubstr("compute"));
  EXPECT_FALSE(message.contains("reasoning_content"));
}

TEST(Serve, KeysAreAskedFor) {
  Server server({"--api-key", "first", "--api-key", "second"});
  ASSERT_NE(server.port(), 0);
  const auto status = [&](const std::string& headers) {
    return TestClient(server.port()).Ask("GET", "/v1/models", {}, headers).status;
  };
  EXPECT_EQ(status(""), 401);
  EXPECT_EQ(status("Authorization: Bearer third\r\n"), 401);
  EXPECT_EQ(status("Authorization: Bearer first\r\n"), 200);
  EXPECT_EQ(status("Authorization: Bearer second\r\n"), 200);
  server.program().Signal(SIGTERM);
  EXPECT_THAT(server.program().Finish().err, testing::Not(HasSubstr("first")));
}

TEST(Serve, ADirectoryAfterAKeyIsNotAKey) {
  const Outcome outcome = RunFathom({"serve", "--port", "0", "--api-key", "key", "/no/such/model"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("/no/such/model"));
}

TEST(Serve, ATakenPortIsSaid) {
  Server server({});
  ASSERT_NE(server.port(), 0);
  const std::string port = std::to_string(server.port());
  const Outcome second = RunFathom({"serve", "--port", port});
  EXPECT_EQ(second.status, 1);
  EXPECT_THAT(second.err, HasSubstr(port));
  EXPECT_THAT(second.err, HasSubstr("in use"));
  EXPECT_THAT(second.err, testing::Not(HasSubstr("loaded"))) << "said before the model is loaded";
  EXPECT_EQ(RunFathom({"serve", "--host", "not an address"}).status, 1);
}

TEST(Serve, WhatIsWrongWithTheModelEndsIt) {
  const TempFolder folder;
  for (const auto& file : std::filesystem::directory_iterator(ProjectPath("models/fathom-nano"))) {
    (void)folder.Write(file.path().filename().string(), ReadFile(file.path()));
  }
  (void)folder.Write("tokenizer.json", "{");
  const Outcome outcome = RunFathom({"serve", "--port", "0", "--model", folder.path().string()});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("tokenizer.json"));
}

TEST(ServeShutdown, ASignalWhileTheModelLoadsEndsAtOnce) {
  for (const int signal : {SIGTERM, SIGINT}) {
    bool seen = false;
    // The bundled model loads in a fraction of a second, and may be there before the signal.
    for (int attempt = 0; attempt < 10 && !seen; ++attempt) {
      Program program({"serve", "--port", "0", "--log-level", "info"});
      ASSERT_TRUE(program.WaitForError("listening at http://127.0.0.1:"));
      program.Signal(signal);
      const Outcome outcome = program.Finish();
      EXPECT_EQ(outcome.status, 0) << outcome.err;
      seen = outcome.err.find("while the model was loading") != std::string::npos;
      if (seen) {
        EXPECT_EQ(outcome.out, "");
      }
    }
    EXPECT_TRUE(seen);
  }
}

TEST(ServeShutdown, TheRunningStreamIsFinishedFirst) {
  Server server({});
  ASSERT_NE(server.port(), 0);
  TestClient client(server.port());
  BeginStream(client, 300);
  server.program().Signal(SIGTERM);
  ASSERT_TRUE(server.program().WaitForError("shutting down"));
  const std::string rest = ReadRest(client);
  EXPECT_THAT(rest, HasSubstr("\"finish_reason\":\"length\""));
  EXPECT_THAT(rest, HasSubstr("data: [DONE]"));
  EXPECT_EQ(server.program().Finish().status, 0);
}

TEST(ServeShutdown, TheRecordOfExpertsIsWritten) {
  const TempFolder folder;
  const std::string path = (folder.path() / "use.json").string();
  Server server({"--record-expert-use", path});
  ASSERT_NE(server.port(), 0);
  EXPECT_FALSE(std::filesystem::exists(path));
  const Json body = {{"prompt", "Once upon a time"}, {"max_tokens", 3}};
  EXPECT_EQ(server.Post("/v1/completions", body).status, 200);
  server.program().Signal(SIGTERM);
  EXPECT_EQ(server.program().Finish().status, 0);
  const Json use = Json::parse(ReadFile(path), nullptr, false);
  EXPECT_EQ(use["format"], "fathom expert use");
}

TEST(ServeShutdown, StreamsThatTakeTooLongAreAborted) {
  Server server({"--shutdown-timeout", "0"});
  ASSERT_NE(server.port(), 0);
  TestClient client(server.port());
  BeginStream(client, 100'000);
  server.program().Signal(SIGTERM);
  EXPECT_THAT(ReadRest(client), HasSubstr("abort"));
  EXPECT_EQ(server.program().Finish().status, 0);
}

TEST(ServeShutdown, ASecondSignalEndsAtOnce) {
  Server server({"--shutdown-timeout", "3600"});
  ASSERT_NE(server.port(), 0);
  TestClient client(server.port());
  BeginStream(client, 100'000);
  server.program().Signal(SIGTERM);
  ASSERT_TRUE(server.program().WaitForError("shutting down"));
  server.program().Signal(SIGTERM);
  EXPECT_EQ(server.program().Finish().status, -SIGTERM);
  EXPECT_THAT(ReadRest(client), testing::Not(HasSubstr("[DONE]")));
}

}  // namespace
}  // namespace fathom::cli_test
