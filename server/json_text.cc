#include "server/json_text.h"

#include <charconv>

#include "tokenizer/utf8.h"

namespace fathom {
namespace {

constexpr char kHex[] = "0123456789abcdef";

void AppendEscaped(unsigned char c, std::string* out) {
  switch (c) {
    case '"':
      *out += "\\\"";
      return;
    case '\\':
      *out += "\\\\";
      return;
    case '\n':
      *out += "\\n";
      return;
    case '\r':
      *out += "\\r";
      return;
    case '\t':
      *out += "\\t";
      return;
    default:
      *out += "\\u00";
      out->push_back(kHex[c >> 4]);
      out->push_back(kHex[c & 15]);
  }
}

template <typename T>
void AppendChars(T value, std::string* out) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value).ptr;
  out->append(buffer, end);
}

}  // namespace

void AppendJsonString(std::string_view text, std::string* out) {
  if (FindInvalidUtf8(text) != std::string_view::npos) {
    return AppendJsonString(LossyUtf8(text), out);
  }
  out->push_back('"');
  size_t plain = 0;  // start of what needs no escape
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    out->append(text, plain, i - plain);
    AppendEscaped(c, out);
    plain = i + 1;
  }
  out->append(text, plain, text.size() - plain);
  out->push_back('"');
}

void AppendJsonInt(int64_t value, std::string* out) { AppendChars(value, out); }

void AppendJsonNumber(double value, std::string* out) { AppendChars(value, out); }

std::string JsonString(std::string_view text) {
  std::string out;
  AppendJsonString(text, &out);
  return out;
}

}  // namespace fathom
