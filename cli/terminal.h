// The terminal: dimmed text and Ctrl-C.
#pragma once

#include <atomic>
#include <string>

namespace fathom::cli {

// Whether standard output is a terminal that shows styles (NO_COLOR unset).
bool HasStyles();
inline constexpr const char* kDim = "\033[2m";
inline constexpr const char* kReset = "\033[0m";

// While it lives, SIGINT sets its flag instead of ending the program. One at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  [[nodiscard]] std::atomic<bool>& flag() const;
  // Forgets earlier signals.
  void Clear();
};

enum class LineResult { kLine, kInterrupted, kEnd };

// Reads one line of standard input. With an InterruptGuard alive, Ctrl-C ends the wait.
LineResult ReadLine(std::string& line);

}  // namespace fathom::cli
