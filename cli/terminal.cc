#include "cli/terminal.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>

namespace fathom::cli {
namespace {

// Lock-free, so a signal handler may write it.
std::atomic<bool> g_interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);
struct sigaction g_previous;

void OnInterrupt(int /*signal*/) { g_interrupted.store(true); }

}  // namespace

bool HasStyles() {
  static const bool kStyles = isatty(STDOUT_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr;
  return kStyles;
}

InterruptGuard::InterruptGuard() {
  g_interrupted.store(false);
  struct sigaction action = {};
  action.sa_handler = OnInterrupt;  // without SA_RESTART: a read of the terminal returns
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &g_previous);
}

InterruptGuard::~InterruptGuard() { sigaction(SIGINT, &g_previous, nullptr); }

std::atomic<bool>& InterruptGuard::flag() const { return g_interrupted; }

void InterruptGuard::Clear() { g_interrupted.store(false); }

LineResult ReadLine(std::string& line) {
  // Not std::getline: it hides an interrupted read, and a failed stream would have to be revived.
  line.clear();
  while (true) {
    if (g_interrupted.load()) return LineResult::kInterrupted;
    // A signal that comes between this check and a read would be slept over, and one that another
    // thread takes interrupts no read here: so wait in short turns.
    constexpr int kLookMs = 50;
    pollfd input{STDIN_FILENO, POLLIN, 0};
    if (poll(&input, 1, kLookMs) <= 0) continue;
    char c = 0;
    const ssize_t n = read(STDIN_FILENO, &c, 1);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return line.empty() ? LineResult::kEnd : LineResult::kLine;
    if (c == '\n') return LineResult::kLine;
    line += c;
  }
}

}  // namespace fathom::cli
