#include "tokenizer/byte_alphabet.h"

#include "tokenizer/utf8.h"

namespace fathom {

ByteAlphabet::ByteAlphabet() {
  byte_of_.fill(-1);
  char32_t next_other = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    // 127 to 160 are controls and the no-break space, 173 is the soft hyphen.
    const bool is_printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    const char32_t code = is_printable ? static_cast<char32_t>(byte) : next_other++;
    code_of_[static_cast<size_t>(byte)] = code;
    byte_of_[code] = static_cast<int16_t>(byte);
  }
}

std::optional<std::string> ByteAlphabet::Bytes(std::string_view symbols) const {
  std::string bytes;
  for (size_t i = 0; i < symbols.size();) {
    const Utf8Char c = DecodeValidUtf8(symbols, i);
    if (c.code >= byte_of_.size() || byte_of_[c.code] < 0) return std::nullopt;
    bytes += static_cast<char>(static_cast<uint8_t>(byte_of_[c.code]));
    i += c.num_bytes;
  }
  return bytes;
}

}  // namespace fathom
