// TextTrigger: notices when a stream of bytes has just spelled a certain text.
//
// Single-threaded value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace fathom {

class TextTrigger {
 public:
  // Empty text: never.
  explicit TextTrigger(std::string text) : text_(std::move(text)), fallback_(text_.size(), 0) {
    for (size_t i = 1, length = 0; i < text_.size(); ++i) {
      while (length > 0 && text_[i] != text_[length]) length = fallback_[length - 1];
      if (text_[i] == text_[length]) ++length;
      fallback_[i] = length;
    }
  }

  // True when `byte` completes the text. What was seen is forgotten then.
  bool Feed(uint8_t byte) {
    if (text_.empty()) return false;
    const char c = static_cast<char>(byte);
    while (num_seen_ > 0 && text_[num_seen_] != c) num_seen_ = fallback_[num_seen_ - 1];
    if (text_[num_seen_] == c) ++num_seen_;
    if (num_seen_ < text_.size()) return false;
    num_seen_ = 0;
    return true;
  }
  void Reset() { num_seen_ = 0; }

  [[nodiscard]] const std::string& text() const { return text_; }
  // How much of the text the stream ends with.
  [[nodiscard]] size_t num_seen() const { return num_seen_; }

 private:
  std::string text_;
  std::vector<size_t> fallback_;  // by index: the longest proper prefix that ends there too
  size_t num_seen_ = 0;
};

}  // namespace fathom
