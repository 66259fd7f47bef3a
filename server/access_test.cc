// Where the API is reached and by whom: prefixes, Unix sockets, TLS, limits of keys, loading.
#include <filesystem>

#include "server/api_server_fixture.h"
#include "server/http/tls_fixture.h"

namespace fathom {
namespace {

using http::TestClient;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

class Access : public ApiServerTest {
 protected:
  static std::string TempPath(const std::string& name) {
    return ::testing::TempDir() + "fathom_access_" + std::to_string(getpid()) + "_" + name;
  }
};

TEST_F(Access, RoutesAnswerWithTheRootPathAndWithout) {
  options_.root_path = "/root/";
  options_.api_keys = {"secret"};
  engine_.Script(IdsAndEos("</think>x"));
  TestClient client(port());
  const std::string key = "Authorization: Bearer secret\r\n";
  for (const std::string root : {"", "/root"}) {
    EXPECT_EQ(client.Ask("GET", root + "/health").status, 200);
    EXPECT_EQ(client.Ask("GET", root + "/v1/models").status, 401);
    EXPECT_EQ(client.Ask("GET", root + "/v1/models/fathom-nano", "", key).status, 200);
    EXPECT_EQ(client.Ask("POST", root + "/v1/chat/completions", ChatBody(""), key).status, 200);
    const Reply messages = client.Ask("POST", root + "/v1/messages", "{", key);
    EXPECT_EQ(messages.status, 400);
    EXPECT_EQ(Parse(messages)["type"], "error");
  }
  EXPECT_EQ(client.Ask("GET", "/root/root/health").status, 404);
  EXPECT_EQ(client.Ask("GET", "/rooted/health").status, 404);
  EXPECT_EQ(client.Ask("GET", "/root").status, 404);
  EXPECT_THAT(server_->url(), MatchesRegex("http://127\\.0\\.0\\.1:[0-9]+/root/v1"));
}

TEST_F(Access, RefusalsBelowTheRootPathHaveTheFormOfTheirApi) {
  options_.root_path = "root";
  options_.max_body_bytes = 100;
  const Reply reply = Post("/root/v1/messages", std::string(101, 'x'));
  EXPECT_EQ(reply.status, 413);
  EXPECT_EQ(Parse(reply)["error"]["type"], "request_too_large");
}

TEST_F(Access, AUnixSocketInPlaceOfAPort) {
  options_.unix_socket = TempPath("socket");
  std::filesystem::remove(options_.unix_socket);
  Start();
  EXPECT_EQ(server_->url(), "unix:" + options_.unix_socket + " /v1");
  engine_.Script(IdsAndEos("</think>x"));
  TestClient client(options_.unix_socket);
  const Reply reply = client.Ask("POST", "/v1/chat/completions", ChatBody(R"("stream": true)"));
  EXPECT_EQ(Joined(Events(reply), "content"), "x");
  server_->Shutdown(std::chrono::milliseconds(0));
  EXPECT_FALSE(std::filesystem::exists(options_.unix_socket));
}

TEST_F(Access, Https) {
  const http::TestIdentity identity("localhost");
  options_.tls.certificate_file = TempPath("pem");
  identity.WriteCertificate(options_.tls.certificate_file);
  identity.WriteKey(options_.tls.certificate_file, "a");
  Start();
  std::filesystem::remove(options_.tls.certificate_file);
  EXPECT_THAT(server_->url(), StartsWith("https://127.0.0.1:"));
  engine_.Script(IdsAndEos("</think>x"));
  http::TlsTestClient client(port());
  const Reply reply = client.Ask("POST", "/v1/chat/completions", ChatBody(R"("stream": true)"));
  EXPECT_EQ(Joined(Events(reply), "content"), "x");
  EXPECT_EQ(Parse(client.Ask("GET", "/version"))["version"], "1.2.3");
  const auto again = ApiServer::Start(options_);
  ASSERT_FALSE(again.ok());
  EXPECT_THAT(again.status().message(), HasSubstr(options_.tls.certificate_file));
}

TEST_F(Access, AKeyOverItsRateWaits) {
  options_.api_keys = {"first", "second"};
  options_.requests_per_minute = 2;
  engine_.Script(IdsAndEos("</think>x"));
  TestClient client(port());
  const std::string first = "Authorization: Bearer first\r\n";
  auto chat = [&](const std::string& key) {
    return client.Ask("POST", "/v1/chat/completions", ChatBody(""), key);
  };
  EXPECT_EQ(chat(first).status, 200);
  EXPECT_EQ(chat("Authorization: Bearer wrong\r\n").status, 401);
  EXPECT_EQ(chat("x-api-key: first\r\n").status, 200);
  const Reply refused = chat(first);
  ExpectError(refused, 429, "Too Many Requests", nullptr);
  const int wait_s = std::atoi(refused.headers.at("Retry-After").c_str());
  EXPECT_GE(wait_s, 1);
  EXPECT_LE(wait_s, 30);
  const Reply messages = client.Ask("POST", "/v1/messages", "{}", first);
  EXPECT_EQ(messages.status, 429);
  EXPECT_EQ(Parse(messages)["error"]["type"], "rate_limit_error");
  EXPECT_EQ(messages.headers.count("Retry-After"), 1u);
  // Only what makes work counts.
  EXPECT_EQ(client.Ask("GET", "/v1/models", "", first).status, 200);
  EXPECT_EQ(chat("Authorization: Bearer second\r\n").status, 200);
}

TEST_F(Access, ARateNeedsKeys) {
  options_.requests_per_minute = 2;
  EXPECT_FALSE(ApiServer::Start(options_).ok());
}

TEST_F(Access, WhileTheModelLoadsOnlyLivenessAndMetricsAnswer) {
  options_.api_keys = {"secret"};
  Bind();
  for (const char* path : {"/health", "/readiness", "/ping", "/version", "/load", "/v1/models",
                           "/v1/chat/completions", "/nothing", "/"}) {
    const Reply reply = Get(path);
    ExpectError(reply, 503, "Service Unavailable", nullptr);
    EXPECT_EQ(reply.headers.count("Retry-After"), 1u) << path;
  }
  const Reply messages = Post("/v1/messages", "{}");
  EXPECT_EQ(messages.status, 529);
  EXPECT_EQ(messages.headers.count("Retry-After"), 1u);
  EXPECT_EQ(Get("/liveness").status, 200);
  EXPECT_EQ(Get("/metrics").status, 200);
  server_->Serve(&engine_, &front_end_);
  EXPECT_EQ(Get("/nothing").status, 404);
  EXPECT_EQ(Get("/v1/models").status, 401);
}

TEST_F(Access, TheModelsDefaultsAreThoseOfRequestsThatSayNothing) {
  Bind();
  server_->Serve(&engine_, &front_end_, {0.25, 0.5, 7});
  engine_.Script(IdsAndEos("</think>x"));
  EXPECT_EQ(Chat().status, 200);
  EXPECT_EQ(engine_.requests().back().sampling.temperature, 0.25);
  EXPECT_EQ(engine_.requests().back().sampling.top_p, 0.5);
  EXPECT_EQ(engine_.requests().back().sampling.top_k, 7);
  EXPECT_EQ(Chat(R"("temperature": 1.0, "top_p": 0.75, "top_k": 3)").status, 200);
  EXPECT_EQ(engine_.requests().back().sampling.top_k, 3);
}

TEST_F(Access, LoadIsCountedWhereThatIsOn) {
  for (const bool on : {false, true}) {
    server_.reset();
    options_.track_load = on;
    engine_.SetGate(false);
    engine_.Script(IdsAndEos("</think>x"));
    TestClient client(port());
    client.SendRequest("POST", "/v1/chat/completions", ChatBody(""));
    ASSERT_TRUE(engine_.WaitFor(1, 0, std::chrono::seconds(20)));
    EXPECT_EQ(Parse(Get("/load"))["server_load"], on ? 1 : 0);
    engine_.SetGate(true);
    EXPECT_EQ(client.ReadReply().status, 200);
    // The reply may come before the engine has counted its request out, and the next round's wait
    // for one running request must not be answered by this one.
    ASSERT_TRUE(engine_.WaitFor(0, 0, std::chrono::seconds(20)));
  }
}

}  // namespace
}  // namespace fathom
