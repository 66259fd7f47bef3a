// Routes, models, keys, errors of the protocol, and the life of the server.
#include "server/api_server.h"

#include <thread>

#include "server/api_server_fixture.h"

namespace fathom {
namespace {

using namespace std::chrono_literals;
using http::TestClient;
using ::testing::HasSubstr;

TEST_F(ApiServerTest, HealthIsEmptyAndTurnsOkWhenTheModelIsThere) {
  Bind();
  for (const char* path : {"/health", "/ping"}) {
    const Reply loading = Get(path);
    EXPECT_EQ(loading.status, 503);
    EXPECT_EQ(loading.headers.count("Retry-After"), 1u);
  }
  const Reply early = Chat();
  ExpectError(early, 503, "Service Unavailable", nullptr);
  EXPECT_EQ(early.headers.count("Retry-After"), 1u);
  server_->Serve(&engine_, &front_end_);
  for (const char* path : {"/health", "/ping"}) {
    const Reply ready = Get(path);
    EXPECT_EQ(ready.status, 200);
    EXPECT_EQ(ready.body, "");
  }
  EXPECT_EQ(TestClient(port()).Ask("POST", "/ping").status, 200);
}

TEST_F(ApiServerTest, PrefixesAreResetWhereDevEndpointsAreOn) {
  EXPECT_EQ(Post("/reset_prefix_cache", "").status, 404);
  server_.reset();
  options_.dev_endpoints = true;
  options_.api_keys = {"secret"};
  Start();
  EXPECT_EQ(TestClient(port()).Ask("POST", "/reset_prefix_cache").status, 401);
  EXPECT_EQ(engine_.num_resets(), 0);
  const Reply reply =
      TestClient(port()).Ask("POST", "/reset_prefix_cache", "", "Authorization: Bearer secret\r\n");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(engine_.num_resets(), 1);
  EXPECT_EQ(TestClient(port())
                .Ask("GET", "/reset_prefix_cache", "", "Authorization: Bearer secret\r\n")
                .status,
            405);
}

TEST_F(ApiServerTest, TellsItsVersion) { EXPECT_EQ(Parse(Get("/version"))["version"], "1.2.3"); }

TEST_F(ApiServerTest, ListsModels) {
  const Json list = Parse(Get("/v1/models"));
  EXPECT_EQ(list["object"], "list");
  ASSERT_EQ(list["data"].size(), 2u);
  const Json first = list["data"][0];
  EXPECT_EQ(first["id"], "fathom-nano");
  EXPECT_EQ(first["object"], "model");
  EXPECT_EQ(first["max_model_len"], kMaxModelLen);
  EXPECT_TRUE(first["created"].is_number_integer());
  EXPECT_TRUE(first["parent"].is_null());
  EXPECT_TRUE(first["permission"].is_array());
  EXPECT_EQ(Parse(Get("/v1/models/fathom-nano"))["id"], "fathom-nano");
  EXPECT_EQ(Parse(Get("/v1/models/org%2Fsecond"))["id"], "org/second");
  EXPECT_EQ(Parse(Get("/v1/models/deepseek-chat"))["id"], "deepseek-chat");
  const Reply unknown = Get("/v1/models/gpt-9");
  ExpectError(unknown, 404, "NotFoundError", "model");
  EXPECT_THAT(unknown.body, HasSubstr("fathom-nano"));
  EXPECT_EQ(Get("/v1/models/").status, 404);
}

TEST_F(ApiServerTest, UnknownRoutesAndMethods) {
  ExpectError(Get("/"), 404, "NotFoundError", nullptr);
  ExpectError(Get("/v1/embeddings"), 404, "NotFoundError", nullptr);
  ExpectError(Get("/v1/chat/completions"), 405, "Method Not Allowed", nullptr);
  ExpectError(Post("/v1/models", "{}"), 405, "Method Not Allowed", nullptr);
  ExpectError(Post("/health", "{}"), 405, "Method Not Allowed", nullptr);
  EXPECT_EQ(Get("/v1/completions").headers.at("Allow"), "POST");
}

TEST_F(ApiServerTest, KeysGuardV1Only) {
  options_.api_keys = {"first", "second"};
  TestClient client(port());
  for (const char* header : {"", "Authorization: Bearer wrong\r\n", "Authorization: first\r\n",
                             "Authorization: Bearer \r\n", "Authorization: Bearer firs\r\n"}) {
    for (const char* path : {"/v1/models", "/v1/unknown"}) {
      ExpectError(client.Ask("GET", path, "", header), 401, "AuthenticationError", nullptr);
    }
  }
  EXPECT_EQ(client.Ask("GET", "/v1/models", "", "Authorization: Bearer first\r\n").status, 200);
  EXPECT_EQ(client.Ask("GET", "/v1/models", "", "authorization: bearer second\r\n").status, 200);
  EXPECT_EQ(client.Ask("GET", "/health").status, 200);
  EXPECT_EQ(client.Ask("GET", "/version").status, 200);
}

TEST_F(ApiServerTest, ClientsAreUsersElseKeysElseOne) {
  engine_.Script(IdsAndEos("x"));
  Chat(R"("user": "")");
  EXPECT_EQ(engine_.requests().back().client, "");
  TestClient open(port());
  open.Ask("POST", "/v1/chat/completions", ChatBody(""), "Authorization: Bearer anything\r\n");
  EXPECT_EQ(engine_.requests().back().client, "");  // nobody has checked that key

  server_.reset();
  options_.api_keys = {"first", "second"};
  TestClient client(port());
  auto client_of = [&](const std::string& header, const std::string& fields) {
    EXPECT_EQ(client.Ask("POST", "/v1/chat/completions", ChatBody(fields), header).status, 200);
    return engine_.requests().back().client;
  };
  const std::string first = client_of("Authorization: Bearer first\r\n", "");
  EXPECT_EQ(first.size(), 32u);
  EXPECT_THAT(first, Not(HasSubstr("first")));
  EXPECT_EQ(client_of("authorization: bearer first\r\n", ""), first);
  EXPECT_NE(client_of("Authorization: Bearer second\r\n", ""), first);
  EXPECT_EQ(client_of("Authorization: Bearer first\r\n", R"("user": "ann")"), first);
}

TEST_F(ApiServerTest, SaltAndPriorityReachTheEngine) {
  engine_.Script(IdsAndEos("x"));
  Chat();
  EXPECT_EQ(engine_.requests().back().cache_salt, "");
  EXPECT_EQ(engine_.requests().back().priority, 0);
  Complete(R"("prompt": "x", "cache_salt": "s")");
  EXPECT_EQ(engine_.requests().back().cache_salt, "s");
  ExpectError(Chat(R"("priority": -3)"), 400, "BadRequestError", "priority");

  EngineInfo info = engine_.info();
  info.priority_scheduling = true;
  ScriptedEngine by_priority(info);
  by_priority.Script(IdsAndEos("x"));
  server_.reset();
  Bind();
  server_->Serve(&by_priority, &front_end_);
  EXPECT_EQ(Chat(R"("priority": -3)").status, 200);
  EXPECT_EQ(by_priority.requests().back().priority, -3);
  server_.reset();
}

TEST_F(ApiServerTest, RefusesBodiesThatAreNoJsonObject) {
  const std::string deep_arrays(100'000, '[');
  const std::string deep = R"({"messages": )" + deep_arrays;
  const std::string nested = R"({"x":)" + std::string(200, '[') + std::string(200, ']') + "}";
  const std::vector<std::string> bodies = {"{",
                                           "[]",
                                           "\"x\"",
                                           "{'a': 1}",
                                           "{\"a\": NaN}",
                                           deep,
                                           nested,
                                           "{\"a\": \"\xff\"}",
                                           "{\"a\": \"\xc3\"}",
                                           R"({"a": "\ud800"})",
                                           R"({"a": "\udc00\ud800"})",
                                           "{\"a\": 1} {}"};
  for (const std::string& body : bodies) {
    for (const char* path : {"/v1/chat/completions", "/v1/completions"}) {
      ExpectError(Post(path, body), 400, "BadRequestError", nullptr);
    }
  }
  EXPECT_EQ(Chat().status, 200);
}

TEST_F(ApiServerTest, WantsTheJsonContentType) {
  const std::string body = ChatBody("");
  auto ask = [&](const std::string& header) {
    TestClient client(port());
    client.SendRaw("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + header +
                   "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    return client.ReadReply();
  };
  EXPECT_EQ(ask("Content-Type: application/json\r\n").status, 200);
  EXPECT_EQ(ask("Content-Type: Application/JSON ; charset=utf-8\r\n").status, 200);
  ExpectError(ask("Content-Type: text/plain\r\n"), 400, "BadRequestError", nullptr);
  ExpectError(ask("Content-Type: application/jsonl\r\n"), 400, "BadRequestError", nullptr);
  ExpectError(ask(""), 400, "BadRequestError", nullptr);
}

TEST_F(ApiServerTest, ProtocolErrorsHaveTheErrorBody) {
  options_.max_body_bytes = 100;
  options_.header_timeout = 50ms;
  ExpectError(Chat(R"("user": ")" + std::string(200, 'x') + "\""), 413, "Request Entity Too Large",
              nullptr);
  TestClient malformed(port());
  malformed.SendRaw("nonsense\r\n\r\n");
  ExpectError(malformed.ReadReply(), 400, "BadRequestError", nullptr);
  TestClient slow(port());
  slow.SendRaw("POST /v1");
  ExpectError(slow.ReadReply(), 408, "Request Timeout", nullptr);
}

TEST_F(ApiServerTest, ResolvesModelNames) {
  engine_.Script(IdsAndEos("x"));
  EXPECT_EQ(Parse(Chat())["model"], "fathom-nano");
  EXPECT_EQ(Parse(Chat(R"("model": "org/second")"))["model"], "org/second");
  EXPECT_EQ(Parse(Chat(R"("model": "fathom-nano[1m]")"))["model"], "fathom-nano");
  const Reply unknown = Chat(R"("model": "gpt-9")");
  ExpectError(unknown, 404, "NotFoundError", "model");
  EXPECT_THAT(unknown.body, HasSubstr("gpt-9"));
  EXPECT_THAT(unknown.body, HasSubstr("org/second"));
  ExpectError(Complete(R"("model": "x", "prompt": "y")"), 404, "NotFoundError", "model");
}

TEST_F(ApiServerTest, AliasesSetThinkingUnlessTheRequestDoes) {
  engine_.Script(IdsAndEos("x"));
  auto thinks = [this](const std::string& fields) {
    const Json message = Parse(Chat(fields))["choices"][0]["message"];
    return !message["reasoning"].is_null();  // without a mark all text stays where the turn began
  };
  EXPECT_TRUE(thinks(""));
  EXPECT_TRUE(thinks(R"("model": "deepseek-reasoner")"));
  EXPECT_FALSE(thinks(R"("model": "deepseek-chat")"));
  EXPECT_TRUE(thinks(R"("model": "deepseek-chat", "chat_template_kwargs": {"thinking": true})"));
  EXPECT_FALSE(thinks(R"("model": "deepseek-reasoner", "thinking": {"type": "disabled"})"));
}

TEST(ModelNames, AliasesOfTheUser) {
  const auto alias = ModelNames::ParseAlias(R"(fast={"thinking": false})");
  ASSERT_TRUE(alias.ok()) << alias.status().ToString();
  EXPECT_FALSE(ModelNames::ParseAlias("").ok());
  EXPECT_FALSE(ModelNames::ParseAlias("x={").ok());
  EXPECT_FALSE(ModelNames::ParseAlias("x=[]").ok());
  EXPECT_FALSE(ModelNames::ParseAlias(R"(x={"thinkin": false})").ok());
  const ModelNames names({"deepseek-chat"}, {*alias});
  ASSERT_TRUE(names.Find("fast"));
  EXPECT_NE(names.Find("fast")->default_kwargs->Find("thinking"), nullptr);
  // A served name takes the word of a built-in alias.
  EXPECT_EQ(names.Find("deepseek-chat")->default_kwargs->Find("thinking"), nullptr);
  EXPECT_FALSE(names.Find("[1m]"));
}

TEST_F(ApiServerTest, AFullQueueIs503WithRetryAfter) {
  engine_.SetSubmitStatus(Unavailable("the queue is full"));
  for (const char* fields : {"", R"("stream": true)"}) {
    const Reply reply = Chat(fields);
    ExpectError(reply, 503, "Service Unavailable", nullptr);
    EXPECT_EQ(reply.headers.count("Retry-After"), 1u);
  }
  engine_.SetSubmitStatus(InvalidArgument("top_p: wrong"));
  ExpectError(Chat(), 400, "BadRequestError", nullptr);
}

TEST_F(ApiServerTest, EngineErrorsDoNotShowTheirMessage) {
  engine_.ScriptError({}, Internal("/secret/path exploded"));
  const Reply reply = Chat(R"("stream": true)");
  ExpectError(reply, 500, "InternalServerError", nullptr);
  EXPECT_THAT(reply.body, Not(HasSubstr("secret")));
  ExpectError(Chat(), 500, "InternalServerError", nullptr);
}

TEST_F(ApiServerTest, AnErrorAfterTheStreamBeganIsAnEvent) {
  engine_.ScriptError(Ids("</think>ab"), Internal("exploded"));
  const Reply reply = Chat(R"("stream": true)");
  EXPECT_EQ(reply.status, 200);
  const auto events = Events(reply);
  EXPECT_EQ(Joined(events, "content"), "ab");
  EXPECT_EQ(events.back()["error"]["code"], 500);
}

TEST_F(ApiServerTest, ARequestOfAClientThatLeftIsAborted) {
  engine_.ScriptEndless(Ids("a")[0]);
  options_.served_model_names = {"fathom-nano"};
  Start();
  for (const bool stream : {true, false}) {
    TestClient client(port());
    client.SendRequest("POST", "/v1/chat/completions",
                       ChatBody(stream ? R"("stream": true)" : R"("ignore_eos": true)"));
    if (stream) {
      EXPECT_EQ(client.ReadHead().status, 200);
    }
    ASSERT_TRUE(engine_.WaitFor(1, 0, 20s));
    client.Close();
    EXPECT_TRUE(engine_.WaitFor(0, 0, 1s)) << "stream: " << stream;
  }
}

TEST_F(ApiServerTest, AWaitingRequestOfAClientThatLeftIsAborted) {
  engine_.ScriptEndless(Ids("a")[0]);
  Start();
  TestClient first(port()), second(port());
  first.SendRequest("POST", "/v1/chat/completions", ChatBody(""));
  ASSERT_TRUE(engine_.WaitFor(1, 0, 20s));
  second.SendRequest("POST", "/v1/chat/completions", ChatBody(""));
  ASSERT_TRUE(engine_.WaitFor(1, 1, 20s));
  second.Close();
  // The engine looks at its queue when the first request is done.
  first.Close();
  EXPECT_TRUE(engine_.WaitFor(0, 0, 2s));
}

TEST_F(ApiServerTest, SendsCommentsWhileNothingHappens) {
  options_.keep_alive_interval = 20ms;
  engine_.SetGate(false);
  engine_.Script(IdsAndEos("</think>ab"));
  TestClient client(port());
  client.SendRequest("POST", "/v1/chat/completions", ChatBody(R"("stream": true)"));
  EXPECT_EQ(client.ReadHead().status, 200);  // before the first token
  std::string chunk;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(client.ReadChunk(&chunk));
    EXPECT_EQ(chunk, ": keep-alive\n\n");
  }
  engine_.SetGate(true);
  std::string rest;
  while (client.ReadChunk(&chunk)) rest += chunk;
  EXPECT_THAT(rest, HasSubstr("\"content\":\"b\""));
  EXPECT_THAT(rest, HasSubstr("[DONE]"));
}

TEST_F(ApiServerTest, ShutdownLetsRequestsFinish) {
  engine_.SetGate(false);
  engine_.Script(IdsAndEos("</think>done"));
  Start();
  TestClient client(port());
  client.SendRequest("POST", "/v1/chat/completions", ChatBody(""));
  ASSERT_TRUE(engine_.WaitFor(1, 0, 20s));
  std::thread shutdown([this] { server_->Shutdown(20s); });
  // Refused once the listener is closed, which shows that the shutdown has begun.
  while (TestClient(server_->port()).connected()) std::this_thread::yield();
  engine_.SetGate(true);
  const Reply reply = client.ReadReply();
  EXPECT_EQ(Parse(reply)["choices"][0]["message"]["content"], "done");
  shutdown.join();
}

TEST_F(ApiServerTest, ShutdownAbortsWhatDoesNotFinish) {
  engine_.ScriptEndless(Ids("a")[0]);
  Start();
  TestClient streaming(port()), whole(port()), idle(port());
  EXPECT_EQ(idle.Ask("GET", "/health").status, 200);
  streaming.SendRequest("POST", "/v1/chat/completions", ChatBody(R"("stream": true)"));
  ASSERT_EQ(streaming.ReadHead().status, 200);
  whole.SendRequest("POST", "/v1/chat/completions", ChatBody(""));
  ASSERT_TRUE(engine_.WaitFor(1, 1, 20s));
  server_->Shutdown(0ms);
  std::string text, chunk;
  while (streaming.ReadChunk(&chunk)) text += chunk;
  EXPECT_THAT(text, HasSubstr(R"("finish_reason":"abort")"));
  EXPECT_THAT(text, HasSubstr(R"("code":503)"));
  EXPECT_THAT(text, HasSubstr("data: [DONE]"));
  ExpectError(whole.ReadReply(), 503, "Service Unavailable", nullptr);
  EXPECT_TRUE(idle.ReadsEnd());
  EXPECT_TRUE(engine_.WaitFor(0, 0, 2s));
}

TEST_F(ApiServerTest, SaysWhyItCannotStart) {
  Start();
  options_.port = static_cast<uint16_t>(port());
  EXPECT_FALSE(ApiServer::Start(options_).ok());
  options_.port = 0;
  options_.served_model_names.clear();
  EXPECT_FALSE(ApiServer::Start(options_).ok());
}

}  // namespace
}  // namespace fathom
