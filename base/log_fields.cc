#include "base/log_fields.h"

#include <charconv>

namespace fathom {
namespace {

// Control characters that no message has otherwise: in front of fields that people do not see, of a
// text field, of a number, and between key and value.
constexpr char kForPrograms = '\x1c';
constexpr char kTextField = '\x1e';
constexpr char kNumberField = '\x1d';
constexpr char kValue = '\x1f';

}  // namespace

LogFields LogFields::ForPrograms() {
  LogFields fields;
  fields.text_ += kForPrograms;
  return fields;
}

LogFields& LogFields::Add(std::string_view key, std::string_view value) {
  text_ += kTextField;
  text_ += key;
  text_ += kValue;
  for (const char c : value) text_ += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return *this;
}

LogFields& LogFields::Add(std::string_view key, int64_t value) {
  text_ += kNumberField;
  text_ += key;
  text_ += kValue;
  text_ += std::to_string(value);
  return *this;
}

LogFields& LogFields::Add(std::string_view key, double value) {
  char digits[32];
  const auto [end, error] = std::to_chars(digits, digits + sizeof(digits), value);
  text_ += kNumberField;
  text_ += key;
  text_ += kValue;
  text_.append(digits, error == std::errc() ? static_cast<size_t>(end - digits) : 0);
  return *this;
}

LogMessage SplitLogMessage(std::string_view message) {
  constexpr std::string_view kFields("\x1e\x1d", 2);
  constexpr std::string_view kFirst("\x1e\x1d\x1c", 3);
  LogMessage split;
  size_t at = message.find_first_of(kFirst);
  split.words = message.substr(0, at);
  if (at != std::string_view::npos && message[at] == kForPrograms) {
    split.for_programs = true;
    at = message.find_first_of(kFields, at);
  }
  while (at != std::string_view::npos) {
    const size_t next = message.find_first_of(kFields, at + 1);
    const std::string_view field = message.substr(
        at + 1, next == std::string_view::npos ? std::string_view::npos : next - at - 1);
    if (const size_t value = field.find(kValue); value != std::string_view::npos) {
      split.fields.push_back(
          {field.substr(0, value), field.substr(value + 1), message[at] == kNumberField});
    }
    at = next;
  }
  return split;
}

}  // namespace fathom
