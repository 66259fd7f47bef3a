// ReadyDeadline: ends the process when a start takes longer than it may, so that whoever waits for
// it can try elsewhere. Loading cannot be interrupted otherwise.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace fathom::cli {

class ReadyDeadline {
 public:
  explicit ReadyDeadline(std::chrono::milliseconds timeout);  // 0: none
  ~ReadyDeadline();                                           // ready
  ReadyDeadline(const ReadyDeadline&) = delete;
  ReadyDeadline& operator=(const ReadyDeadline&) = delete;

 private:
  std::mutex mutex_;  // guards ready_
  std::condition_variable wake_;
  bool ready_ = false;
  std::thread thread_;
};

}  // namespace fathom::cli
