#include "chat/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace fathom {

Result<StopMatcher> StopMatcher::Create(std::vector<std::string> stops, bool include_stop) {
  if (stops.size() > kMaxStops) {
    return InvalidArgument(std::to_string(stops.size()) + " stop strings, at most " +
                           std::to_string(kMaxStops) + " are possible");
  }
  StopMatcher matcher;
  matcher.include_stop_ = include_stop;
  for (std::string& stop : stops) {
    if (stop.empty()) return InvalidArgument("a stop string must not be empty");
    Pattern pattern{std::move(stop), {}, 0};
    // Knuth-Morris-Pratt: after a mismatch the search goes on at the border, never back in the
    // text.
    const std::string& text = pattern.text;
    pattern.border.assign(text.size(), 0);
    size_t length = 0;
    for (size_t i = 1; i < text.size(); ++i) {
      while (length > 0 && text[i] != text[length]) length = pattern.border[length - 1];
      if (text[i] == text[length]) ++length;
      pattern.border[i] = length;
    }
    matcher.patterns_.push_back(std::move(pattern));
  }
  return matcher;
}

StopMatcher::Output StopMatcher::Push(std::string_view text) {
  Output output;
  if (stopped_) return output;
  for (const char c : text) {
    held_ += c;
    const Pattern* match = nullptr;
    for (Pattern& pattern : patterns_) {
      size_t& matched = pattern.num_matched;
      while (matched > 0 && pattern.text[matched] != c) matched = pattern.border[matched - 1];
      if (pattern.text[matched] == c) ++matched;
      if (matched < pattern.text.size()) continue;
      if (match == nullptr || match->text.size() < pattern.text.size()) match = &pattern;
      matched = pattern.border[matched - 1];
    }
    if (match != nullptr) {
      stopped_ = true;
      if (!include_stop_) held_.resize(held_.size() - match->text.size());
      output.text = std::exchange(held_, std::string());
      output.stop = match->text;
      return output;
    }
  }
  size_t num_held = 0;
  for (const Pattern& pattern : patterns_) num_held = std::max(num_held, pattern.num_matched);
  output.text = held_.substr(0, held_.size() - num_held);
  if (!output.text.empty()) held_.erase(0, output.text.size());
  return output;
}

std::string StopMatcher::Finish() {
  stopped_ = true;
  return std::exchange(held_, std::string());
}

}  // namespace fathom
