// HTTPS: that everything works as without, who is let in, and what is said of wrong files.
#include "server/http/tls_fixture.h"

#include <csignal>

#include "server/http/http_fixture.h"

namespace fathom::http {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Tls : public HttpServerTest {
 protected:
  Tls() {
    // OpenSSL's own socket calls raise it when the server has closed.
    std::signal(SIGPIPE, SIG_IGN);
    options_.tls.certificate_file = Path("certificate");
    options_.tls.key_file = Path("key");
    server_identity_.WriteCertificate(Path("certificate"));
    server_identity_.WriteKey(Path("key"));
  }
  ~Tls() override {
    for (const char* name : {"certificate", "key", "ca", "other"}) {
      std::filesystem::remove(Path(name));
    }
  }

  static std::string Path(const std::string& name) {
    return ::testing::TempDir() + "fathom_tls_" + std::to_string(getpid()) + "_" + name;
  }
  void ExpectStartError(const std::string& file, const std::string& reason) {
    const auto server = HttpServer::Start(options_);
    ASSERT_FALSE(server.ok());
    EXPECT_THAT(server.status().message(), AllOf(HasSubstr(file), HasSubstr(reason)));
  }
  static void Write(const std::string& path, const std::string& text) {
    FILE* file = std::fopen(path.c_str(), "w");
    std::fputs(text.c_str(), file);
    std::fclose(file);
  }

  const TestIdentity authority_{"authority"};
  const TestIdentity server_identity_{"localhost", &authority_};
};

TEST_F(Tls, KeepsConnectionsAndTakesLargeBodies) {
  TlsTestClient client(Start(), {&authority_, nullptr, 0});
  ASSERT_TRUE(client.secure());
  EXPECT_EQ(client.version(), "TLSv1.3");
  EXPECT_EQ(client.Ask("GET", "/a").body, "GET /a ");
  const std::string body(1 << 20, 'b');
  EXPECT_EQ(client.Ask("POST", "/b", body).body, "POST /b " + body);
  client.SendRaw("GET /c HTTP/1.1\r\nHost: x\r\n\r\nGET /d HTTP/1.1\r\nHost: x\r\n\r\nGET /e HT");
  EXPECT_EQ(client.ReadReply().body, "GET /c ");
  EXPECT_EQ(client.ReadReply().body, "GET /d ");
  client.SendRaw("TP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.ReadReply().body, "GET /e ");
}

TEST_F(Tls, Streams) {
  TlsTestClient client(Start());
  for (int round = 0; round < 3; ++round) {
    client.SendRequest("GET", "/hold");
    auto [request, writer] = inbox_.Take();
    ASSERT_NE(writer, nullptr);
    writer->StartStream({});
    EXPECT_EQ(client.ReadHead().status, 200);
    std::string chunk;
    for (int i = 0; i < 10; ++i) {
      writer->Write(std::to_string(i));
      ASSERT_TRUE(client.ReadChunk(&chunk));
      EXPECT_EQ(chunk, std::to_string(i));
    }
    writer->End();
    EXPECT_FALSE(client.ReadChunk(&chunk));
  }
}

TEST_F(Tls, AClientThatLeavesIsNoticed) {
  const int port = Start();
  for (const bool cleanly : {true, false}) {
    auto client = std::make_unique<TlsTestClient>(port);
    client->SendRequest("GET", "/hold");
    auto [request, writer] = inbox_.Take();
    ASSERT_NE(writer, nullptr);
    Event closed;
    writer->SetOnClosed([&closed] { closed.Set(); });
    if (cleanly) client->SayGoodbye();
    client->Close();
    EXPECT_TRUE(closed.Wait());
  }
}

TEST_F(Tls, TheEndOfAnAnswerIsNoCut) {
  const int port = Start();
  TlsTestClient stream(port);
  stream.SendRaw("GET /hold HTTP/1.0\r\n\r\n");
  auto [request, writer] = inbox_.Take();
  ASSERT_NE(writer, nullptr);
  writer->StartStream({});
  writer->Write("all");
  writer->End();
  EXPECT_EQ(stream.ReadReply().body, "all");
  EXPECT_TRUE(stream.ended_cleanly());
}

TEST_F(Tls, RefusalReachesAClientThatIsStillSending) {
  options_.max_body_bytes = 1000;
  options_.header_timeout = 10s;
  TlsTestClient client(Start());
  client.SendRequest("POST", "/x", std::string(4 << 20, 'a'));
  EXPECT_EQ(client.ReadReply().status, 413);
}

TEST_F(Tls, SlowRequestsGetTheirAnswer) {
  options_.body_timeout = 50ms;
  TlsTestClient client(Start());
  client.SendRaw("POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_EQ(client.ReadReply().status, 408);
  EXPECT_TRUE(client.ReadsEnd());
}

TEST_F(Tls, WhoeverBreaksTheHandshakeHurtsNobody) {
  options_.header_timeout = 1s;
  const int port = Start();
  TlsTestClient good(port);
  TestClient plain(port), garbage(port), silent(port), dropped(port), half(port);
  plain.SendRequest("GET", "/a");
  EXPECT_EQ(plain.ReadReply().status, 0);
  garbage.SendRaw(std::string(100'000, '\xff'));
  EXPECT_TRUE(garbage.ReadsEnd());
  half.SendRaw(std::string("\x16\x03\x01\x02", 4));
  dropped.Close();
  EXPECT_TRUE(silent.ReadsEnd());
  EXPECT_TRUE(half.ReadsEnd());
  EXPECT_EQ(good.Ask("GET", "/b").body, "GET /b ");
  EXPECT_EQ(TlsTestClient(port).Ask("GET", "/c").body, "GET /c ");
  const std::lock_guard lock(log_mutex_);
  for (const AccessRecord& record : log_) EXPECT_EQ(record.status, 200);
}

TEST_F(Tls, VersionsBelow12AreRefused) {
  const int port = Start();
  EXPECT_FALSE(TlsTestClient(port, {nullptr, nullptr, TLS1_1_VERSION}).secure());
  TlsTestClient old(port, {nullptr, nullptr, TLS1_2_VERSION});
  EXPECT_EQ(old.Ask("GET", "/a").status, 200);
}

TEST_F(Tls, ClientsMustShowACertificateOfTheAuthority) {
  authority_.WriteCertificate(Path("ca"));
  options_.tls.client_ca_file = Path("ca");
  const int port = Start();
  const TestIdentity member("member", &authority_);
  const TestIdentity stranger("stranger");
  EXPECT_EQ(TlsTestClient(port, {nullptr, &member, 0}).Ask("GET", "/a").status, 200);
  // In TLS 1.3 the client learns of its refusal when it reads.
  EXPECT_EQ(TlsTestClient(port).Ask("GET", "/a").status, 0);
  EXPECT_EQ(TlsTestClient(port, {nullptr, &stranger, 0}).Ask("GET", "/a").status, 0);
}

TEST_F(Tls, TheCertificatesFileMayHoldTheKey) {
  server_identity_.WriteKey(options_.tls.certificate_file, "a");
  options_.tls.key_file.clear();
  EXPECT_EQ(TlsTestClient(Start(), {&authority_, nullptr, 0}).Ask("GET", "/a").status, 200);
}

TEST_F(Tls, DrainEndsHandshakesAndIdleConnections) {
  const int port = Start();
  TestClient silent(port);
  TlsTestClient idle(port);
  EXPECT_EQ(idle.Ask("GET", "/a").status, 200);
  while (server_->num_connections() < 2) std::this_thread::yield();
  server_->Drain();
  EXPECT_TRUE(server_->WaitUntilIdle(10s));
}

TEST_F(Tls, SaysWhatIsWrongWithAFile) {
  const std::string other = Path("other");
  options_.tls.certificate_file = other;
  ExpectStartError(other, "No such file");
  Write(other, "");
  ExpectStartError(other, "is empty");
  options_.tls.certificate_file = ::testing::TempDir();
  ExpectStartError(::testing::TempDir(), "directory");
  options_.tls.certificate_file = other;
  Write(other, "no certificate");
  ExpectStartError(other, "no certificate in PEM form");

  options_.tls.certificate_file = Path("certificate");
  options_.tls.key_file = other;
  ExpectStartError(other, "no unencrypted private key in PEM form");
  authority_.WriteKey(other);
  ExpectStartError(other, "not that of the certificate in " + Path("certificate"));
  server_identity_.WriteKey(other, "w", "password");
  ExpectStartError(other, "no unencrypted private key in PEM form");

  options_.tls.key_file = Path("key");
  options_.tls.client_ca_file = Path("ca");
  ExpectStartError(Path("ca"), "No such file");
  Write(Path("ca"), "no certificate");
  ExpectStartError(Path("ca"), "no certificate in PEM form");

  options_.tls = {"", Path("key"), ""};
  ExpectStartError(Path("key"), "needs a certificate file");
}

}  // namespace
}  // namespace fathom::http
