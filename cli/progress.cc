#include "cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

namespace fathom::cli {
namespace {

constexpr int kBarWidth = 20;
constexpr std::chrono::milliseconds kDrawInterval{100};
constexpr std::chrono::milliseconds kPatience{300};

std::string TimeText(double seconds) {
  const auto total = static_cast<int64_t>(std::lround(std::min(seconds, 1e9)));
  char text[40];
  if (total >= 3600) {
    std::snprintf(text, sizeof text, "%d:%02d:%02d", static_cast<int>(total / 3600),
                  static_cast<int>(total / 60 % 60), static_cast<int>(total % 60));
  } else {
    std::snprintf(text, sizeof text, "%d:%02d", static_cast<int>(total / 60),
                  static_cast<int>(total % 60));
  }
  return text;
}

}  // namespace

std::string ProgressLine(const std::string& label, uint64_t done, uint64_t total,
                         std::chrono::duration<double> elapsed) {
  const double share =
      total == 0 ? 1.0 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  std::string bar(static_cast<size_t>(share * kBarWidth), '#');
  bar.resize(kBarWidth, '-');
  const bool large = total >= 1'000'000'000;
  const double unit = large ? 1e9 : 1e6;
  char text[120];
  std::snprintf(text, sizeof text, "  [%s] %3d%%  %.*f of %.*f %s", bar.c_str(),
                static_cast<int>(share * 100.0), large ? 2 : 0, static_cast<double>(done) / unit,
                large ? 2 : 0, static_cast<double>(total) / unit, large ? "GB" : "MB");
  std::string line = label + text;
  // Before anything was done there is no rate.
  if (done == 0 || elapsed.count() <= 0.0) return line;
  const double rate = static_cast<double>(done) / elapsed.count();
  const double left = static_cast<double>(total - std::min(done, total)) / rate;
  std::snprintf(text, sizeof text, "  %.0f MB/s", rate / 1e6);
  return line + text + "  " + TimeText(left) + " left";
}

ProgressBar::ProgressBar(std::string label)
    : label_(std::move(label)), enabled_(isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (dirty_) std::fputs("\r\033[K", stderr);
}

void ProgressBar::Update(uint64_t done, uint64_t total) {
  const Clock::time_point now = Clock::now();
  // What is over at once needs no bar that flashes by.
  if (!enabled_ || now - start_ < kPatience || (dirty_ && now - drawn_ < kDrawInterval)) return;
  drawn_ = now;
  dirty_ = true;
  std::fprintf(stderr, "\r%s\033[K", ProgressLine(label_, done, total, now - start_).c_str());
  std::fflush(stderr);
}

}  // namespace fathom::cli
