#include "server/watchdog.h"

#include <pthread.h>
#include <spdlog/spdlog.h>

#include <algorithm>

namespace fathom {

using std::chrono::milliseconds;

void ProgressWatch::Observe(const EngineStats& stats, Clock::time_point now) {
  const bool busy = stats.num_running + stats.num_waiting > 0;
  if (!busy || !busy_ || stats.num_steps != num_steps_) since_ = now;
  busy_ = busy;
  num_steps_ = stats.num_steps;
  num_running_ = stats.num_running;
  num_waiting_ = stats.num_waiting;
  duration_ = now - since_;
  stalled_ = busy && duration_ >= timeout_;
}

std::string ProgressWatch::Description() const {
  const auto seconds = std::chrono::duration<double>(duration_).count();
  return fmt::format(
      "no progress for {:.{}f} s: {} request(s) run and {} wait, but no step has ended (a single "
      "step that takes long counts when it ends)",
      seconds, seconds < 10.0 ? 1 : 0, num_running_, num_waiting_);
}

Watchdog::Watchdog(const Engine* engine, milliseconds timeout)
    : engine_(engine),
      // Often enough for the time-out to be met, seldom enough to cost nothing.
      period_(std::clamp(timeout / 10, milliseconds(5), milliseconds(1'000))),
      watch_(timeout) {
  thread_ = std::thread([this] { Loop(); });
  pthread_setname_np(thread_.native_handle(), "fathom-watchdog");
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

std::optional<std::string> Watchdog::Stall() {
  const std::lock_guard lock(mutex_);
  Look();
  if (!watch_.stalled()) return std::nullopt;
  return watch_.Description();
}

void Watchdog::Look() {
  const bool was_stalled = watch_.stalled();
  const auto before = watch_.duration();
  watch_.Observe(engine_->stats(), ProgressWatch::Clock::now());
  if (watch_.stalled() && !was_stalled) {
    spdlog::error("engine: {}; /health answers 503 until it goes on", watch_.Description());
  } else if (was_stalled && !watch_.stalled()) {
    spdlog::info("engine: goes on after {:.1f} s without a step",
                 std::chrono::duration<double>(before).count());
  }
}

void Watchdog::Loop() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, period_, [this] { return stopping_; })) Look();
}

}  // namespace fathom
