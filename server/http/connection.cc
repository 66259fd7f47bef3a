#include "server/http/connection.h"

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>
#include <charconv>

#include "server/http/request_head.h"

namespace fathom::http {
namespace {

namespace bhttp = beast::http;

// The next request's bytes that are taken in while an answer is produced. Beyond them the socket is
// left alone, and a client that left is noticed at the next write.
constexpr size_t kMaxReadAhead = size_t{64} << 10;
// What is held of a request while the parser waits for the end of a part of it, besides what a head
// may have. The parser itself bounds heads and bodies, but neither the trailer of a chunked body
// nor a chunk's extension.
constexpr size_t kMaxUnparsed = size_t{128} << 10;
// What is read and dropped after an early answer, so that closing with unread bytes does not reset
// the connection before the client has read that answer.
constexpr size_t kMaxLingerBytes = size_t{128} << 20;
constexpr std::chrono::milliseconds kLingerTimeout{2'000};

// Hands the writer's calls to the connection's strand. Holds its connection; see Core.
class Exchange final : public ResponseWriter {
 public:
  Exchange(std::shared_ptr<Connection> connection, uint64_t serial)
      : connection_(std::move(connection)), serial_(serial) {}
  ~Exchange() override {
    connection_->Run([c = connection_, s = serial_] { c->Abandon(s); });
  }

  void Send(Response response) override {
    connection_->Run([c = connection_, s = serial_, r = std::move(response)]() mutable {
      c->Send(s, std::move(r));
    });
  }
  void StartStream(Response head) override {
    connection_->Run([c = connection_, s = serial_, h = std::move(head)] { c->StartStream(s, h); });
  }
  void Write(std::string_view bytes) override {
    // Once per token, and nearly always there already: no copy, no task.
    if (connection_->IsOnStrand()) return connection_->Write(serial_, bytes);
    connection_->Post([c = connection_, s = serial_, b = std::string(bytes)] { c->Write(s, b); });
  }
  void End() override {
    connection_->Run([c = connection_, s = serial_] { c->End(s); });
  }
  bool Post(std::function<void()> task) override { return connection_->Post(std::move(task)); }
  void SetOnClosed(std::function<void()> callback) override {
    const bool open =
        connection_->Run([c = connection_, s = serial_, callback] { c->SetOnClosed(s, callback); });
    if (!open) callback();
  }
  void SetOnSilence(std::chrono::milliseconds interval, std::function<void()> callback) override {
    connection_->Run([c = connection_, s = serial_, interval, callback = std::move(callback)] {
      c->SetOnSilence(s, interval, callback);
    });
  }

 private:
  std::shared_ptr<Connection> connection_;
  const uint64_t serial_;
};

}  // namespace

Connection::Connection(std::shared_ptr<Core> core, uint64_t id, Socket socket)
    : core_(std::move(core)),
      id_(id),
      stream_(std::move(socket), core_->tls.get()),
      read_timer_(stream_.get_executor()),
      write_timer_(stream_.get_executor()),
      silence_timer_(stream_.get_executor()) {
  buffer_.max_size(core_->options.max_header_bytes + kMaxUnparsed);
}

bool Connection::Post(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  if (closed_) return false;
  asio::post(stream_.get_executor(), std::move(task));
  return true;
}

bool Connection::IsOnStrand() {
  using Strand = asio::strand<asio::io_context::executor_type>;
  const auto* strand = stream_.get_executor().target<Strand>();
  return strand != nullptr && strand->running_in_this_thread();
}

bool Connection::Run(std::function<void()> task) {
  if (!IsOnStrand()) return Post(std::move(task));
  if (phase_ == Phase::kClosed) return false;
  task();
  return true;
}

void Connection::Start() {
  if (phase_ == Phase::kClosed) return;  // a drain came first
  if (!stream_.has_tls()) return BeginRequest();
  phase_ = Phase::kHandshake;
  ArmReadTimer(core_->options.header_timeout);
  stream_.AsyncHandshake([self = shared_from_this()](ErrorCode error) {
    if (self->phase_ != Phase::kHandshake) return;
    // Somebody who speaks something else, or does not trust the certificate: nothing to tell them.
    if (error) return self->Close();
    self->BeginRequest();
  });
}

void Connection::Drain() {
  draining_ = true;
  if (phase_ == Phase::kIdle || phase_ == Phase::kHandshake) Close();
}

void Connection::Close() {
  if (phase_ == Phase::kClosed) return;
  const bool unfinished = phase_ == Phase::kAnswering && !answer_done_;
  if (phase_ == Phase::kAnswering) Log(/*client_left=*/true);  // no effect once logged
  phase_ = Phase::kClosed;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  stream_.Close();
  read_timer_.cancel();
  write_timer_.cancel();
  silence_timer_.cancel();
  on_silence_ = nullptr;
  if (auto callback = std::exchange(on_closed_, nullptr); callback && unfinished) callback();
  if (!reading_) Leave();
}

void Connection::Leave() {
  parser_.reset();  // with its share of the body budget: a server without connections holds none
  const std::lock_guard lock(core_->mutex);
  core_->connections.erase(id_);
  if (core_->connections.empty()) core_->idle.notify_all();
}

// Reading.

void Connection::BeginRequest() {
  phase_ = Phase::kIdle;
  ++serial_;
  answer_begun_ = answer_done_ = chunked_ = is_stream_ = timed_out_ = false;
  is_head_request_ = is_http_1_0_ = keep_alive_ = logged_ = false;
  access_ = AccessRecord();
  request_ = Request();
  extra_headers_.clear();
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(core_->options.max_header_bytes));
  parser_->body_limit(core_->options.max_body_bytes);
  if (draining_) return Close();
  if (buffer_.size() > 0) return ReadHead();
  ArmReadTimer(core_->options.idle_timeout);
  if (!monitoring_) Monitor();
}

void Connection::ReadHead() {
  phase_ = Phase::kReadingHead;
  timed_out_ = false;
  started_ = Clock::now();
  ArmReadTimer(core_->options.header_timeout);
  reading_ = true;
  bhttp::async_read_header(
      stream_, buffer_, *parser_,
      [self = shared_from_this()](ErrorCode error, size_t) { self->OnHead(error); });
}

void Connection::OnHead(ErrorCode error) {
  reading_ = false;
  if (phase_ == Phase::kClosed) return Leave();
  if (phase_ != Phase::kReadingHead) return;
  const auto& head = parser_->get();
  request_ = HeadOf(head);
  if (error && error != bhttp::error::body_limit) {
    // The parser leaves what it could not take; a line is such until the next one begins.
    const auto rest = buffer_.cdata();
    const std::string_view bytes(static_cast<const char*>(rest.data()), rest.size());
    if (request_.path.empty()) {
      request_ = GuessHead(bytes);
    } else {
      GuessFields(bytes, &request_);
    }
  }
  access_.method = request_.method;
  access_.path = request_.path;
  if (core_->options.response_headers) extra_headers_ = core_->options.response_headers(request_);
  if (error) return RejectReadError(error);
  // Where the body ends cannot be told of other codings; to take them for no body would make a
  // request of it.
  if (head.count(bhttp::field::transfer_encoding) > 0 &&
      LowerCase(head[bhttp::field::transfer_encoding]) != "chunked") {
    return Reject(501, "the only Transfer-Encoding that is understood is chunked");
  }
  if (request_.headers.size() > static_cast<size_t>(core_->options.max_header_fields)) {
    return Reject(431, "the request has more than " +
                           std::to_string(core_->options.max_header_fields) + " header fields");
  }
  // What cannot fit is said before it is sent; what does is counted as it arrives.
  if (!core_->body_budget->HasRoom(parser_->content_length().value_or(0))) return RejectForMemory();
  is_head_request_ = head.method() == bhttp::verb::head;
  is_http_1_0_ = head.version() == 10;
  keep_alive_ = head.keep_alive();
  phase_ = Phase::kReadingBody;
  ArmReadTimer(core_->options.body_timeout);
  if (LowerCase(head[bhttp::field::expect]) != "100-continue" || parser_->is_done()) {
    return ReadBody();
  }
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(stream_, asio::buffer(kContinue),
                    [self = shared_from_this()](ErrorCode write_error, size_t) {
                      if (self->phase_ != Phase::kReadingBody) return;
                      if (write_error) return self->Close();
                      self->ReadBody();
                    });
}

void Connection::ReadBody() {
  parser_->get().body().lease = std::make_shared<BodyLease>(core_->body_budget);
  reading_ = true;
  bhttp::async_read(stream_, buffer_, *parser_,
                    [self = shared_from_this()](ErrorCode error, size_t) { self->OnBody(error); });
}

void Connection::OnBody(ErrorCode error) {
  reading_ = false;
  if (phase_ == Phase::kClosed) return Leave();
  if (phase_ != Phase::kReadingBody) return;
  if (error) return RejectReadError(error);
  Dispatch();
}

void Connection::Dispatch() {
  read_timer_.cancel();
  phase_ = Phase::kAnswering;
  request_.body = std::move(parser_->get().body().text);
  request_.body_lease = std::move(parser_->get().body().lease);
  parser_.reset();
  Monitor();
  core_->options.handler(std::exchange(request_, {}),
                         std::make_shared<Exchange>(shared_from_this(), serial_));
}

void Connection::RejectReadError(ErrorCode error) {
  if (error == bhttp::error::body_limit) {
    return Reject(
        413, "the body is larger than " + std::to_string(core_->options.max_body_bytes) + " bytes");
  }
  if (error == bhttp::error::header_limit) {
    return Reject(431, "the request line and headers are larger than " +
                           std::to_string(core_->options.max_header_bytes) + " bytes");
  }
  if (error == boost::system::errc::not_enough_memory) return RejectForMemory();
  if (error == bhttp::error::buffer_overflow) {
    return Reject(431, "the trailer or a chunk's extension is too long");
  }
  if (timed_out_) return Reject(408, "the request did not arrive in time");
  // Beast's own errors are about what the client sent; all others mean that it is gone.
  if (error == bhttp::error::end_of_stream || error == bhttp::error::partial_message ||
      error.category() != make_error_code(bhttp::error::bad_version).category()) {
    return Close();
  }
  Reject(400, "malformed HTTP request: " + error.message());
}

void Connection::RejectForMemory() {
  Reject(503, "the requests that are being read fill the server's memory for them");
}

void Connection::Reject(int status, std::string_view message) {
  read_timer_.cancel();
  phase_ = Phase::kAnswering;
  rejected_ = true;
  keep_alive_ = false;  // what follows on the socket cannot be told from the rest of this request
  parser_.reset();      // and what it holds of a body
  Send(serial_, core_->options.error_response(status, access_.path, message));
}

void Connection::Monitor() {
  if (buffer_.size() >= kMaxReadAhead) return;
  monitoring_ = true;
  stream_.async_read_some(buffer_.prepare(4096),
                          [self = shared_from_this()](ErrorCode error, size_t num_bytes) {
                            self->OnMonitor(error, num_bytes);
                          });
}

void Connection::OnMonitor(ErrorCode error, size_t num_bytes) {
  monitoring_ = false;
  if (phase_ != Phase::kAnswering && phase_ != Phase::kIdle) return;
  buffer_.commit(num_bytes);
  if (error && error != asio::error::operation_aborted) return Close();
  if (phase_ == Phase::kIdle) return ReadHead();
  if (answer_done_ && !writing_) return BeginRequest();  // cancelled by OnWritten
  if (!error) Monitor();
}

// Answering.

void Connection::Send(uint64_t serial, Response response) {
  if (!IsCurrent(serial) || answer_begun_) return;
  QueueHead(response, response.body.size());
  if (!is_head_request_) out_ += response.body;
  FinishAnswer();
}

void Connection::StartStream(uint64_t serial, const Response& head) {
  if (!IsCurrent(serial) || answer_begun_) return;
  is_stream_ = true;
  chunked_ = !is_http_1_0_;
  if (!chunked_) keep_alive_ = false;  // the end of the connection is the end of the body
  QueueHead(head, std::nullopt);
  Flush();
}

void Connection::Write(uint64_t serial, std::string_view bytes) {
  // An empty chunk would end the body.
  if (!IsCurrent(serial) || !is_stream_ || bytes.empty() || is_head_request_) return;
  if (out_.size() + bytes.size() > core_->options.max_pending_bytes) return Close();
  last_write_ = Clock::now();
  if (chunked_) {
    std::array<char, 16> hex{};
    const auto end = std::to_chars(hex.data(), hex.data() + hex.size(), bytes.size(), 16).ptr;
    out_.append(hex.data(), end).append("\r\n").append(bytes).append("\r\n");
  } else {
    out_ += bytes;
  }
  if (!writing_) WriteAtOnce();
  Flush();
}

void Connection::End(uint64_t serial) {
  if (!IsCurrent(serial) || !is_stream_) return;
  if (chunked_ && !is_head_request_) out_ += "0\r\n\r\n";
  FinishAnswer();
}

void Connection::Abandon(uint64_t serial) {
  if (IsCurrent(serial)) Close();
}

void Connection::SetOnClosed(uint64_t serial, std::function<void()> callback) {
  if (phase_ == Phase::kClosed) return callback();
  if (IsCurrent(serial)) on_closed_ = std::move(callback);
}

void Connection::SetOnSilence(uint64_t serial, std::chrono::milliseconds interval,
                              std::function<void()> callback) {
  if (!IsCurrent(serial)) return;
  on_silence_ = std::move(callback);
  silence_interval_ = interval;
  last_write_ = Clock::now();
  ArmSilenceTimer();
}

void Connection::QueueHead(const Response& response, std::optional<size_t> content_length) {
  answer_begun_ = true;
  access_.status = response.status;
  last_write_ = Clock::now();
  if (draining_) keep_alive_ = false;
  const std::string_view reason =
      bhttp::obsolete_reason(bhttp::int_to_status(static_cast<unsigned>(response.status)));
  out_ += is_http_1_0_ ? "HTTP/1.0 " : "HTTP/1.1 ";
  out_ += std::to_string(response.status);
  out_.append(" ").append(reason).append("\r\n");
  auto add = [this](std::string_view name, std::string_view value) {
    out_.append(name).append(": ").append(value).append("\r\n");
  };
  if (!response.content_type.empty()) add("Content-Type", response.content_type);
  for (const auto& [name, value] : response.headers) add(name, value);
  for (const auto& [name, value] : extra_headers_) add(name, value);
  if (content_length) add("Content-Length", std::to_string(*content_length));
  if (!content_length && chunked_) add("Transfer-Encoding", "chunked");
  if (!keep_alive_) add("Connection", "close");
  if (keep_alive_ && is_http_1_0_) add("Connection", "keep-alive");
  out_ += "\r\n";
}

void Connection::FinishAnswer() {
  answer_done_ = true;
  on_closed_ = nullptr;
  on_silence_ = nullptr;
  silence_timer_.cancel();
  Flush();
  if (!writing_) OnWritten({});  // all bytes went out before
}

// Sends what the socket takes without waiting, as it nearly always takes a token: an asynchronous
// write costs a timer and two more tasks on the strand. Whatever is left, and errors, are Flush's.
void Connection::WriteAtOnce() {
  const size_t num_bytes = stream_.WriteNow(asio::buffer(out_));
  access_.sent_bytes += num_bytes;
  out_.erase(0, num_bytes);
}

void Connection::Flush() {
  if (writing_ || out_.empty()) return;
  writing_ = true;
  in_flight_.clear();
  in_flight_.swap(out_);
  ArmWriteTimer();
  asio::async_write(stream_, asio::buffer(in_flight_),
                    [self = shared_from_this()](ErrorCode error, size_t num_bytes) {
                      self->access_.sent_bytes += num_bytes;
                      self->OnWritten(error);
                    });
}

void Connection::OnWritten(ErrorCode error) {
  writing_ = false;
  write_timer_.cancel();
  if (phase_ != Phase::kAnswering) return;
  if (error) return Close();
  if (!out_.empty()) return Flush();
  if (!answer_done_) return;
  Log(/*client_left=*/false);
  if (rejected_) return Linger();
  if (!keep_alive_ || draining_) return stream_.has_tls() ? Linger() : Close();
  if (!monitoring_ || buffer_.size() == 0) return BeginRequest();
  // A part of the next request is here. Both the pending read and a parser would read the socket:
  // end the former first.
  stream_.Cancel();
}

void Connection::Linger() {
  phase_ = Phase::kLingering;
  ArmReadTimer(kLingerTimeout);
  stream_.AsyncShutdownSend([self = shared_from_this()] {
    if (self->phase_ != Phase::kLingering) return;
    self->linger_scratch_.resize(64 << 10);
    self->ReadLingering();
  });
}

void Connection::ReadLingering() {
  stream_.AsyncReadRaw(asio::buffer(linger_scratch_),
                       [self = shared_from_this()](ErrorCode error, size_t num_bytes) {
                         self->lingered_bytes_ += num_bytes;
                         if (error || self->lingered_bytes_ > kMaxLingerBytes) {
                           return self->Close();
                         }
                         self->ReadLingering();
                       });
}

// Timers. A timer that was armed anew may still deliver its old expiry; its time tells.

void Connection::ArmReadTimer(std::chrono::milliseconds timeout) {
  read_timer_.expires_after(timeout);
  read_timer_.async_wait([self = shared_from_this()](ErrorCode error) {
    if (error || self->read_timer_.expiry() > Clock::now()) return;
    const Phase phase = self->phase_;
    if (phase == Phase::kHandshake || phase == Phase::kIdle || phase == Phase::kLingering) {
      return self->Close();
    }
    if (phase != Phase::kReadingHead && phase != Phase::kReadingBody) return;
    self->timed_out_ = true;
    self->stream_.Cancel();  // the read ends and RejectReadError answers
  });
}

void Connection::ArmWriteTimer() {
  write_timer_.expires_after(core_->options.write_timeout);
  write_timer_.async_wait([self = shared_from_this()](ErrorCode error) {
    if (error || self->write_timer_.expiry() > Clock::now() || !self->writing_) return;
    self->Close();
  });
}

void Connection::ArmSilenceTimer() {
  silence_timer_.expires_at(last_write_ + silence_interval_);
  silence_timer_.async_wait([self = shared_from_this()](ErrorCode error) {
    if (error || !self->on_silence_) return;
    if (Clock::now() - self->last_write_ >= self->silence_interval_) {
      self->last_write_ = Clock::now();
      // A copy: the callback may end the answer, which clears the member.
      const auto callback = self->on_silence_;
      callback();
    }
    if (self->on_silence_) self->ArmSilenceTimer();
  });
}

void Connection::Log(bool client_left) {
  if (!core_->options.access_log || logged_) return;
  logged_ = true;
  access_.client_left = client_left;
  access_.duration = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - started_);
  core_->options.access_log(access_);
}

}  // namespace fathom::http
