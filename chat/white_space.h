// White space as the output's markup knows it: ASCII only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace fathom {

inline constexpr std::string_view kWhiteSpace = " \t\n\r\v\f";

inline size_t LeadingSpaceSize(std::string_view text) {
  return std::min(text.find_first_not_of(kWhiteSpace), text.size());
}

// Without the white space at both ends.
inline std::string_view TrimSpace(std::string_view text) {
  const size_t first = text.find_first_not_of(kWhiteSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kWhiteSpace) + 1 - first);
}

}  // namespace fathom
