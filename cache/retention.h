// Retention: at which positions of a sequence resume points are kept.
//
// In front of the last prompt token (a repeated prompt, and the next turn of a conversation without
// tools, continue there), at the last whole block of the prompt, where another sequence was seen to
// share the prefix, and every `interval` positions of prompts longer than that. Behind the prompt:
// at the last whole block (a rolling point) and at the end, which the scheduler asks for itself.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace fathom {

inline constexpr int64_t kDefaultRetentionInterval = 16'384;

// The value of --prefix-cache-retention-interval: "none" keeps every whole block of 256 positions,
// 0 none but those named above, a multiple of 256 every so many. kInvalidArgument says so.
Result<int64_t> ParseRetentionInterval(std::string_view text);

struct RetentionPlan {
  int64_t prompt = 0;  // tokens of the prompt
  int64_t known = 0;   // tokens known when it begins to run: more than the prompt after preemption
  int64_t junction = 0;                          // of PrefixMatch
  int64_t interval = kDefaultRetentionInterval;  // a multiple of 256, or 0

  // Appends the positions in (begin, end] to keep, ascending.
  void PointsIn(int64_t begin, int64_t end, std::vector<int64_t>& out) const;
};

}  // namespace fathom
