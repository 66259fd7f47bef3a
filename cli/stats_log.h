// The line of throughput, load and cache use that `fathom serve` logs every few seconds, in the
// words of vLLM's so that what reads those reads these.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "engine/engine.h"

namespace fathom::cli {

// From one state of the counters to the next. Single-threaded.
class StatsLine {
 public:
  // The message (base/log_fields.h) of what happened since the last call, `seconds` ago; none when
  // nothing did and nothing runs.
  std::optional<std::string> Next(const EngineStats& stats, double seconds);

 private:
  EngineStats last_;
};

// Logs such a line at every interval, on a thread of its own, until destroyed.
class StatsLog {
 public:
  // The engine must outlive this object.
  StatsLog(const Engine* engine, std::chrono::duration<double> interval);
  ~StatsLog();
  StatsLog(const StatsLog&) = delete;
  StatsLog& operator=(const StatsLog&) = delete;

 private:
  void Loop();

  const Engine* const engine_;
  const std::chrono::duration<double> interval_;
  std::mutex mutex_;  // guards stopping_
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace fathom::cli
