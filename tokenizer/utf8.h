// UTF-8: one decoder that validates, streams and repairs, so that all three agree on what is
// broken.
//
// "Broken" follows the Unicode rule of maximal parts: the longest prefix of a valid sequence that
// cannot be continued, or one byte, is one unit and becomes one U+FFFD. Overlong forms, surrogates
// and values above U+10FFFF are broken. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace fathom {

enum class Utf8State {
  kValid,       // a whole code point
  kBroken,      // `num_bytes` bytes that no continuation can mend
  kIncomplete,  // the text ends inside a sequence that was valid so far (1 to 3 bytes)
};

struct Utf8Unit {
  Utf8State state = Utf8State::kBroken;
  size_t num_bytes = 0;
  char32_t code = 0;  // only when kValid
};

// The first unit of `text`, which must not be empty.
Utf8Unit NextUtf8Unit(std::string_view text);

// Offset of the first byte that is not part of a valid code point; npos when all of `text` is
// valid.
size_t FindInvalidUtf8(std::string_view text);

// Appends `text` with every broken part replaced by U+FFFD, up to an incomplete suffix, which is
// left out. Returns the number of bytes of that suffix (0 to 3).
size_t AppendValidUtf8(std::string_view text, std::string& out);

// The same for a text that has ended: an incomplete suffix becomes one U+FFFD.
std::string LossyUtf8(std::string_view text);

void AppendUtf8(char32_t code, std::string& out);

// The code point at `offset` of a text known to be valid, and its length.
struct Utf8Char {
  char32_t code;
  size_t num_bytes;
};
inline Utf8Char DecodeValidUtf8(std::string_view text, size_t offset) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[offset + i]); };
  const char32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xE0) return {((first & 0x1Fu) << 6) | (byte(1) & 0x3Fu), 2};
  if (first < 0xF0) {
    return {((first & 0x0Fu) << 12) | ((byte(1) & 0x3Fu) << 6) | (byte(2) & 0x3Fu), 3};
  }
  return {((first & 0x07u) << 18) | ((byte(1) & 0x3Fu) << 12) | ((byte(2) & 0x3Fu) << 6) |
              (byte(3) & 0x3Fu),
          4};
}

}  // namespace fathom
