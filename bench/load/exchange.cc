#include "bench/load/exchange.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/read.hpp>
#include <utility>

namespace fathom::load {
namespace {

namespace asio = boost::asio;
namespace bhttp = boost::beast::http;

// What is kept of an answer that is no stream.
constexpr size_t kMaxErrorBytes = 4096;
constexpr size_t kReadBytes = size_t{64} << 10;
// Of a chunk's head, which no server needs.
constexpr size_t kMaxUnparsedBytes = size_t{64} << 10;

bool IsFromParser(const boost::system::error_code& error) {
  return error.category() == make_error_code(bhttp::error::bad_version).category() &&
         error != bhttp::error::end_of_stream && error != bhttp::error::partial_message;
}

std::string Cause(const boost::system::error_code& error) {
  const bool is_end = error == bhttp::error::end_of_stream ||
                      error == bhttp::error::partial_message || error == asio::error::eof;
  return is_end ? "the connection ended" : error.message();
}

}  // namespace

Exchange::Exchange(asio::io_context& context, const Target& target, bool keep_text,
                   LatencyHistogram& chunk_times, OnDone on_done)
    : context_(context),
      target_(target),
      chunk_times_(chunk_times),
      on_done_(std::move(on_done)),
      answer_(target.endpoint, keep_text) {}

void Exchange::Start(std::string_view body, std::unique_ptr<Socket> kept) {
  request_ = target_.head + std::to_string(body.size()) + "\r\n\r\n";
  request_ += body;
  outcome_.start = last_activity_ = Clock::now();
  is_kept_ = kept != nullptr;
  socket_ = std::move(kept);
  if (is_kept_) {
    Send();
  } else {
    Connect();
  }
}

void Exchange::Stop(Outcome::Kind kind, std::string message) {
  if (failed_ || done_) return;
  failed_ = true;
  if (!ended_) {
    outcome_.kind = kind;
    outcome_.message = std::move(message);
  }
  ErrorCode ignored;
  socket_->close(ignored);
  asio::post(context_, [self = shared_from_this()] { self->Finish(); });
}

void Exchange::Connect() {
  socket_ = std::make_unique<Socket>(context_);
  socket_->async_connect(target_.address, [self = shared_from_this()](ErrorCode error) {
    if (self->failed_) return;
    if (error) return self->Fail(Outcome::Kind::kConnect, error.message());
    self->last_activity_ = Clock::now();
    ErrorCode ignored;
    self->socket_->set_option(asio::ip::tcp::no_delay(true), ignored);
    self->Send();
  });
}

void Exchange::Send() {
  // Reads at once: a server may refuse a body before it has taken it in. A failed write shows in
  // the read as well.
  asio::async_write(*socket_, asio::buffer(request_),
                    [self = shared_from_this()](ErrorCode, size_t) {});
  ReadHead();
}

void Exchange::ReadHead() {
  parser_.emplace();
  bhttp::async_read_header(
      *socket_, buffer_, *parser_,
      [self = shared_from_this()](ErrorCode error, size_t) { self->OnHead(error); });
}

void Exchange::OnHead(ErrorCode error) {
  if (failed_) return;
  last_activity_ = Clock::now();
  if (error) {
    if (IsFromParser(error)) return Fail(Outcome::Kind::kMalformed, error.message());
    // The server may close a kept connection at any time, also right now.
    if (std::exchange(is_kept_, false) && buffer_.size() == 0 && !parser_->got_some()) {
      return Connect();
    }
    return Broken(Cause(error) + " before an answer began");
  }
  const auto& head = parser_->get();
  outcome_.status = head.result_int();
  const std::string_view type = head[bhttp::field::content_type];
  is_stream_ = outcome_.status == 200;
  if (is_stream_ && !type.starts_with("text/event-stream")) {
    return Fail(Outcome::Kind::kMalformed,
                "no event stream but content type '" + std::string(type) + "'");
  }
  // A stream may be of any length: its bytes are taken out of the parser as they come.
  if (parser_->chunked()) parser_->body_limit(boost::none);
  parser_->eager(true);
  OnBytes({});  // what came with the head
}

// Not Beast's async_read_some: an eager parser makes it wait for the end of the message, one that
// is not takes two rounds per chunk.
void Exchange::ReadBody() {
  socket_->async_read_some(buffer_.prepare(kReadBytes),
                           [self = shared_from_this()](ErrorCode error, size_t num_bytes) {
                             self->buffer_.commit(num_bytes);
                             self->OnBytes(error);
                           });
}

void Exchange::OnBytes(ErrorCode error) {
  if (failed_) return;
  last_activity_ = Clock::now();
  ErrorCode parse_error;
  while (buffer_.size() > 0 && !parse_error && !parser_->is_done()) {
    buffer_.consume(parser_->put(buffer_.data(), parse_error));
  }
  if (parse_error == bhttp::error::need_more && buffer_.size() < kMaxUnparsedBytes) {
    parse_error = {};
  }
  if (error == asio::error::eof && !parse_error && !parser_->is_done()) {
    error = {};
    parser_->put_eof(parse_error);
  }
  if (parse_error) error = parse_error;
  std::string& bytes = parser_->get().body();
  if (is_stream_) {
    const Status status =
        events_.Push(bytes, [this](std::string_view, std::string_view data) { TakeEvent(data); });
    if (failed_) return;
    if (!status.ok()) return Fail(Outcome::Kind::kMalformed, status.message());
  } else {
    outcome_.message.append(bytes, 0, kMaxErrorBytes - outcome_.message.size());
  }
  bytes.clear();
  const bool is_over = error || parser_->is_done();
  if (!is_over) return ReadBody();
  if (!is_stream_) return Fail(Outcome::Kind::kStatus, ErrorMessage(outcome_.message));
  if (ended_) return Finish();
  if (IsFromParser(error)) return Fail(Outcome::Kind::kMalformed, error.message());
  Broken((error ? Cause(error) : std::string("the answer ended")) +
         (events_.is_midway() ? " in the middle of an event" : " before the stream's end mark"));
}

void Exchange::TakeEvent(std::string_view data) {
  if (failed_ || ended_) return;
  switch (answer_.Read(data)) {
    case AnswerReader::Saw::kNothing:
      return;
    case AnswerReader::Saw::kContent:
      if (outcome_.num_chunks++ == 0) {
        outcome_.first_chunk = last_activity_;
      } else {
        chunk_times_.Add(last_activity_ - outcome_.last_chunk);
      }
      outcome_.last_chunk = last_activity_;
      return;
    case AnswerReader::Saw::kEnd:
      ended_ = true;
      outcome_.end = last_activity_;
      return;
    case AnswerReader::Saw::kError:
      return Fail(Outcome::Kind::kStreamError, answer_.error());
    case AnswerReader::Saw::kMalformed:
      return Fail(Outcome::Kind::kMalformed, "an event is no JSON object");
  }
}

void Exchange::Broken(const std::string& what) { Fail(Outcome::Kind::kDisconnected, what); }

void Exchange::Fail(Outcome::Kind kind, std::string message) {
  failed_ = true;
  outcome_.kind = kind;
  outcome_.message = std::move(message);
  Finish();
}

void Exchange::Finish() {
  if (std::exchange(done_, true)) return;
  if (!ended_) outcome_.end = last_activity_;
  outcome_.usage = answer_.usage();
  outcome_.text = answer_.text();
  const bool is_clean = parser_ && parser_->is_done() && parser_->keep_alive() &&
                        buffer_.size() == 0 && socket_->is_open();
  if (!is_clean) socket_.reset();
  std::exchange(on_done_, nullptr)(std::move(outcome_), std::move(socket_));
}

}  // namespace fathom::load
