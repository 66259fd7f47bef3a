#include "cache/retention.h"

#include <algorithm>
#include <charconv>
#include <string>

#include "cache/cache_layout.h"

namespace fathom {

Result<int64_t> ParseRetentionInterval(std::string_view text) {
  if (text == "none" || text == "None") return int64_t{kBlockPositions};
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 ||
      value % kBlockPositions != 0) {
    return InvalidArgument("prefix-cache-retention-interval: '" + std::string(text) +
                           "' is not none, 0 or a multiple of " + std::to_string(kBlockPositions));
  }
  return value;
}

void RetentionPlan::PointsIn(int64_t begin, int64_t end, std::vector<int64_t>& out) const {
  const auto first = static_cast<ptrdiff_t>(out.size());
  const auto add = [&](int64_t position) {
    if (position > begin && position <= end) out.push_back(position);
  };
  add(prompt - 1);
  add((prompt - 1) / kBlockPositions * kBlockPositions);
  add((known - 1) / kBlockPositions * kBlockPositions);
  add(junction);
  if (interval > 0 && known > interval) {
    const int64_t last = std::min(end, known - 1);
    for (int64_t p = (begin / interval + 1) * interval; p <= last; p += interval) add(p);
  }
  std::sort(out.begin() + first, out.end());
  out.erase(std::unique(out.begin() + first, out.end()), out.end());
}

}  // namespace fathom
