// TestClient: a blocking HTTP client for tests, close enough to the socket to break the protocol.
// Reads give up after 30 seconds with what they have, so that a broken server fails a test instead
// of hanging it. Single-threaded.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace fathom::http {

class TestClient {
 public:
  struct Reply {
    int status = 0;  // 0: the connection ended before a head was complete
    std::map<std::string, std::string> headers;  // names as sent
    std::string body;                            // chunks joined
    bool complete = false;
  };

  explicit TestClient(int port, int receive_buffer_bytes = 0) {
    Open(AF_INET);
    if (receive_buffer_bytes > 0) {
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof receive_buffer_bytes);
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  // To the file of a Unix socket.
  explicit TestClient(const std::string& path) {
    Open(AF_UNIX);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  virtual ~TestClient() { Close(); }
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;

  [[nodiscard]] bool connected() const { return connected_; }

  bool SendRaw(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = Transmit(bytes.data(), bytes.size());
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

  void SendRequest(std::string_view method, std::string_view path, std::string_view body = {},
                   std::string_view extra_headers = {}) {
    std::string text;
    text.append(method).append(" ").append(path).append(" HTTP/1.1\r\nHost: test\r\n");
    if (!body.empty()) {
      text += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size());
      text += "\r\n";
    }
    text.append(extra_headers).append("\r\n").append(body);
    SendRaw(text);
  }

  Reply Ask(std::string_view method, std::string_view path, std::string_view body = {},
            std::string_view extra_headers = {}) {
    SendRequest(method, path, body, extra_headers);
    return ReadReply(method != "HEAD");
  }

  Reply ReadReply(bool with_body = true) {
    Reply reply = ReadHead();
    if (reply.status == 0) return reply;
    if (!with_body) {
      reply.complete = true;
    } else if (reply.headers.count("Transfer-Encoding") > 0) {
      std::string chunk;
      while (ReadChunk(&chunk)) reply.body += chunk;
      reply.complete = last_chunk_seen_;
    } else if (const auto it = reply.headers.find("Content-Length"); it != reply.headers.end()) {
      const size_t size = static_cast<size_t>(std::atoll(it->second.c_str()));
      while (data_.size() < size && Fill()) {
      }
      reply.complete = data_.size() >= size;
      reply.body = data_.substr(0, size);
      data_.erase(0, size);
    } else {
      while (Fill()) {
      }
      reply.body = std::exchange(data_, {});
      reply.complete = true;
    }
    return reply;
  }

  Reply ReadHead() {
    Reply reply;
    size_t end = 0;
    while ((end = data_.find("\r\n\r\n")) == std::string::npos) {
      if (!Fill()) return reply;
    }
    const std::string head = data_.substr(0, end + 2);
    data_.erase(0, end + 4);
    reply.status = std::atoi(head.c_str() + head.find(' ') + 1);
    size_t at = head.find("\r\n") + 2;
    while (at < head.size()) {
      const size_t line_end = head.find("\r\n", at);
      const std::string line = head.substr(at, line_end - at);
      const size_t colon = line.find(": ");
      if (colon != std::string::npos) reply.headers[line.substr(0, colon)] = line.substr(colon + 2);
      at = line_end + 2;
    }
    return reply;
  }

  // One chunk of a chunked body; false at its end or when the connection ends.
  bool ReadChunk(std::string* chunk) {
    size_t line_end = 0;
    while ((line_end = data_.find("\r\n")) == std::string::npos) {
      if (!Fill()) return false;
    }
    const size_t size = std::strtoull(data_.c_str(), nullptr, 16);
    while (data_.size() < line_end + 2 + size + 2) {
      if (!Fill()) return false;
    }
    *chunk = data_.substr(line_end + 2, size);
    data_.erase(0, line_end + 2 + size + 2);
    last_chunk_seen_ = size == 0;
    return size > 0;
  }

  // True once the server has closed; what it sent before is dropped.
  bool ReadsEnd() {
    while (Fill()) {
    }
    return ended_;
  }

  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }

 protected:
  // As send and recv; overridden by what lies on the socket.
  virtual ssize_t Transmit(const char* data, size_t size) {
    return send(fd_, data, size, MSG_NOSIGNAL);
  }
  virtual ssize_t Receive(char* data, size_t size) { return recv(fd_, data, size, 0); }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  void Open(int family) {
    fd_ = socket(family, SOCK_STREAM, 0);
    const timeval timeout{30, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
  }
  bool Fill() {
    char buffer[16384];
    const ssize_t n = Receive(buffer, sizeof buffer);
    if (n == 0 || (n < 0 && errno == ECONNRESET)) ended_ = true;
    if (n <= 0) return false;
    data_.append(buffer, static_cast<size_t>(n));
    return true;
  }

  int fd_ = -1;
  bool connected_ = false;
  bool ended_ = false;
  bool last_chunk_seen_ = false;
  std::string data_;
};

}  // namespace fathom::http
