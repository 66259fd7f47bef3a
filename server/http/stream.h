// Stream: a connected socket, TCP or Unix, with TLS on it or without.
//
// Shaped as Boost.Asio's streams, so that its and Beast's algorithms read and write through it. One
// read and one write may be pending at a time. Single-threaded: the connection's strand. Internal
// to server/http.
#pragma once

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <optional>
#include <utility>

namespace fathom::http {

class Stream {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;
  using executor_type = Socket::executor_type;

  // `tls` null: none.
  Stream(Socket socket, boost::asio::ssl::context* tls) : socket_(std::move(socket)) {
    boost::system::error_code ignored;  // a Unix socket has no such option
    socket_.set_option(boost::asio::ip::tcp::no_delay(true), ignored);
    if (tls != nullptr) tls_.emplace(socket_, *tls);
  }

  const executor_type& get_executor() { return socket_.get_executor(); }
  [[nodiscard]] bool has_tls() const { return tls_.has_value(); }

  template <class Buffers, class Handler>
  void async_read_some(const Buffers& buffers, Handler&& handler) {
    if (tls_) {
      tls_->async_read_some(buffers, std::forward<Handler>(handler));
    } else {
      socket_.async_read_some(buffers, std::forward<Handler>(handler));
    }
  }

  template <class Buffers, class Handler>
  void async_write_some(const Buffers& buffers, Handler&& handler) {
    if (tls_) {
      tls_->async_write_some(buffers, std::forward<Handler>(handler));
    } else {
      socket_.async_write_some(buffers, std::forward<Handler>(handler));
    }
  }

  // With TLS only.
  template <class Handler>
  void AsyncHandshake(Handler&& handler) {
    tls_->async_handshake(boost::asio::ssl::stream_base::server, std::forward<Handler>(handler));
  }

  // Tells the other side that nothing follows, then runs `handler()`. TLS says so itself, or a
  // client could not tell the end of an answer from a cut; it may wait for the client's word.
  template <class Handler>
  void AsyncShutdownSend(Handler handler) {
    if (!tls_) {
      ShutdownSend();
      return handler();
    }
    // Fails where the client still sends; what was to be said is out then, too.
    tls_->async_shutdown([this, h = std::move(handler)](boost::system::error_code) mutable {
      ShutdownSend();
      h();  // keeps this object alive
    });
  }
  // Reads what comes in whatever form, to be dropped: after AsyncShutdownSend.
  template <class Buffers, class Handler>
  void AsyncReadRaw(const Buffers& buffers, Handler&& handler) {
    socket_.async_read_some(buffers, std::forward<Handler>(handler));
  }

  // What is pending ends with operation_aborted. Nothing of TLS is lost where that is a read.
  void Cancel() {
    boost::system::error_code ignored;
    socket_.cancel(ignored);
  }
  void Close() {
    boost::system::error_code ignored;
    socket_.close(ignored);
  }

 private:
  void ShutdownSend() {
    boost::system::error_code ignored;
    socket_.shutdown(Socket::shutdown_send, ignored);
  }

  Socket socket_;
  std::optional<boost::asio::ssl::stream<Socket&>> tls_;
};

}  // namespace fathom::http
