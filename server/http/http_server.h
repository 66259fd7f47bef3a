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

struct HttpOptions {
  std::string host =
      "127.0.0.1";       // address or name; the first address that it resolves to is bound
  uint16_t port = 8000;  // 0: any free port, see HttpServer::port
  int io_threads = 2;
  int worker_threads = 1;  // for PostWork
  int max_connections = 1024;
  size_t max_body_bytes = size_t{64} << 20;
  size_t max_header_bytes = size_t{16} << 10;
  size_t max_pending_bytes = size_t{8} << 20;  // answer bytes waiting for a slow reader of a stream
  std::chrono::milliseconds idle_timeout{75'000};    // between requests of a kept connection
  std::chrono::milliseconds header_timeout{15'000};  // first to last byte of a head
  std::chrono::milliseconds body_timeout{120'000};   // end of head to end of body
  std::chrono::milliseconds write_timeout{60'000};   // for one write to a client that does not read

  // Runs on a connection's strand; must not block (PostWork does what takes long).
  std::function<void(Request, std::shared_ptr<ResponseWriter>)> handler;
  // The answer to a request that never reached the handler: 400, 408, 413, 431, 501.
  std::function<Response(int status, std::string_view message)> error_response;
  // May be empty. Runs on I/O threads.
  std::function<void(const AccessRecord&)> access_log;
};

class HttpServer {
 public:
  // Binds and serves. The error says which address could not be bound and why.
  static Result<std::unique_ptr<HttpServer>> Start(HttpOptions options);
  ~HttpServer();  // Stop()
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  [[nodiscard]] const std::string& address() const;  // as bound, "127.0.0.1"
  [[nodiscard]] int port() const;
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
