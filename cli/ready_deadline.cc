#include "cli/ready_deadline.h"

#include <pthread.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <string>

#include "cli/command.h"

namespace fathom::cli {

ReadyDeadline::ReadyDeadline(std::chrono::milliseconds timeout) {
  if (timeout.count() == 0) return;
  thread_ = std::thread([this, timeout] {
    std::unique_lock lock(mutex_);
    if (wake_.wait_for(lock, timeout, [this] { return ready_; })) return;
    const std::string seconds = std::to_string(timeout.count() / 1000);
    const int status =
        Fail(Unavailable("not ready after " + seconds + " s (--engine-ready-timeout)"));
    spdlog::default_logger()->flush();
    std::_Exit(status);  // the loading thread still uses what destructors would take away
  });
  pthread_setname_np(thread_.native_handle(), "fathom-ready");
}

ReadyDeadline::~ReadyDeadline() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ready_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

}  // namespace fathom::cli
