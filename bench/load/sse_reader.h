// SseReader: server-sent events out of the bytes of a stream, however they are cut.
//
// Reads what the standard allows: lines that end in LF, CR or both, comments, several data lines,
// a byte order mark. Fields other than event and data mean nothing to a client that does not
// reconnect. Single-threaded.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace fathom::load {

class SseReader {
 public:
  // Both views are valid during the call; `event` is empty where the stream names none.
  using OnEvent = std::function<void(std::string_view event, std::string_view data)>;

  explicit SseReader(size_t max_event_bytes = size_t{16} << 20)
      : max_event_bytes_(max_event_bytes) {}

  // Calls `on_event` for every event that is complete. kDataLoss for one that is larger than
  // allowed; nothing may follow then.
  Status Push(std::string_view bytes, const OnEvent& on_event);
  // Whether the stream stands in the middle of an event: one that ends here was cut off.
  [[nodiscard]] bool is_midway() const { return !line_.empty() || has_data_; }

 private:
  void TakeLine(std::string_view line, const OnEvent& on_event);

  const size_t max_event_bytes_;
  std::string line_;  // the beginning of an incomplete one
  std::string event_, data_;
  bool has_data_ = false;
  bool skip_lf_ = false;  // the last line ended in CR
  bool is_first_line_ = true;
};

}  // namespace fathom::load
