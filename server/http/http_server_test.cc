#include "server/http/http_server.h"

#include <future>
#include <thread>

#include "server/http/http_fixture.h"

namespace fathom::http {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

TEST_F(HttpServerTest, KeepsTheConnectionForFurtherRequests) {
  TestClient client(Start());
  EXPECT_EQ(client.Ask("GET", "/a?x=1").body, "GET /a ");
  EXPECT_EQ(client.Ask("POST", "/b", "hello").body, "POST /b hello");
  const auto last = client.Ask("GET", "/c", "", "Connection: close\r\n");
  EXPECT_EQ(last.body, "GET /c ");
  EXPECT_EQ(last.headers.at("Connection"), "close");
  EXPECT_TRUE(client.ReadsEnd());
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  TestClient client(Start());
  client.SendRaw(
      "GET /hold/1 HTTP/1.1\r\nHost: x\r\n\r\n"
      "POST /2 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
      "GET /3 HTTP/1.1\r\nHost: x\r\n\r\n");
  auto [request, writer] = inbox_.Take();
  ASSERT_NE(writer, nullptr);
  writer->Send({200, "", {}, "held"});
  EXPECT_EQ(client.ReadReply().body, "held");
  EXPECT_EQ(client.ReadReply().body, "POST /2 abc");
  EXPECT_EQ(client.ReadReply().body, "GET /3 ");
}

TEST_F(HttpServerTest, ReadsChunkedBodiesAndContinues) {
  TestClient client(Start());
  client.SendRaw(
      "POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.ReadHead().status, 100);
  client.SendRaw("3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_EQ(client.ReadReply().body, "POST /x abcde");
}

TEST_F(HttpServerTest, StreamsFromAnotherThreadInChunks) {
  TestClient client(Start());
  client.SendRequest("GET", "/hold");
  auto [request, writer] = inbox_.Take();
  ASSERT_NE(writer, nullptr);
  writer->StartStream({200, "text/event-stream", {{"X-Extra", "1"}}, ""});
  writer->Write("one");
  auto head = client.ReadHead();
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("Content-Type"), "text/event-stream");
  EXPECT_EQ(head.headers.at("X-Extra"), "1");
  std::string chunk;
  ASSERT_TRUE(client.ReadChunk(&chunk));  // arrives while the answer is still open
  EXPECT_EQ(chunk, "one");
  writer->Write("two");
  ASSERT_TRUE(client.ReadChunk(&chunk));
  EXPECT_EQ(chunk, "two");
  writer->End();
  EXPECT_FALSE(client.ReadChunk(&chunk));
  EXPECT_EQ(client.Ask("GET", "/next").body, "GET /next ");
  writer->Write("a late write of an old answer must not show up");
  EXPECT_EQ(client.Ask("GET", "/next2").body, "GET /next2 ");
}

TEST_F(HttpServerTest, StreamsToHttp10UntilTheConnectionEnds) {
  TestClient client(Start());
  client.SendRaw("GET /hold HTTP/1.0\r\n\r\n");
  auto [request, writer] = inbox_.Take();
  ASSERT_NE(writer, nullptr);
  writer->StartStream({});
  writer->Write("one");
  writer->Write("two");
  writer->End();
  const auto reply = client.ReadReply();
  EXPECT_EQ(reply.headers.count("Transfer-Encoding"), 0u);
  EXPECT_EQ(reply.body, "onetwo");
}

TEST_F(HttpServerTest, HeadGetsNoBody) {
  TestClient client(Start());
  const auto reply = client.Ask("HEAD", "/a");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("Content-Length"), "8");
  EXPECT_EQ(client.Ask("GET", "/b").body, "GET /b ");
}

TEST_F(HttpServerTest, RefusesLargeBodies) {
  options_.max_body_bytes = 1000;
  const int port = Start();
  TestClient exact(port);
  EXPECT_EQ(exact.Ask("POST", "/x", std::string(1000, 'a')).status, 200);
  TestClient declared(port);
  declared.SendRaw("POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n");
  EXPECT_EQ(declared.ReadReply().status, 413);  // without waiting for the body
  TestClient huge(port);
  huge.SendRaw("POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551615\r\n\r\n");
  EXPECT_EQ(huge.ReadReply().status, 413);
  TestClient chunked(port);
  chunked.SendRaw("POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 11; ++i) chunked.SendRaw("64\r\n" + std::string(100, 'a') + "\r\n");
  const auto reply = chunked.ReadReply();
  EXPECT_EQ(reply.status, 413);
  EXPECT_THAT(reply.body, HasSubstr("1000 bytes"));
}

TEST_F(HttpServerTest, RefusalReachesAClientThatIsStillSending) {
  options_.max_body_bytes = 1000;
  TestClient client(Start());
  const std::string body(4 << 20, 'a');
  client.SendRequest("POST", "/x", body);  // far more than the socket buffers hold
  EXPECT_EQ(client.ReadReply().status, 413);
}

TEST_F(HttpServerTest, RefusesLargeHeads) {
  TestClient client(Start());
  client.SendRequest("GET", "/x", "", "X-Long: " + std::string(20'000, 'a') + "\r\n");
  EXPECT_EQ(client.ReadReply().status, 431);
  EXPECT_TRUE(client.ReadsEnd());
}

TEST_F(HttpServerTest, RefusesMalformedRequests) {
  const int port = Start();
  for (const std::string_view text :
       {"nonsense\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/x\r\n\r\n", "GET / HTTP/3.0\r\n\r\n",
        "GET  HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nNo colon\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "\x16\x03\x01\x02\x00\x01\r\n\r\n", "GET /a\x01b HTTP/1.1\r\n\r\n"}) {
    TestClient client(port);
    client.SendRaw(text);
    const auto reply = client.ReadReply();
    EXPECT_EQ(reply.status, 400) << text;
    EXPECT_THAT(reply.body, HasSubstr("malformed")) << text;
    EXPECT_TRUE(client.ReadsEnd()) << text;
  }
  EXPECT_EQ(TestClient(port).Ask("GET", "/alive").status, 200);
}

TEST_F(HttpServerTest, GivesUpOnSlowRequests) {
  options_.header_timeout = 50ms;
  options_.body_timeout = 50ms;
  options_.idle_timeout = 50ms;
  const int port = Start();
  TestClient head(port);
  head.SendRaw("GET /x HTT");
  EXPECT_EQ(head.ReadReply().status, 408);
  TestClient body(port);
  body.SendRaw("POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_EQ(body.ReadReply().status, 408);
  TestClient idle(port);
  EXPECT_TRUE(idle.ReadsEnd());
}

TEST_F(HttpServerTest, TellsTheHandlerWhenTheClientLeavesBeforeAnAnswer) {
  const int port = Start();
  for (const bool streaming : {false, true}) {
    TestClient client(port);
    client.SendRequest("GET", "/hold");
    auto [request, writer] = inbox_.Take();
    ASSERT_NE(writer, nullptr);
    Event closed;
    writer->SetOnClosed([&closed] { closed.Set(); });
    if (streaming) {
      writer->StartStream({});
      EXPECT_EQ(client.ReadHead().status, 200);
    }
    client.Close();
    EXPECT_TRUE(closed.Wait());
    EXPECT_FALSE(writer->Post([] {}));
    Event at_once;
    writer->SetOnClosed([&at_once] { at_once.Set(); });
    EXPECT_TRUE(at_once.Wait(0ms));
  }
  server_->Stop();
  ASSERT_EQ(log_.size(), 2u);
  EXPECT_TRUE(log_[0].client_left);
  EXPECT_EQ(log_[0].path, "/hold");
  EXPECT_EQ(log_[0].status, 0);
  EXPECT_EQ(log_[1].status, 200);
}

TEST_F(HttpServerTest, DropsAClientThatDoesNotReadItsStream) {
  options_.max_pending_bytes = 1 << 20;
  TestClient client(Start(), /*receive_buffer_bytes=*/4096);
  client.SendRequest("GET", "/hold");
  auto [request, writer] = inbox_.Take();
  ASSERT_NE(writer, nullptr);
  Event closed;
  writer->SetOnClosed([&closed] { closed.Set(); });
  writer->StartStream({});
  const std::string piece(64 << 10, 'x');
  // The kernel's buffers take some megabytes; none of these calls may block.
  for (int i = 0; i < 1000 && !closed.Wait(0ms); ++i) writer->Write(piece);
  EXPECT_TRUE(closed.Wait());
}

TEST_F(HttpServerTest, DropsAClientThatTakesTooLongToReadAnAnswer) {
  options_.write_timeout = 100ms;
  TestClient client(Start(), /*receive_buffer_bytes=*/4096);
  client.SendRequest("GET", "/hold");
  auto [request, writer] = inbox_.Take();
  ASSERT_NE(writer, nullptr);
  writer->Send({200, "", {}, std::string(32 << 20, 'x')});
  EXPECT_TRUE(server_->WaitUntilIdle(20s));
  EXPECT_FALSE(client.ReadReply().complete);
}

TEST_F(HttpServerTest, RunsTheSilenceCallbackWhileNothingIsWritten) {
  TestClient client(Start());
  client.SendRequest("GET", "/hold");
  auto [request, writer] = inbox_.Take();
  ASSERT_NE(writer, nullptr);
  writer->StartStream({});
  writer->SetOnSilence(10ms, [w = std::weak_ptr(writer)] {
    if (const auto strong = w.lock()) strong->Write("tick");
  });
  client.ReadHead();
  std::string chunk;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client.ReadChunk(&chunk));
    EXPECT_EQ(chunk, "tick");
  }
  writer->End();
}

TEST_F(HttpServerTest, PostedTasksRunInOrder) {
  TestClient client(Start());
  client.SendRequest("GET", "/hold");
  auto [request, writer] = inbox_.Take();
  ASSERT_NE(writer, nullptr);
  auto text = std::make_shared<std::string>();
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(writer->Post([text, i] { *text += std::to_string(i); }));
  }
  EXPECT_TRUE(writer->Post([text, w = writer] { w->Send({200, "", {}, *text}); }));
  EXPECT_EQ(client.ReadReply().body, "0123456789");
}

TEST_F(HttpServerTest, AWriterThatIsForgottenClosesTheConnection) {
  TestClient client(Start());
  client.SendRequest("GET", "/hold");
  inbox_.Take().second.reset();
  EXPECT_TRUE(client.ReadsEnd());
}

TEST_F(HttpServerTest, ClosesConnectionsOverTheLimit) {
  options_.max_connections = 1;
  const int port = Start();
  TestClient first(port);
  EXPECT_EQ(first.Ask("GET", "/a").status, 200);
  TestClient second(port);
  EXPECT_TRUE(second.ReadsEnd());
  EXPECT_EQ(first.Ask("GET", "/b").status, 200);
}

TEST_F(HttpServerTest, DrainFinishesWhatIsRunningAndClosesIdleConnections) {
  const int port = Start();
  TestClient idle(port), busy(port);
  EXPECT_EQ(idle.Ask("GET", "/a").status, 200);
  busy.SendRequest("GET", "/hold");
  auto [request, writer] = inbox_.Take();
  ASSERT_NE(writer, nullptr);
  server_->Drain();
  EXPECT_TRUE(idle.ReadsEnd());
  EXPECT_FALSE(server_->WaitUntilIdle(0ms));
  writer->Send({200, "", {}, "done"});
  const auto reply = busy.ReadReply();
  EXPECT_EQ(reply.body, "done");
  EXPECT_EQ(reply.headers.at("Connection"), "close");
  EXPECT_TRUE(busy.ReadsEnd());
  EXPECT_TRUE(server_->WaitUntilIdle(20s));
}

TEST_F(HttpServerTest, WritersOutliveTheServer) {
  TestClient client(Start());
  client.SendRequest("GET", "/hold");
  auto [request, writer] = inbox_.Take();
  ASSERT_NE(writer, nullptr);
  Event closed;
  writer->SetOnClosed([&closed] { closed.Set(); });
  server_->Stop();
  EXPECT_TRUE(closed.Wait(0ms));
  server_.reset();
  writer->Send({200, "", {}, "too late"});
  writer.reset();
  EXPECT_TRUE(client.ReadsEnd());
}

TEST_F(HttpServerTest, WorkRunsOnAWorkerThread) {
  Start();
  std::promise<std::thread::id> id;
  server_->PostWork([&id] { id.set_value(std::this_thread::get_id()); });
  EXPECT_NE(id.get_future().get(), std::this_thread::get_id());
}

TEST_F(HttpServerTest, SaysWhyItCannotListen) {
  const int port = Start();
  options_.port = static_cast<uint16_t>(port);
  const auto taken = HttpServer::Start(options_);
  ASSERT_FALSE(taken.ok());
  EXPECT_THAT(taken.status().message(), HasSubstr("127.0.0.1:" + std::to_string(port)));
  options_.host = "no such host";
  EXPECT_FALSE(HttpServer::Start(options_).ok());
}

TEST(PercentDecode, UndoesEscapesAndKeepsMalformedOnes) {
  EXPECT_EQ(PercentDecode("a%2Fb%20c%zz%4"), "a/b c%zz%4");
}

}  // namespace
}  // namespace fathom::http
