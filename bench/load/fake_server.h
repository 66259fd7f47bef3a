// FakeServer: answers requests with whatever bytes a test wants, also with such as no server should
// send. For tests.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace fathom::load {

class FakeServer {
 public:
  struct Request {
    int number = 0;      // of all requests, from 0
    int connection = 0;  // likewise
    std::string head, body;
  };
  struct Answer {
    std::string bytes;
    // Behind the bytes: reads the next request, closes, or is silent until the client has gone.
    enum class Then { kKeep, kClose, kSilence } then = Then::kKeep;
  };
  // Called on the connections' threads, one at a time.
  using Handler = std::function<Answer(const Request&)>;

  explicit FakeServer(Handler handler)
      : handler_(std::move(handler)), listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 128), 0);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { Accept(); });
  }
  ~FakeServer() {
    shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    for (std::thread& thread : threads_) thread.join();
    close(listener_);
  }
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;

  [[nodiscard]] std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  [[nodiscard]] std::vector<Request> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  void Accept() {
    for (int connection = 0;; ++connection) {
      const int fd = accept(listener_, nullptr, nullptr);
      if (fd < 0) return;
      threads_.emplace_back([this, fd, connection] { Serve(fd, connection); });
    }
  }

  void Serve(int fd, int connection) {
    std::string in;
    char piece[4096];
    const auto read_more = [&] {
      const ssize_t n = recv(fd, piece, sizeof piece, 0);
      if (n > 0) in.append(piece, static_cast<size_t>(n));
      return n > 0;
    };
    while (true) {
      Request request;
      request.connection = connection;
      size_t end = 0;
      while ((end = in.find("\r\n\r\n")) == std::string::npos) {
        if (!read_more()) return void(close(fd));
      }
      request.head = in.substr(0, end);
      in.erase(0, end + 4);
      const std::string name = "Content-Length: ";
      const size_t at = request.head.find(name);
      const size_t length =
          at == std::string::npos ? 0 : std::stoul(request.head.substr(at + name.size()));
      while (in.size() < length) {
        if (!read_more()) return void(close(fd));
      }
      request.body = in.substr(0, length);
      in.erase(0, length);
      Answer answer;
      {
        const std::lock_guard lock(mutex_);
        request.number = static_cast<int>(requests_.size());
        requests_.push_back(request);
        answer = handler_(request);
      }
      send(fd, answer.bytes.data(), answer.bytes.size(), MSG_NOSIGNAL);
      if (answer.then == Answer::Then::kClose) return void(close(fd));
      if (answer.then == Answer::Then::kSilence) {
        while (read_more()) {
        }
      }
    }
  }

  const Handler handler_;
  const int listener_;
  int port_ = 0;
  std::thread acceptor_;
  std::vector<std::thread> threads_;  // the acceptor's, then the destructor's
  std::mutex mutex_;                  // guards what follows, and calls of the handler
  std::vector<Request> requests_;
};

// A chunked answer of a stream, each event in a chunk of its own.
inline std::string StreamOf(const std::vector<std::string>& events, bool has_end = true) {
  std::string bytes =
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
      "Transfer-Encoding: chunked\r\n\r\n";
  for (const std::string& event : events) {
    char size[32];
    snprintf(size, sizeof size, "%zx\r\n", event.size());
    bytes += size + event + "\r\n";
  }
  return has_end ? bytes + "0\r\n\r\n" : bytes;
}

inline std::string WholeAnswer(const std::string& status, const std::string& type,
                               const std::string& body) {
  return "HTTP/1.1 " + status + "\r\nContent-Type: " + type +
         "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

}  // namespace fathom::load
