// PieceScanner: cuts text into the pieces that BPE works on, as the three Split regexes of the
// DeepSeek-V3/V4 tokenizer.json do.
//
// Step 1 cuts out groups of up to three number characters, step 2 runs of Han and Kana, step 3
// splits what is left by a six-way alternation (see pretokenizer.cc). Written by hand and not run
// as regexes: it looks at each character a fixed number of times whatever the text is, needs no
// match limits and no stack, and cannot fail. A test holds it to the regexes under PCRE2 on random
// text. Single-threaded; the text must be valid UTF-8 and outlive the scanner.
#pragma once

#include <cstddef>
#include <string_view>

#include "tokenizer/char_class.h"

namespace fathom {

class PieceScanner {
 public:
  explicit PieceScanner(std::string_view text) : text_(text) {}

  // Sets `piece` to the next piece; false at the end. The pieces in order are the whole text.
  bool Next(std::string_view* piece);

 private:
  struct Char {
    char32_t code = 0;
    uint8_t bits = 0;  // CharClass
    size_t end = 0;    // offset behind it
  };
  [[nodiscard]] Char At(size_t offset) const;
  // Offset behind the run of characters from `offset` that have a bit of `bits`, inside the block.
  [[nodiscard]] size_t RunEnd(size_t offset, uint8_t bits) const;
  // End of the block (a step 1 group, a step 2 run, or what lies between them) that starts at
  // `offset`.
  [[nodiscard]] size_t BlockEnd(size_t offset) const;
  // End of the step 3 match at `offset`; `offset` itself when no alternative matches there.
  [[nodiscard]] size_t MatchEnd(size_t offset) const;
  [[nodiscard]] size_t SpaceMatchEnd(size_t offset) const;

  std::string_view text_;
  const CharClasses& classes_ = CharClasses::Get();
  size_t offset_ = 0;
  size_t block_end_ = 0;
};

}  // namespace fathom
