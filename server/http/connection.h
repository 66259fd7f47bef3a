// Connection: one accepted socket, from its first byte to its close. Internal to server/http.
//
// Everything below "strand only" runs on the connection's strand. A connection is in one phase at a
// time: (handshake ->) idle -> reading -> answering -> idle ..., or lingering -> closed. While it
// is idle or answers, one read stays pending ("monitor"): its end of file is how a client that left
// is noticed; bytes that it brings are the next request's.
#pragma once

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/body_budget.h"
#include "server/http/http_server.h"
#include "server/http/leased_body.h"
#include "server/http/stream.h"

namespace fathom::http {

namespace asio = boost::asio;
namespace beast = boost::beast;
using ErrorCode = boost::system::error_code;
using Clock = std::chrono::steady_clock;

class Connection;

// Shared by the server and its connections; the last connection or writer frees it, because writers
// may outlive the server.
struct Core {
  explicit Core(HttpOptions o)
      : options(std::move(o)),
        context(options.io_threads),
        body_budget(std::make_shared<BodyBudget>(
            std::max(options.max_total_body_bytes, options.max_body_bytes))) {}
  HttpOptions options;
  std::unique_ptr<asio::ssl::context> tls;  // null: plain HTTP; set before the first connection
  asio::io_context context;
  const std::shared_ptr<BodyBudget> body_budget;  // last owner: this or a lease

  std::mutex mutex;  // guards what follows
  std::condition_variable idle;
  std::map<uint64_t, std::weak_ptr<Connection>> connections;
  uint64_t next_id = 0;
  bool draining = false;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Socket = Stream::Socket;  // its executor is the strand

  Connection(std::shared_ptr<Core> core, uint64_t id, Socket socket);

  // Any thread. False once closed; the task is dropped then. A closed connection posts nothing, so
  // the I/O threads run out of work at Stop.
  bool Post(std::function<void()> task);
  // As Post, but at once when called on the strand.
  bool Run(std::function<void()> task);
  // Whether the caller runs on it.
  bool IsOnStrand();

  // Strand only.
  void Start();
  void Drain();
  void Close();

  // Strand only; what the writer of request `serial` asks for. Stale serials are ignored.
  void Send(uint64_t serial, Response response);
  void StartStream(uint64_t serial, const Response& head);
  void Write(uint64_t serial, std::string_view bytes);
  void End(uint64_t serial);
  void Abandon(uint64_t serial);
  void SetOnClosed(uint64_t serial, std::function<void()> callback);
  void SetOnSilence(uint64_t serial, std::chrono::milliseconds interval,
                    std::function<void()> callback);

 private:
  enum class Phase {
    kHandshake,
    kIdle,
    kReadingHead,
    kReadingBody,
    kAnswering,
    kLingering,
    kClosed
  };
  using Parser = beast::http::request_parser<LeasedBody>;

  void Leave();  // the last step of Close, once nothing reads
  void BeginRequest();
  void ReadHead();
  void OnHead(ErrorCode error);
  void ReadBody();
  void OnBody(ErrorCode error);
  void Dispatch();
  void Reject(int status, std::string_view message);
  void RejectReadError(ErrorCode error);
  void RejectForMemory();
  void Monitor();
  void OnMonitor(ErrorCode error, size_t num_bytes);
  void QueueHead(const Response& response, std::optional<size_t> content_length);
  void FinishAnswer();
  void WriteAtOnce();
  void Flush();
  void OnWritten(ErrorCode error);
  void Linger();
  void ReadLingering();
  void ArmReadTimer(std::chrono::milliseconds timeout);
  void ArmWriteTimer();
  void ArmSilenceTimer();
  void Log(bool client_left);
  [[nodiscard]] bool IsCurrent(uint64_t serial) const {
    return serial == serial_ && phase_ == Phase::kAnswering && !answer_done_;
  }

  std::shared_ptr<Core> core_;  // first: the socket and timers below refer to its contexts
  const uint64_t id_;
  Stream stream_;
  asio::steady_timer read_timer_, write_timer_, silence_timer_;
  beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  Request request_;           // the head, until it goes to the handler
  HeaderList extra_headers_;  // of HttpOptions::response_headers

  std::mutex mutex_;  // guards closed_
  bool closed_ = false;

  Phase phase_ = Phase::kIdle;
  uint64_t serial_ = 0;  // of the current request
  bool draining_ = false;
  bool timed_out_ = false;
  bool monitoring_ = false;
  bool reading_ = false;  // an operation of Beast holds parser_
  bool is_head_request_ = false;
  bool is_http_1_0_ = false;
  bool keep_alive_ = false;
  bool answer_begun_ = false;
  bool answer_done_ = false;
  bool chunked_ = false;
  bool is_stream_ = false;
  bool writing_ = false;
  bool logged_ = false;
  bool rejected_ = false;        // answered before the request was read
  std::string out_, in_flight_;  // waiting bytes, and those of the pending write
  std::function<void()> on_closed_;
  std::function<void()> on_silence_;
  std::chrono::milliseconds silence_interval_{0};
  Clock::time_point last_write_;
  Clock::time_point started_;
  size_t lingered_bytes_ = 0;
  std::string linger_scratch_;
  AccessRecord access_;
};

}  // namespace fathom::http
