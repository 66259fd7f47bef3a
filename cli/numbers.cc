#include "cli/numbers.h"

#include <charconv>
#include <cstdio>

namespace fathom::cli {
namespace {

// 0 for what is no suffix.
int64_t Factor(std::string_view suffix) {
  if (suffix.empty()) return 1;
  if (suffix == "k") return 1000;
  if (suffix == "m") return 1000 * 1000;
  if (suffix == "g") return 1000 * 1000 * 1000;
  if (suffix == "K" || suffix == "KiB") return int64_t{1} << 10;
  if (suffix == "M" || suffix == "MiB") return int64_t{1} << 20;
  if (suffix == "G" || suffix == "GiB") return int64_t{1} << 30;
  return 0;
}

}  // namespace

Result<int64_t> ParseCount(std::string_view text, std::string_view what, int64_t max) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const int64_t factor = Factor({rest, static_cast<size_t>(end - rest)});
  const std::string shown = std::string(what) + " '" + std::string(text) + "'";
  if (error == std::errc::invalid_argument || factor == 0) {
    return InvalidArgument(shown +
                           " is no number (4096, 64K, 1M, 20G, 20GiB; k, m, g are decimal)");
  }
  if (error != std::errc() || value < 1 || value > max / factor) {
    return InvalidArgument(shown + " is not between 1 and " + WithCommas(max));
  }
  return value * factor;
}

std::string WithCommas(int64_t value) {
  std::string text = std::to_string(value);
  const size_t first_digit = value < 0 ? 1 : 0;
  for (size_t at = text.size(); at > first_digit + 3;) text.insert(at -= 3, ",");
  return text;
}

std::string HumanBytes(int64_t bytes) {
  if (bytes < 0) return "-" + HumanBytes(bytes == INT64_MIN ? INT64_MAX : -bytes);
  if (bytes < 1024) return std::to_string(bytes) + " B";
  auto value = static_cast<double>(bytes);
  const char* unit = "";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}) {
    unit = next;
    value /= 1024.0;
    // Not 1024: 1023.96 would be printed as "1024".
    if (value < 1023.5) break;
  }
  char text[32];
  const int decimals = value < 99.995 ? 2 : value < 999.95 ? 1 : 0;
  std::snprintf(text, sizeof(text), "%.*f %s", decimals, value, unit);
  return text;
}

}  // namespace fathom::cli
