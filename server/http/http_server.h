// HttpServer: a small HTTP/1.1 server (keep-alive, chunked answers, limits, time-outs) on
// Boost.Beast.
//
// It knows nothing about routes: every request goes to one handler. Requests that break the
// protocol or a limit are answered here, in the handler's error format. All methods may be called
// from any thread but the server's own.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "server/http/message.h"

namespace fathom::http {

// One per request, for the access log.
struct AccessRecord {
  std::string method;  // empty where the request line could not be read
  std::string path;
  int status = 0;  // 0: the client left before an answer began
  uint64_t sent_bytes = 0;
  std::chrono::milliseconds duration{0};
  bool client_left = false;  // before the answer was complete
};

// PEM files. No certificate: plain HTTP.
struct TlsOptions {
  std::string certificate_file;  // with the chain that leads to the authority, if any
  std::string key_file;          // not encrypted; empty: it is in the certificate's file
  std::string client_ca_file;    // clients must show a certificate of it; empty: none
};

struct HttpOptions {
  std::string host =
      "127.0.0.1";  // address or name; the first address that it resolves to is bound
  // Path of a socket to listen at in place of host and port; its mode is what the umask leaves.
  std::string unix_socket;
  TlsOptions tls;
  uint16_t port = 8000;  // 0: any free port, see HttpServer::port
  int io_threads = 2;
  int worker_threads = 1;  // for PostWork
  int max_connections = 1024;
  size_t max_body_bytes = size_t{64} << 20;
  // Of all requests together that are being read, parsed or waiting for it; more are refused with
  // 503. Raised to max_body_bytes where it is less.
  size_t max_total_body_bytes = size_t{1} << 30;
  size_t max_header_bytes = size_t{16} << 10;
  int max_header_fields = 128;
  size_t max_pending_bytes = size_t{8} << 20;  // answer bytes waiting for a slow reader of a stream
  std::chrono::milliseconds idle_timeout{75'000};  // between requests of a kept connection
  // First to last byte of a head, and for a TLS handshake.
  std::chrono::milliseconds header_timeout{15'000};
  std::chrono::milliseconds body_timeout{120'000};  // end of head to end of body
  std::chrono::milliseconds write_timeout{60'000};  // for one write to a client that does not read

  // Runs on a connection's strand; must not block (PostWork does what takes long).
  std::function<void(Request, std::shared_ptr<ResponseWriter>)> handler;
  // The answer to a request that never reached the handler: 400, 408, 413, 431, 501, 503. An empty path
  // where none could be read.
  std::function<Response(int status, std::string_view path, std::string_view message)>
      error_response;
  // May be empty. Headers that the answer to this request gets besides its own, wherever it is
  // made. Of the request only the head is there, or what could be read of it. As `handler`.
  std::function<HeaderList(const Request&)> response_headers;
  // May be empty. Runs on I/O threads.
  std::function<void(const AccessRecord&)> access_log;
};

class HttpServer {
 public:
  // Binds and serves. The error says which address could not be bound, or which file of TLS could
  // not be used, and why.
  static Result<std::unique_ptr<HttpServer>> Start(HttpOptions options);
  ~HttpServer();  // Stop()
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  [[nodiscard]] const std::string& address() const;  // as bound, "127.0.0.1", or the path
  [[nodiscard]] int port() const;                    // 0 of a Unix socket
  [[nodiscard]] int num_connections() const;

  // Runs `task` on a worker thread. Dropped after Stop.
  void PostWork(std::function<void()> task);

  // Stops accepting and closes idle connections; the others close after their answer.
  void Drain();
  // True once no connection is left, false after `timeout`.
  bool WaitUntilIdle(std::chrono::milliseconds timeout);
  // Drains, closes what is left and joins the threads. Writers that somebody still holds stay valid
  // and drop what they get.
  void Stop();

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace fathom::http
