// Looks for stop strings in streamed text, also across the pieces it comes in.
//
// What could be the start of a stop string is held back, no more than that. The match that
// completes earliest ends the text; of several that complete at the same byte the longest counts,
// so the order of the list never matters. Thread safety: single-threaded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace fathom {

class StopMatcher {
 public:
  static constexpr size_t kMaxStops = 64;

  struct Output {
    std::string text;                 // may be given out now
    std::optional<std::string> stop;  // the string that matched; the text ends here
  };

  // No stop strings is fine: then nothing is ever held. kInvalidArgument for an empty stop string
  // and for more than kMaxStops. With `include_stop` the matched string is part of the text given
  // out.
  static Result<StopMatcher> Create(std::vector<std::string> stops, bool include_stop);

  // Feed token by token to learn which token completed the match. After a match nothing is given
  // out any more. Linear in the text for any stop strings.
  Output Push(std::string_view text);

  // End of the output without a match: what was held.
  std::string Finish();

  [[nodiscard]] bool stopped() const { return stopped_; }

 private:
  struct Pattern {
    std::string text;
    // [i]: length of the longest proper prefix of `text` that ends text[0, i + 1).
    std::vector<size_t> border;
    size_t num_matched = 0;  // longest prefix of `text` that ends the stream so far
  };
  StopMatcher() = default;

  std::vector<Pattern> patterns_;
  std::string held_;  // the longest end of the stream that starts a stop string
  bool include_stop_ = false;
  bool stopped_ = false;
};

}  // namespace fathom
