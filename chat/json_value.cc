#include "chat/json_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>

namespace fathom {
namespace {

bool IsIntegerText(std::string_view spelling) {
  return spelling.find_first_not_of("-0123456789") == std::string_view::npos;
}

// True when the decimal number is closer to infinity than to zero. Only asked for numbers outside
// the range of double, so a count of digits is enough: one side is above 1e300, the other below
// 1e-300.
bool IsHuge(std::string_view spelling) {
  if (!spelling.empty() && spelling.front() == '-') spelling.remove_prefix(1);
  const size_t exponent_at = spelling.find_first_of("eE");
  const std::string_view mantissa = spelling.substr(0, exponent_at);
  const size_t point = std::min(mantissa.find('.'), mantissa.size());
  const size_t first_digit = mantissa.find_first_of("123456789");
  if (first_digit == std::string_view::npos) return false;
  int64_t magnitude = static_cast<int64_t>(point) - static_cast<int64_t>(first_digit);
  if (exponent_at != std::string_view::npos) {
    std::string_view digits = spelling.substr(exponent_at + 1);
    const bool negative = digits.front() == '-';
    if (negative || digits.front() == '+') digits.remove_prefix(1);
    int64_t exponent = 0;
    for (const char digit : digits) {
      exponent = std::min<int64_t>(exponent * 10 + (digit - '0'), int64_t{1} << 40);
    }
    magnitude += negative ? -exponent : exponent;
  }
  return magnitude > 0;
}

double ToDouble(std::string_view spelling) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (spelling == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (spelling == "Infinity") return kInfinity;
  if (spelling == "-Infinity") return -kInfinity;
  double value = 0;
  // Not strtod: that one reads the point of the process locale.
  const auto parsed = std::from_chars(spelling.data(), spelling.data() + spelling.size(), value);
  if (parsed.ec == std::errc::result_out_of_range) {
    value = IsHuge(spelling) ? kInfinity : 0.0;
    if (spelling.front() == '-') value = -value;
  }
  return value;
}

void AppendString(std::string_view text, std::string& out) {
  out += '"';
  AppendJsonEscaped(text, out);
  out += '"';
}

void AppendNumber(const std::string& spelling, std::string& out) {
  if (!IsIntegerText(spelling)) {
    out += PythonFloatRepr(ToDouble(spelling));
  } else if (spelling == "-0") {
    out += '0';  // Python's integers have no negative zero
  } else {
    out += spelling;
  }
}

void AppendValue(const JsonValue& value, std::string& out) {
  if (const bool* boolean = value.IfBool()) {
    out += *boolean ? "true" : "false";
  } else if (const std::string* number = value.IfNumberText()) {
    AppendNumber(*number, out);
  } else if (const std::string* text = value.IfString()) {
    AppendString(*text, out);
  } else if (const JsonValue::Array* array = value.IfArray()) {
    out += '[';
    for (size_t i = 0; i < array->size(); ++i) {
      if (i > 0) out += ", ";
      AppendValue((*array)[i], out);
    }
    out += ']';
  } else if (const JsonValue::Object* object = value.IfObject()) {
    out += '{';
    for (size_t i = 0; i < object->size(); ++i) {
      if (i > 0) out += ", ";
      AppendString((*object)[i].key, out);
      out += ": ";
      AppendValue((*object)[i].value, out);
    }
    out += '}';
  } else {
    out += "null";
  }
}

}  // namespace

void AppendJsonEscaped(std::string_view text, std::string& out) {
  constexpr char kHex[] = "0123456789abcdef";
  // Most characters need nothing: they go out in runs.
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (static_cast<unsigned char>(c) >= 0x20 && c != '"' && c != '\\') continue;
    out.append(text, begin, i - begin);
    begin = i + 1;
    out += '\\';
    switch (c) {
      case '"':
      case '\\':
        out += c;
        break;
      case '\n':
        out += 'n';
        break;
      case '\r':
        out += 'r';
        break;
      case '\t':
        out += 't';
        break;
      case '\b':
        out += 'b';
        break;
      case '\f':
        out += 'f';
        break;
      default:
        out += "u00";
        out += kHex[(c >> 4) & 0xF];
        out += kHex[c & 0xF];
    }
  }
  out.append(text, begin, text.size() - begin);
}

const std::string* JsonValue::IfNumberText() const {
  const Number* number = std::get_if<Number>(&storage_);
  return number == nullptr ? nullptr : &number->spelling;
}

const JsonValue* JsonValue::Find(std::string_view key) const {
  const Object* object = IfObject();
  if (object == nullptr) return nullptr;
  for (const Member& member : *object) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

const JsonValue* JsonValue::FindNonNull(std::string_view key) const {
  const JsonValue* value = Find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::optional<int64_t> JsonValue::AsInt64() const {
  const std::string* text = IfNumberText();
  if (text == nullptr) return std::nullopt;
  int64_t value = 0;
  const char* end = text->data() + text->size();
  const auto parsed = std::from_chars(text->data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  return value;
}

std::optional<double> JsonValue::AsDouble() const {
  const std::string* text = IfNumberText();
  if (text == nullptr) return std::nullopt;
  const double value = ToDouble(*text);
  if (!std::isfinite(value)) return std::nullopt;
  return value;
}

bool JsonValue::IsTruthy() const {
  if (const bool* boolean = IfBool()) return *boolean;
  if (const std::string* number = IfNumberText()) return ToDouble(*number) != 0.0;
  if (const std::string* text = IfString()) return !text->empty();
  if (const Array* array = IfArray()) return !array->empty();
  if (const Object* object = IfObject()) return !object->empty();
  return false;
}

std::string_view JsonValue::TypeName() const {
  constexpr std::string_view kNames[] = {"null", "boolean", "number", "string", "array", "object"};
  return kNames[storage_.index()];
}

std::string ToPythonJson(const JsonValue& value) {
  std::string out;
  AppendValue(value, out);
  return out;
}

std::string PythonFloatRepr(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  char buffer[32];
  const auto written = std::to_chars(buffer, buffer + sizeof(buffer), std::abs(value),
                                     std::chars_format::scientific);
  const std::string_view text(buffer, static_cast<size_t>(written.ptr - buffer));  // d.ddde[+-]xx
  const size_t exponent_at = text.find('e');
  std::string digits(text.substr(0, 1));
  if (exponent_at > 2) digits += text.substr(2, exponent_at - 2);
  int exponent = 0;
  std::from_chars(text.data() + exponent_at + 2, text.data() + text.size(), exponent);
  if (text[exponent_at + 1] == '-') exponent = -exponent;

  std::string out = std::signbit(value) ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) out += "." + digits.substr(1);
    out += text.substr(exponent_at);  // sign and two digits at least, as Python writes them
  } else if (exponent < 0) {
    out += "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  } else {
    const size_t whole_digits = static_cast<size_t>(exponent) + 1;
    if (digits.size() < whole_digits) digits.append(whole_digits - digits.size(), '0');
    const std::string fraction = digits.substr(whole_digits);
    out += digits.substr(0, whole_digits) + "." + (fraction.empty() ? "0" : fraction);
  }
  return out;
}

}  // namespace fathom
