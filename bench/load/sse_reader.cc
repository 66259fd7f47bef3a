#include "bench/load/sse_reader.h"

#include <utility>

namespace fathom::load {

Status SseReader::Push(std::string_view bytes, const OnEvent& on_event) {
  while (!bytes.empty()) {
    if (skip_lf_) {
      skip_lf_ = false;
      if (bytes.front() == '\n') {
        bytes.remove_prefix(1);
        continue;
      }
    }
    const size_t end = bytes.find_first_of("\r\n");
    const std::string_view piece = bytes.substr(0, end);
    if (line_.size() + data_.size() + piece.size() > max_event_bytes_) {
      return DataLoss("an event is larger than " + std::to_string(max_event_bytes_) + " bytes");
    }
    if (end == std::string_view::npos) {
      line_ += piece;
      break;
    }
    skip_lf_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    if (line_.empty()) {
      TakeLine(piece, on_event);
    } else {
      line_ += piece;
      TakeLine(line_, on_event);
      line_.clear();
    }
  }
  return {};
}

void SseReader::TakeLine(std::string_view line, const OnEvent& on_event) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (std::exchange(is_first_line_, false) && line.starts_with(kByteOrderMark)) {
    line.remove_prefix(kByteOrderMark.size());
  }
  if (line.empty()) {
    // An event without data is none.
    if (has_data_) on_event(event_, data_);
    event_.clear();
    data_.clear();
    has_data_ = false;
    return;
  }
  const size_t colon = line.find(':');
  const std::string_view name = line.substr(0, colon);  // empty: a comment
  std::string_view value;
  if (colon != std::string_view::npos) value = line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (name == "data") {
    if (has_data_) data_ += '\n';
    data_ += value;
    has_data_ = true;
  } else if (name == "event") {
    event_ = value;
  }
}

}  // namespace fathom::load
