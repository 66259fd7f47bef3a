// CharClasses: what the pre-tokeniser needs to know of each code point.
//
// The general categories come from PCRE2's Unicode tables (one pass over all code points at first
// use), white space and the Han/Kana ranges are written out, because PCRE2 counts U+180E as white
// space and the model's tokenizer does not. Immutable after Get(); any thread.
#pragma once

#include <cstdint>
#include <vector>

namespace fathom {

enum CharClass : uint8_t {
  kCharLetter = 1,    // \p{L}
  kCharMark = 2,      // \p{M}
  kCharNumber = 4,    // \p{N}
  kCharSymbol = 8,    // \p{P} or \p{S}
  kCharSpace = 16,    // Unicode White_Space, 25 code points
  kCharNewline = 32,  // CR, LF; they are kCharSpace too
  kCharHanKana = 64,  // U+4E00-U+9FA5, U+3040-U+30FF
};

class CharClasses {
 public:
  static const CharClasses& Get();

  // Bits of CharClass. `code` must be at most U+10FFFF.
  [[nodiscard]] uint8_t Of(char32_t code) const { return bits_[code]; }

 private:
  CharClasses();
  std::vector<uint8_t> bits_;  // one byte per code point: 1.1 MB, of which a text touches little
};

}  // namespace fathom
