// What an HTTP handler reads and how it answers.
//
// A ResponseWriter belongs to one request. Its methods may be called from any thread, one at a
// time; they never block: bytes are queued on the connection's strand (a serial executor), where
// all callbacks given to it run too. Once the client is gone, or reads so slowly that more than
// HttpOptions::max_pending_bytes wait for it, everything written is dropped and the OnClosed
// callback runs, so the producer can stop. A writer that is destroyed before its answer is complete
// closes the connection.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fathom::http {

using HeaderList = std::vector<std::pair<std::string, std::string>>;

struct Request {
  std::string method;  // "GET"
  std::string path;    // as sent, percent-encoded, without the query
  HeaderList headers;  // names in lower case, in order
  std::string body;
  // Counts the body against HttpOptions::max_total_body_bytes until the last copy of the request is
  // gone; shared only because requests are copied.
  std::shared_ptr<void> body_lease;

  // First value of the header, empty where absent. `lower_name` in lower case.
  [[nodiscard]] std::string_view Header(std::string_view lower_name) const;
};

struct Response {
  int status = 200;
  std::string content_type;  // none where empty
  HeaderList headers;        // besides Content-Type, Content-Length, Transfer-Encoding, Connection
  std::string body;
};

class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;
  // The whole answer at once. Ignored after an answer has begun.
  virtual void Send(Response response) = 0;
  // Begins a chunked answer; `head.body` is not used. Then Write any number of times and End.
  virtual void StartStream(Response head) = 0;
  virtual void Write(std::string_view bytes) = 0;
  virtual void End() = 0;

  // Runs `task` on the strand, after what was queued before. False: the connection is closed and
  // the task is dropped.
  virtual bool Post(std::function<void()> task) = 0;
  // Runs `callback` on the strand, at most once, if the connection ends before the answer does; in
  // the calling thread if it has ended already.
  virtual void SetOnClosed(std::function<void()> callback) = 0;
  // Runs `callback` on the strand whenever nothing was written for `interval`, until the answer
  // ends.
  virtual void SetOnSilence(std::chrono::milliseconds interval, std::function<void()> callback) = 0;
};

// Undoes %XX. Malformed escapes stay as they are.
std::string PercentDecode(std::string_view text);

}  // namespace fathom::http
