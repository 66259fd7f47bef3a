// Watchdog: notices an engine that has work and does none of it.
//
// ProgressWatch decides, on numbers and times that it is given; Watchdog asks an engine from a
// thread of its own and logs what begins and ends. An engine counts steps when they end, so a
// single step that takes longer than the time-out looks like no progress until it is done.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "engine/engine.h"

namespace fathom {

// Single-threaded.
class ProgressWatch {
 public:
  using Clock = std::chrono::steady_clock;

  explicit ProgressWatch(Clock::duration timeout) : timeout_(timeout) {}

  // What the engine says at `now`; times must not decrease.
  void Observe(const EngineStats& stats, Clock::time_point now);
  // Whether the last observation was at least the time-out after the first one that saw both work
  // and the same number of steps.
  [[nodiscard]] bool stalled() const { return stalled_; }
  // For people, of the last observation: how long, who waits, and what might be the matter.
  [[nodiscard]] std::string Description() const;
  // How long there has been work without a step, at the last observation.
  [[nodiscard]] Clock::duration duration() const { return duration_; }

 private:
  const Clock::duration timeout_;
  bool busy_ = false;
  bool stalled_ = false;
  int64_t num_steps_ = 0;
  int num_running_ = 0;
  int num_waiting_ = 0;
  Clock::time_point since_;
  Clock::duration duration_{};
};

class Watchdog {
 public:
  // Watches until destroyed; `engine` must outlive this object.
  Watchdog(const Engine* engine, std::chrono::milliseconds timeout);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Any thread. Why the engine counts as stalled, as it is now; empty when it does not.
  [[nodiscard]] std::optional<std::string> Stall();

 private:
  void Loop();
  void Look();  // with the mutex held

  const Engine* const engine_;
  const std::chrono::milliseconds period_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  ProgressWatch watch_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace fathom
