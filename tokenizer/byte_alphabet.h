// ByteAlphabet: the printable characters that byte-level BPE files write for bytes.
//
// Printable Latin-1 bytes stand for themselves; the 68 others take U+0100 and up, in order.
// Immutable; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fathom {

class ByteAlphabet {
 public:
  ByteAlphabet();

  [[nodiscard]] char32_t CodeOf(uint8_t byte) const { return code_of_[byte]; }
  // The bytes that `symbols` stands for; nullopt when a character is not of the alphabet. Valid
  // UTF-8 only.
  [[nodiscard]] std::optional<std::string> Bytes(std::string_view symbols) const;

 private:
  std::array<char32_t, 256> code_of_{};
  std::array<int16_t, 0x100 + 68> byte_of_{};  // by code point; -1: not of the alphabet
};

}  // namespace fathom
