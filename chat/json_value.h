// A JSON value that keeps what a prompt needs: key order, the spelling of numbers, and the text
// that Python's json.dumps(value, ensure_ascii=False) would write.
//
// The official encoder puts tool schemas and call arguments into the prompt with json.dumps, so one
// space or digit more is another prompt. General JSON libraries sort keys or round long integers.
// Values come from ParseJson (json_parse.h), which bounds their depth; the recursion here relies on
// it. Thread safety: values; a const value may be read from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace fathom {

class JsonValue {
 public:
  struct Member;
  using Array = std::vector<JsonValue>;
  using Object = std::vector<Member>;  // in order of first appearance, keys unique

  JsonValue() = default;  // null
  static JsonValue Bool(bool value);
  static JsonValue String(std::string value);
  // `spelling` is a JSON number, or NaN, Infinity, -Infinity.
  static JsonValue NumberFromText(std::string spelling);
  static JsonValue FromArray(Array value);
  static JsonValue FromObject(Object value);

  [[nodiscard]] bool is_null() const;
  [[nodiscard]] bool is_number() const;
  // Null when the value is of another type.
  [[nodiscard]] const bool* IfBool() const;
  [[nodiscard]] const std::string* IfString() const;
  [[nodiscard]] const Array* IfArray() const;
  [[nodiscard]] const Object* IfObject() const;
  // The number as it was written; null for other types.
  [[nodiscard]] const std::string* IfNumberText() const;

  // Member of an object; null when absent or when this is no object. Linear in the number of keys.
  [[nodiscard]] const JsonValue* Find(std::string_view key) const;
  // As Find, but a member that is null counts as absent.
  [[nodiscard]] const JsonValue* FindNonNull(std::string_view key) const;

  // Whole number without point or exponent that fits; none otherwise.
  [[nodiscard]] std::optional<int64_t> AsInt64() const;
  // Nearest double of a number; none for other types and when it is not finite.
  [[nodiscard]] std::optional<double> AsDouble() const;

  // Python's bool(value): false for null, false, 0, "", [] and {}.
  [[nodiscard]] bool IsTruthy() const;
  // "null", "boolean", "number", "string", "array" or "object", for messages.
  [[nodiscard]] std::string_view TypeName() const;

 private:
  struct Number {
    std::string spelling;
  };
  using Storage = std::variant<std::monostate, bool, Number, std::string, Array, Object>;
  explicit JsonValue(Storage storage);

  Storage storage_;
};

struct JsonValue::Member {
  std::string key;
  JsonValue value;
};

// What looks into the storage needs Member whole, so it stands here and not in the class.
inline JsonValue::JsonValue(Storage storage) : storage_(std::move(storage)) {}
inline JsonValue JsonValue::Bool(bool value) { return JsonValue(Storage(value)); }
inline JsonValue JsonValue::String(std::string value) {
  return JsonValue(Storage(std::move(value)));
}
inline JsonValue JsonValue::NumberFromText(std::string spelling) {
  return JsonValue(Storage(Number{std::move(spelling)}));
}
inline JsonValue JsonValue::FromArray(Array value) { return JsonValue(Storage(std::move(value))); }
inline JsonValue JsonValue::FromObject(Object value) {
  return JsonValue(Storage(std::move(value)));
}
inline bool JsonValue::is_null() const { return std::holds_alternative<std::monostate>(storage_); }
inline bool JsonValue::is_number() const { return std::holds_alternative<Number>(storage_); }
inline const bool* JsonValue::IfBool() const { return std::get_if<bool>(&storage_); }
inline const std::string* JsonValue::IfString() const {
  return std::get_if<std::string>(&storage_);
}
inline const JsonValue::Array* JsonValue::IfArray() const { return std::get_if<Array>(&storage_); }
inline const JsonValue::Object* JsonValue::IfObject() const {
  return std::get_if<Object>(&storage_);
}

// Text of json.dumps(value, ensure_ascii=False): ", " and ": " between parts; integers with all
// their digits; floats as Python's repr (shortest digits that read back equal, exponent form below
// 1e-4 and from 1e16); only '"', '\' and U+0000 to U+001F escaped.
std::string ToPythonJson(const JsonValue& value);

// Appends the inside of that text's string: escaped, without the quotes.
void AppendJsonEscaped(std::string_view text, std::string& out);

// Python's repr of a double, with Infinity and NaN spelled as json.dumps does.
std::string PythonFloatRepr(double value);

}  // namespace fathom
