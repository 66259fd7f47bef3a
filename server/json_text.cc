#include "server/json_text.h"

#include <charconv>

#include "chat/json_value.h"
#include "tokenizer/utf8.h"

namespace fathom {
namespace {

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
  AppendJsonEscaped(text, *out);
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
