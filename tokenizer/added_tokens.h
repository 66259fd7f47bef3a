// AddedTokenTable: the tokens that stand for a fixed spelling (control tokens), found in raw text.
//
// Immutable after construction; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace fathom {

struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool special = false;
};

// Where an added token stands in a text, in bytes.
struct AddedTokenMatch {
  size_t begin = 0, end = 0;
  TokenId id = 0;
};

class AddedTokenTable {
 public:
  AddedTokenTable() = default;
  // Contents are not empty and distinct (the loader checks). A match costs at most the longest
  // content per byte of text, so the loader bounds that too.
  explicit AddedTokenTable(std::vector<AddedToken> tokens);

  // Appends all matches in text[begin, end): leftmost first, longest at one position, not
  // overlapping.
  void FindAll(std::string_view text, size_t begin, size_t end,
               std::vector<AddedTokenMatch>& out) const;
  // The token spelled exactly `content`.
  [[nodiscard]] std::optional<TokenId> Find(std::string_view content) const;

 private:
  struct Range {
    size_t begin = 0, end = 0;
  };
  [[nodiscard]] const AddedToken* LongestPrefix(std::string_view text) const;

  std::vector<AddedToken> tokens_;        // ordered by content
  std::array<Range, 256> by_first_byte_;  // into tokens_
};

}  // namespace fathom
