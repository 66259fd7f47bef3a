// What a request may ask of the server, and what every answer carries.
#include "server/http/http_fixture.h"
#include "server/http/request_head.h"

namespace fathom::http {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

std::string PostHead(size_t content_length) {
  return "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(content_length) +
         "\r\n\r\n";
}

TEST_F(HttpServerTest, RefusesManyHeaderFields) {
  options_.max_header_fields = 10;
  const int port = Start();
  std::string headers;
  for (int i = 0; i < 9; ++i) headers += "X-" + std::to_string(i) + ": 1\r\n";
  EXPECT_EQ(TestClient(port).Ask("GET", "/x", "", headers).status, 200);  // with Host: 10
  const auto reply = TestClient(port).Ask("GET", "/x", "", headers + "X-9: 1\r\n");
  EXPECT_EQ(reply.status, 431);
  EXPECT_THAT(reply.body, HasSubstr("more than 10 header fields"));
}

TEST_F(HttpServerTest, BodiesOfAllConnectionsShareABudget) {
  options_.max_body_bytes = 1000;
  options_.max_total_body_bytes = 1500;
  const int port = Start();
  TestClient held(port);
  held.SendRequest("POST", "/hold", std::string(1000, 'a'));
  auto [request, writer] = inbox_.Take();
  ASSERT_NE(writer, nullptr);

  TestClient declared(port);
  declared.SendRaw(PostHead(501));
  EXPECT_EQ(declared.ReadReply().status, 503);  // without waiting for the body
  TestClient chunked(port);
  chunked.SendRaw("POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 6; ++i) chunked.SendRaw("64\r\n" + std::string(100, 'a') + "\r\n");
  EXPECT_EQ(chunked.ReadReply().status, 503);
  EXPECT_EQ(TestClient(port).Ask("POST", "/x", std::string(500, 'a')).status, 200);
  EXPECT_EQ(TestClient(port).Ask("GET", "/x").status, 200);

  // What a copy of the request holds counts until it is gone.
  writer->Send({});
  EXPECT_EQ(held.ReadReply().status, 200);
  EXPECT_EQ(TestClient(port).Ask("POST", "/x", std::string(501, 'a')).status, 503);
  request = Request();
  EXPECT_EQ(TestClient(port).Ask("POST", "/x", std::string(1000, 'a')).status, 200);
}

TEST_F(HttpServerTest, ADeclaredLengthTakesNothingOfTheBudget) {
  options_.max_body_bytes = options_.max_total_body_bytes = 1000;
  const int port = Start();
  TestClient liar(port), other(port);
  liar.SendRaw(PostHead(1000) + "a");
  EXPECT_EQ(other.Ask("POST", "/x", std::string(900, 'b')).status, 200);
  liar.SendRaw(std::string(999, 'a'));
  EXPECT_EQ(liar.ReadReply().status, 200);
}

TEST_F(HttpServerTest, ABudgetBelowOneBodyIsThatOfOneBody) {
  options_.max_body_bytes = 1000;
  options_.max_total_body_bytes = 10;
  EXPECT_EQ(TestClient(Start()).Ask("POST", "/x", std::string(1000, 'a')).status, 200);
}

TEST_F(HttpServerTest, BodiesThatWereRefusedOrNeverCameLeaveTheBudget) {
  options_.max_body_bytes = options_.max_total_body_bytes = 1000;
  options_.body_timeout = 50ms;
  const int port = Start();
  TestClient slow(port), gone(port), large(port);
  slow.SendRaw(PostHead(1000) + std::string(300, 'a'));
  EXPECT_EQ(slow.ReadReply().status, 408);
  large.SendRaw("POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  large.SendRaw("3e8\r\n" + std::string(1000, 'a') + "\r\n1\r\na\r\n");
  EXPECT_EQ(large.ReadReply().status, 413);
  gone.SendRaw(PostHead(1000) + std::string(300, 'a'));
  gone.Close();
  slow.Close();
  large.Close();
  ASSERT_TRUE(server_->WaitUntilIdle(20s));
  EXPECT_EQ(TestClient(port).Ask("POST", "/x", std::string(1000, 'a')).status, 200);
}

TEST_F(HttpServerTest, AServerWithoutConnectionsHoldsNothingOfTheBudget) {
  options_.max_body_bytes = options_.max_total_body_bytes = 1000;
  const int port = Start();
  for (int i = 0; i < 100; ++i) {
    TestClient gone(port), stays(port);
    gone.SendRaw(PostHead(1000) + std::string(900, 'a'));
    EXPECT_EQ(stays.Ask("GET", "/x").status, 200);  // connections are taken in turn
    gone.Close();
    stays.Close();
    ASSERT_TRUE(server_->WaitUntilIdle(20s));
    ASSERT_EQ(TestClient(port).Ask("POST", "/x", std::string(1000, 'a')).status, 200);
  }
}

TEST_F(HttpServerTest, AContinueIsNotAskedForWhatIsRefused) {
  options_.max_body_bytes = 1000;
  TestClient client(Start());
  client.SendRaw(
      "POST /x HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1001\r\n\r\n");
  EXPECT_EQ(client.ReadReply().status, 413);
}

TEST_F(HttpServerTest, RefusalsKnowThePath) {
  options_.max_body_bytes = 1000;
  options_.header_timeout = 50ms;
  options_.body_timeout = 50ms;
  const int port = Start();
  auto path_of = [&](std::string_view text, int status) {
    TestClient client(port);
    client.SendRaw(text);
    const auto reply = client.ReadReply();
    EXPECT_EQ(reply.status, status) << text.substr(0, 100);
    return reply.headers.count("X-Path") > 0 ? reply.headers.at("X-Path") : "none";
  };
  EXPECT_EQ(path_of("POST /a?b HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n", 413), "/a");
  EXPECT_EQ(path_of("POST /a?b HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n", 408), "/a");
  EXPECT_EQ(path_of("POST /a?b HTTP/1.1\r\nHost: x\r\nX-Half", 408), "/a");
  EXPECT_EQ(path_of("GET /a HTTP/1.1\r\nX: " + std::string(20'000, 'x'), 431), "/a");
  EXPECT_EQ(path_of("GET /a HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400), "/a");
  EXPECT_EQ(path_of("nonsense\r\n\r\n", 400), "");
}

TEST_F(HttpServerTest, EveryAnswerGetsTheHeadersOfItsRequest) {
  options_.max_body_bytes = 1000;
  options_.header_timeout = 50ms;
  options_.response_headers = [](const Request& head) -> HeaderList {
    return {{"X-Origin", head.path + " " + std::string(head.Header("origin"))}};
  };
  const int port = Start();
  auto origin_of = [](const TestClient::Reply& reply) {
    return reply.headers.count("X-Origin") > 0 ? reply.headers.at("X-Origin") : "none";
  };
  TestClient client(port);
  EXPECT_EQ(origin_of(client.Ask("GET", "/a", "", "Origin: one\r\n")), "/a one");
  EXPECT_EQ(origin_of(client.Ask("GET", "/b")), "/b ");  // nothing of the request before
  client.SendRequest("GET", "/hold", "", "Origin: two\r\n");
  auto [request, writer] = inbox_.Take();
  ASSERT_NE(writer, nullptr);
  writer->StartStream({});
  EXPECT_EQ(origin_of(client.ReadHead()), "/hold two");
  writer->End();

  TestClient large(port), slow(port), slower(port), long_head(port);
  EXPECT_EQ(origin_of(large.Ask("POST", "/c", std::string(1001, 'a'), "Origin: three\r\n")),
            "/c three");
  TestClient body_like_head(port);
  EXPECT_EQ(
      origin_of(body_like_head.Ask("POST", "/c", "Origin: evil\r\n" + std::string(1000, 'a'))),
      "/c ");
  slow.SendRaw("GET /d HTTP/1.1\r\nOrigin: four\r\nOrig");
  EXPECT_EQ(origin_of(slow.ReadReply()), "/d four");
  slower.SendRaw("GET /d HTTP/1.1\r\nOrigin: four\r\n");  // may yet go on in the next line
  EXPECT_EQ(origin_of(slower.ReadReply()), "/d four");
  long_head.SendRaw("GET /e HTTP/1.1\r\nOrigin: five\r\nX: " + std::string(20'000, 'x'));
  EXPECT_EQ(origin_of(long_head.ReadReply()), "/e five");
}

TEST(GuessHead, TakesWhatIsPlain) {
  const Request head =
      GuessHead("POST /v1/a?k=v HTTP/1.1\r\nHost: x\r\nOrigin:  http://a \r\nCut: o");
  EXPECT_EQ(head.method, "POST");
  EXPECT_EQ(head.path, "/v1/a");
  EXPECT_THAT(head.headers, ElementsAre(Pair("host", "x"), Pair("origin", "http://a")));
  EXPECT_EQ(GuessHead("GET /half").path, "/half");
}

TEST(GuessHead, LeavesOutWhatIsNot) {
  for (const std::string_view text : {"", "GET", "\r\n\r\n", "GE\x01T /a", "GET ", "GET /a\x01"}) {
    EXPECT_EQ(GuessHead(text).path, "") << text;
  }
  EXPECT_THAT(GuessHead("GET /a HTTP/1.1\r\nOrigin: a\nX: b\r\nBad Name: c\r\nNone\r\n").headers,
              IsEmpty());
}

}  // namespace
}  // namespace fathom::http
