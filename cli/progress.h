// ProgressBar: one line on standard error that is drawn over while something long runs.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace fathom::cli {

// "writing  [########------------]  40%  1.21 of 3.02 GB  512 MB/s  0:04 left". The rate is the
// mean since the start.
std::string ProgressLine(const std::string& label, uint64_t done, uint64_t total,
                         std::chrono::duration<double> elapsed);

// Draws nothing where standard error is no terminal. One thread.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ~ProgressBar();  // clears the line
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // As often as the caller likes; draws ten times a second, once it has taken a moment.
  void Update(uint64_t done, uint64_t total);

 private:
  using Clock = std::chrono::steady_clock;
  const std::string label_;
  const bool enabled_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point drawn_;
  bool dirty_ = false;
};

}  // namespace fathom::cli
