#include "tokenizer/utf8.h"

#include <cstdint>

namespace fathom {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// What a lead byte promises. The range of the second byte is what excludes overlong forms,
// surrogates and values above U+10FFFF; all later bytes are 80..BF.
struct Lead {
  size_t num_bytes;  // 0: no sequence starts with this byte
  uint8_t second_min, second_max;
};

Lead LeadOf(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Unit NextUtf8Unit(std::string_view text) {
  const Lead lead = LeadOf(static_cast<uint8_t>(text[0]));
  if (lead.num_bytes == 0) return {Utf8State::kBroken, 1, 0};
  for (size_t i = 1; i < lead.num_bytes; ++i) {
    if (i == text.size()) return {Utf8State::kIncomplete, i, 0};
    const auto byte = static_cast<uint8_t>(text[i]);
    const uint8_t min = i == 1 ? lead.second_min : 0x80;
    const uint8_t max = i == 1 ? lead.second_max : 0xBF;
    if (byte < min || byte > max) return {Utf8State::kBroken, i, 0};
  }
  return {Utf8State::kValid, lead.num_bytes, DecodeValidUtf8(text, 0).code};
}

size_t FindInvalidUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    if (static_cast<uint8_t>(text[i]) < 0x80) {
      ++i;
      continue;
    }
    const Utf8Unit unit = NextUtf8Unit(text.substr(i));
    if (unit.state != Utf8State::kValid) return i;
    i += unit.num_bytes;
  }
  return std::string_view::npos;
}

size_t AppendValidUtf8(std::string_view text, std::string& out) {
  while (!text.empty()) {
    const Utf8Unit unit = NextUtf8Unit(text);
    if (unit.state == Utf8State::kIncomplete) return text.size();
    out += unit.state == Utf8State::kValid ? text.substr(0, unit.num_bytes) : kReplacement;
    text.remove_prefix(unit.num_bytes);
  }
  return 0;
}

std::string LossyUtf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  if (AppendValidUtf8(text, out) > 0) out += kReplacement;
  return out;
}

void AppendUtf8(char32_t code, std::string& out) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(static_cast<uint8_t>(byte)); };
  const auto put_tail = [&](int shift) { put(0x80u | ((code >> shift) & 0x3Fu)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0u | (code >> 6));
    put_tail(0);
  } else if (code < 0x10000) {
    put(0xE0u | (code >> 12));
    put_tail(6);
    put_tail(0);
  } else {
    put(0xF0u | (code >> 18));
    put_tail(12);
    put_tail(6);
    put_tail(0);
  }
}

}  // namespace fathom
