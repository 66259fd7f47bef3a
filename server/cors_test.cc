// Pages of other origins: what a browser is told.
#include "server/cors.h"

#include "server/api_server_fixture.h"

namespace fathom {
namespace {

using http::TestClient;
using ::testing::HasSubstr;

constexpr char kPage[] = "https://page.example";
constexpr char kAllowOrigin[] = "Access-Control-Allow-Origin";

std::string Origin(std::string_view origin) { return "Origin: " + std::string(origin) + "\r\n"; }

class Cors : public ApiServerTest {
 protected:
  static std::string Header(const Reply& reply, const std::string& name) {
    const auto it = reply.headers.find(name);
    return it == reply.headers.end() ? "none" : it->second;
  }
  Reply Ask(std::string_view method, std::string_view path, std::string_view body,
            const std::string& headers) {
    return TestClient(port()).Ask(method, path, body, headers);
  }
  Reply Preflight(const std::string& headers = {}, std::string_view origin = kPage,
                  const std::string& method = "POST") {
    return Ask("OPTIONS", "/v1/chat/completions", "",
               Origin(origin) + "Access-Control-Request-Method: " + method + "\r\n" + headers);
  }
};

TEST_F(Cors, OffWithoutOrigins) {
  const Reply reply = Ask("GET", "/health", "", Origin(kPage));
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(Header(reply, kAllowOrigin), "none");
  EXPECT_EQ(Header(reply, "Vary"), "none");
  EXPECT_EQ(Preflight().status, 405);
}

TEST_F(Cors, EveryAnswerToAnAllowedOriginSaysSo) {
  options_.cors.allowed_origins = {"http://other.example", kPage};
  options_.api_keys = {"secret"};
  options_.max_body_bytes = 1000;
  options_.header_timeout = std::chrono::milliseconds(50);
  engine_.Script(IdsAndEos("</think>x"));
  Bind();
  const std::string origin = Origin(kPage);
  const std::string keyed = origin + "Authorization: Bearer secret\r\n";
  EXPECT_EQ(Header(Ask("GET", "/v1/models", "", keyed), kAllowOrigin), kPage);  // loading
  server_->Serve(&engine_, &front_end_);
  const std::string stream = ChatBody(R"("stream": true)");
  const std::vector<std::pair<Reply, int>> replies = {
      {Ask("GET", "/health", "", origin), 200},
      {Ask("GET", "/metrics", "", origin), 200},
      {Ask("GET", "/v1/models", "", keyed), 200},
      {Ask("POST", "/v1/chat/completions", ChatBody(""), keyed), 200},
      {Ask("POST", "/v1/chat/completions", stream, keyed), 200},
      {Ask("POST", "/v1/chat/completions", "{", keyed), 400},
      {Ask("GET", "/v1/models", "", origin), 401},
      {Ask("GET", "/nothing", "", origin), 404},
      {Ask("PUT", "/v1/models", "", keyed), 405},
      {Ask("POST", "/v1/chat/completions", std::string(1001, 'x'), keyed), 413},
      {Ask("GET", "/health", "", origin + "X: " + std::string(20'000, 'x') + "\r\n"), 431},
  };
  for (const auto& [reply, status] : replies) {
    EXPECT_EQ(reply.status, status) << reply.body;
    EXPECT_EQ(Header(reply, kAllowOrigin), kPage) << status;
    EXPECT_EQ(Header(reply, "Vary"), "Origin") << status;
    EXPECT_THAT(Header(reply, "Access-Control-Expose-Headers"), HasSubstr("Retry-After"));
    EXPECT_EQ(Header(reply, "Access-Control-Allow-Credentials"), "none");
  }
  TestClient slow(port());
  slow.SendRaw("GET /health HTTP/1.1\r\n" + origin);
  const Reply late = slow.ReadReply();
  EXPECT_EQ(late.status, 408);
  EXPECT_EQ(Header(late, kAllowOrigin), kPage);
}

TEST_F(Cors, UnknownOriginsGetNoHeader) {
  options_.cors.allowed_origins = {kPage};
  for (const char* origin : {"https://evil.example", "https://page.example.evil", "null",
                             "http://page.example", "https://page.example:444", "*", ""}) {
    const Reply reply = Ask("GET", "/health", "", Origin(origin));
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(Header(reply, kAllowOrigin), "none") << origin;
    // What a cache keeps of it must not be served to the page either.
    EXPECT_EQ(Header(reply, "Vary"), "Origin") << origin;
  }
  const Reply refused = Preflight("", "https://evil.example");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(Header(refused, kAllowOrigin), "none");
  EXPECT_EQ(Header(refused, "Access-Control-Allow-Methods"), "none");
  EXPECT_THAT(refused.body, HasSubstr("evil.example"));
}

TEST_F(Cors, AStarIsForAllAndNeedsNoVary) {
  options_.cors.allowed_origins = {"*"};
  const Reply reply = Ask("GET", "/health", "", Origin(kPage));
  EXPECT_EQ(Header(reply, kAllowOrigin), "*");
  EXPECT_EQ(Header(reply, "Vary"), "none");
  EXPECT_EQ(Header(Get("/health"), kAllowOrigin), "none");  // not asked across origins
}

TEST_F(Cors, WithCredentialsAStarIsSpelledOut) {
  options_.cors.allowed_origins = {"*"};
  options_.cors.allow_credentials = true;
  const Reply reply = Preflight("Access-Control-Request-Headers: authorization\r\n");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(Header(reply, kAllowOrigin), kPage);
  EXPECT_EQ(Header(reply, "Vary"), "Origin");
  EXPECT_EQ(Header(reply, "Access-Control-Allow-Credentials"), "true");
  EXPECT_THAT(Header(reply, "Access-Control-Allow-Methods"), HasSubstr("POST"));
  EXPECT_EQ(Header(reply, "Access-Control-Allow-Headers"), "authorization");
}

TEST_F(Cors, APreflightNeedsNoKeyAndNoModel) {
  options_.cors.allowed_origins = {kPage};
  options_.api_keys = {"secret"};
  Bind();
  const Reply reply = Preflight("Access-Control-Request-Headers: authorization, content-type\r\n");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body, "");
  EXPECT_EQ(Header(reply, kAllowOrigin), kPage);
  EXPECT_EQ(Header(reply, "Access-Control-Allow-Headers"), "authorization, content-type");
  EXPECT_NE(Header(reply, "Access-Control-Max-Age"), "none");
  server_->Serve(&engine_, &front_end_);
  // No preflight, so an ordinary request of a method that no route has.
  EXPECT_EQ(Ask("OPTIONS", "/v1/models", "", Origin(kPage)).status, 405);
}

TEST_F(Cors, MethodsAndHeadersCanBeNamed) {
  options_.cors.allowed_origins = {kPage};
  options_.cors.allowed_methods = {"GET", "POST"};
  options_.cors.allowed_headers = {"Content-Type", "X-Mine"};
  const Reply reply = Preflight("Access-Control-Request-Headers: x-mine,content-type\r\n");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(Header(reply, "Access-Control-Allow-Methods"), "GET, POST");
  EXPECT_EQ(Header(reply, "Access-Control-Allow-Headers"), "Content-Type, X-Mine");
  EXPECT_EQ(Preflight().status, 200);
  EXPECT_EQ(Preflight("", kPage, "DELETE").status, 400);
  EXPECT_EQ(Preflight("Access-Control-Request-Headers: x-mine, authorization\r\n").status, 400);
}

TEST(CorsPolicy, SaysWhichOriginCannotBeOne) {
  for (const char* origin : {"https://page.example", "http://localhost:3000", "null", "*",
                             "app://local", "http://[::1]:80"}) {
    EXPECT_TRUE(CorsPolicy::Create({{origin}}).ok()) << origin;
  }
  for (const char* origin : {"", "page.example", "https://", "https://page.example/",
                             "https://*.example", "https://a, https://b", "://a"}) {
    const auto policy = CorsPolicy::Create({{origin}});
    ASSERT_FALSE(policy.ok()) << origin;
    EXPECT_THAT(policy.status().message(), HasSubstr("\"" + std::string(origin) + "\""));
  }
}

}  // namespace
}  // namespace fathom
