// Problems: what is wrong with a file, collected so that a user sees all of it at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace fathom {

// Keeps the first kMaxListed problems and counts the rest, so a hostile file cannot grow the
// message.
class Problems {
 public:
  static constexpr size_t kMaxListed = 20;

  void Add(std::string problem) {
    ++count_;
    if (listed_.size() < kMaxListed) listed_.push_back(std::move(problem));
  }
  [[nodiscard]] bool empty() const { return count_ == 0; }
  [[nodiscard]] size_t count() const { return count_; }
  // "source: 2 problems:\n  first\n  second"; OK when there are none.
  [[nodiscard]] Status ToStatus(StatusCode code, std::string_view source) const;

 private:
  std::vector<std::string> listed_;
  size_t count_ = 0;
};

// Text from a file, fit for a message: quoted, control bytes and non-ASCII escaped, long ones cut.
std::string Quoted(std::string_view text);

// "[4, 128]"
std::string ShapeText(const std::vector<int64_t>& shape);

// Depth of the deepest array or object, found without recursion; strings are skipped. JSON that is
// nested beyond what a format uses is refused before a parser builds it.
int JsonDepth(std::string_view json);

}  // namespace fathom
