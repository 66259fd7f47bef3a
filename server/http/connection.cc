#include "server/http/connection.h"

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>
#include <charconv>

namespace fathom::http {
namespace {

namespace bhttp = beast::http;

// The next request's bytes that are taken in while an answer is produced. Beyond them the socket is
// left alone, and a client that left is noticed at the next write.
constexpr size_t kMaxReadAhead = size_t{64} << 10;
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

std::string LowerCase(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

std::string_view WithoutQuery(std::string_view target) {
  return target.substr(0, target.find('?'));
}

}  // namespace

Connection::Connection(std::shared_ptr<Core> core, uint64_t id, Socket socket)
    : core_(std::move(core)),
      id_(id),
      socket_(std::move(socket)),
      read_timer_(socket_.get_executor()),
      write_timer_(socket_.get_executor()),
      silence_timer_(socket_.get_executor()) {}

bool Connection::Post(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  if (closed_) return false;
  asio::post(socket_.get_executor(), std::move(task));
  return true;
}

bool Connection::IsOnStrand() {
  using Strand = asio::strand<asio::io_context::executor_type>;
  const auto* strand = socket_.get_executor().target<Strand>();
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
  ErrorCode ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket_.non_blocking(true, ignored);  // for WriteAtOnce
  BeginRequest();
}

void Connection::Drain() {
  draining_ = true;
  if (phase_ == Phase::kIdle) Close();
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
  ErrorCode ignored;
  socket_.close(ignored);
  read_timer_.cancel();
  write_timer_.cancel();
  silence_timer_.cancel();
  on_silence_ = nullptr;
  if (auto callback = std::exchange(on_closed_, nullptr); callback && unfinished) callback();
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
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(core_->options.max_header_bytes));
  parser_->body_limit(core_->options.max_body_bytes);
  if (draining_) return Close();
  if (buffer_.size() > 0) return ReadHead();
  ArmReadTimer(core_->options.idle_timeout);
  socket_.async_wait(Socket::wait_read, [self = shared_from_this()](ErrorCode error) {
    if (self->phase_ != Phase::kIdle) return;
    if (error) return self->Close();
    self->ReadHead();
  });
}

void Connection::ReadHead() {
  phase_ = Phase::kReadingHead;
  timed_out_ = false;
  started_ = Clock::now();
  ArmReadTimer(core_->options.header_timeout);
  bhttp::async_read_header(
      socket_, buffer_, *parser_,
      [self = shared_from_this()](ErrorCode error, size_t) { self->OnHead(error); });
}

void Connection::OnHead(ErrorCode error) {
  if (phase_ != Phase::kReadingHead) return;
  const auto& head = parser_->get();
  access_.method = std::string(head.method_string());
  access_.path = std::string(WithoutQuery(head.target()));
  if (error) return RejectReadError(error);
  is_head_request_ = head.method() == bhttp::verb::head;
  is_http_1_0_ = head.version() == 10;
  keep_alive_ = head.keep_alive();
  phase_ = Phase::kReadingBody;
  ArmReadTimer(core_->options.body_timeout);
  if (LowerCase(head[bhttp::field::expect]) != "100-continue" || parser_->is_done()) {
    return ReadBody();
  }
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(socket_, asio::buffer(kContinue),
                    [self = shared_from_this()](ErrorCode write_error, size_t) {
                      if (self->phase_ != Phase::kReadingBody) return;
                      if (write_error) return self->Close();
                      self->ReadBody();
                    });
}

void Connection::ReadBody() {
  bhttp::async_read(socket_, buffer_, *parser_,
                    [self = shared_from_this()](ErrorCode error, size_t) { self->OnBody(error); });
}

void Connection::OnBody(ErrorCode error) {
  if (phase_ != Phase::kReadingBody) return;
  if (error) return RejectReadError(error);
  Dispatch();
}

void Connection::Dispatch() {
  read_timer_.cancel();
  phase_ = Phase::kAnswering;
  auto message = parser_->release();
  parser_.reset();
  Request request;
  request.method = access_.method;
  request.path = access_.path;
  for (const auto& field : message) {
    request.headers.emplace_back(LowerCase(field.name_string()), std::string(field.value()));
  }
  request.body = std::move(message.body());
  Monitor();
  core_->options.handler(std::move(request),
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
  if (timed_out_) return Reject(408, "the request did not arrive in time");
  // Beast's own errors are about what the client sent; all others mean that it is gone.
  if (error == bhttp::error::end_of_stream || error == bhttp::error::partial_message ||
      error.category() != make_error_code(bhttp::error::bad_version).category()) {
    return Close();
  }
  Reject(400, "malformed HTTP request: " + error.message());
}

void Connection::Reject(int status, std::string_view message) {
  read_timer_.cancel();
  phase_ = Phase::kAnswering;
  rejected_ = true;
  keep_alive_ = false;  // what follows on the socket cannot be told from the rest of this request
  Send(serial_, core_->options.error_response(status, message));
}

void Connection::Monitor() {
  if (buffer_.size() >= kMaxReadAhead) return;
  monitoring_ = true;
  socket_.async_read_some(buffer_.prepare(4096),
                          [self = shared_from_this()](ErrorCode error, size_t num_bytes) {
                            self->OnMonitor(error, num_bytes);
                          });
}

void Connection::OnMonitor(ErrorCode error, size_t num_bytes) {
  monitoring_ = false;
  if (phase_ != Phase::kAnswering) return;
  buffer_.commit(num_bytes);
  if (error && error != asio::error::operation_aborted) return Close();
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
  ErrorCode error;
  const size_t num_bytes = socket_.write_some(asio::buffer(out_), error);
  access_.sent_bytes += num_bytes;
  out_.erase(0, num_bytes);
}

void Connection::Flush() {
  if (writing_ || out_.empty()) return;
  writing_ = true;
  in_flight_.clear();
  in_flight_.swap(out_);
  ArmWriteTimer();
  asio::async_write(socket_, asio::buffer(in_flight_),
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
  if (!keep_alive_ || draining_) return Close();
  // Both the pending read and a request parser would read the socket: end the former first.
  if (!monitoring_) return BeginRequest();
  ErrorCode ignored;
  socket_.cancel(ignored);
}

void Connection::Linger() {
  phase_ = Phase::kLingering;
  ErrorCode ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  ArmReadTimer(kLingerTimeout);
  linger_scratch_.resize(64 << 10);
  ReadLingering();
}

void Connection::ReadLingering() {
  socket_.async_read_some(asio::buffer(linger_scratch_),
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
    if (self->phase_ == Phase::kIdle || self->phase_ == Phase::kLingering) return self->Close();
    if (self->phase_ != Phase::kReadingHead && self->phase_ != Phase::kReadingBody) return;
    self->timed_out_ = true;
    ErrorCode ignored;
    self->socket_.cancel(ignored);  // the read ends and RejectReadError answers
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
