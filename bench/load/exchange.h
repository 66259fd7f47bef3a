// Exchange: one request and its streamed answer on a socket. Internal to bench/load.
//
// Everything runs on one thread, that of the io_context. The callback comes exactly once, from the
// io_context, never from within Start or Stop.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "bench/load/answer_reader.h"
#include "bench/load/latency_histogram.h"
#include "bench/load/load_result.h"
#include "bench/load/sse_reader.h"

namespace fathom::load {

using Socket = boost::asio::ip::tcp::socket;

class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  struct Target {
    boost::asio::ip::tcp::endpoint address;
    Endpoint endpoint = Endpoint::kChat;
    std::string head;  // of every request, up to the value of Content-Length
  };
  // With the socket where it may serve another request, else null.
  using OnDone = std::function<void(Outcome, std::unique_ptr<Socket>)>;

  // `target` and `chunk_times` outlive the exchange. Times between chunks with content are added
  // to the latter.
  Exchange(boost::asio::io_context& context, const Target& target, bool keep_text,
           LatencyHistogram& chunk_times, OnDone on_done);

  // Sends `body` over `kept`, a connection that an earlier exchange left, or a new one if null.
  void Start(std::string_view body, std::unique_ptr<Socket> kept);
  // Ends it as `kind`, unless its answer is complete.
  void Stop(Outcome::Kind kind, std::string message);
  // When something last happened.
  [[nodiscard]] Clock::time_point last_activity() const { return last_activity_; }

 private:
  using ErrorCode = boost::system::error_code;
  using Parser = boost::beast::http::response_parser<boost::beast::http::string_body>;

  void Connect();
  void Send();
  void ReadHead();
  void OnHead(ErrorCode error);
  void ReadBody();
  void OnBytes(ErrorCode error);
  void TakeEvent(std::string_view data);
  void Broken(const std::string& what);
  void Fail(Outcome::Kind kind, std::string message);
  void Finish();

  boost::asio::io_context& context_;
  const Target& target_;
  LatencyHistogram& chunk_times_;
  OnDone on_done_;
  std::unique_ptr<Socket> socket_;
  std::string request_;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  SseReader events_;
  AnswerReader answer_;
  Outcome outcome_;
  Clock::time_point last_activity_;
  bool is_kept_ = false;    // the connection had an earlier request
  bool is_stream_ = false;  // the answer's form
  bool ended_ = false;      // its end mark was seen
  bool failed_ = false;
  bool done_ = false;
};

}  // namespace fathom::load
