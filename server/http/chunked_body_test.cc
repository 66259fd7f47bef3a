// Chunked requests that try to be more than their body.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "server/http/http_server.h"
#include "server/http/test_client.h"

namespace fathom::http {
namespace {

constexpr char kHead[] = "POST /echo HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: ";

class ChunkedBody : public ::testing::Test {
 protected:
  ChunkedBody() {
    HttpOptions options;
    options.port = 0;
    options.handler = [](Request request, std::shared_ptr<ResponseWriter> writer) {
      writer->Send({200, "text/plain", {}, request.body});
    };
    options.error_response = [](int status, auto&&...) {
      return Response{status, "text/plain", {}, "refused"};
    };
    auto server = HttpServer::Start(std::move(options));
    EXPECT_TRUE(server.ok()) << server.status().ToString();
    if (server.ok()) server_ = std::move(server).value();
  }

  std::unique_ptr<HttpServer> server_;
};

TEST_F(ChunkedBody, ExtensionsAndTrailersAreIgnored) {
  TestClient client(server_->port());
  client.SendRaw(std::string(kHead) + "Chunked\r\n\r\n5;a=b\r\nhello\r\n0;c\r\nX: y\r\n\r\n");
  const auto reply = client.ReadReply();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body, "hello");
  // The connection is in step: the next request is one.
  EXPECT_EQ(client.Ask("GET", "/").status, 200);
}

TEST_F(ChunkedBody, AnExtensionWithoutEndIsRefused) {
  TestClient client(server_->port());
  client.SendRaw(std::string(kHead) + "chunked\r\n\r\n5;" + std::string(300 << 10, 'a'));
  EXPECT_EQ(client.ReadReply().status, 431);
}

TEST_F(ChunkedBody, ATrailerWithoutEndIsRefused) {
  std::string fields;
  while (fields.size() < size_t{300} << 10) fields += "X: yyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n";
  TestClient client(server_->port());
  client.SendRaw(std::string(kHead) + "chunked\r\n\r\n5\r\nhello\r\n0\r\n" + fields);
  EXPECT_EQ(client.ReadReply().status, 431);
}

TEST_F(ChunkedBody, OtherCodingsAreRefusedAndTheirBodyIsNoRequest) {
  for (const char* coding : {"gzip", "gzip, chunked", "xchunked", "identity"}) {
    TestClient client(server_->port());
    client.SendRaw(kHead + std::string(coding) +
                   "\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_EQ(client.ReadReply().status, 501) << coding;
    EXPECT_EQ(client.ReadReply().status, 0) << coding;
  }
}

}  // namespace
}  // namespace fathom::http
