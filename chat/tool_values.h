// Which JSON value a parameter of a tool call stands for, by the tool's schema.
//
// The markup says of each value whether it is a string; models get that wrong, so the schema has a
// say where it is clear. What can't be read as the declared type stays a string: the arguments are
// always valid JSON, and the client validates. Thread safety: pure functions and immutable values.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "chat/json_value.h"

namespace fathom {

// The JSON types that a schema allows.
class JsonTypes {
 public:
  enum Type : uint8_t {
    kNull = 1,
    kBoolean = 2,
    kInteger = 4,
    kNumber = 8,  // integers are numbers, too
    kString = 16,
    kArray = 32,
    kObject = 64
  };

  // From `type` (a name or a list), `anyOf` and `oneOf`, or the values of `enum`. Unknown where one
  // of the alternatives is.
  static JsonTypes OfSchema(const JsonValue& schema);

  [[nodiscard]] bool is_unknown() const { return types_ == 0; }
  [[nodiscard]] bool may_be_string() const { return is_unknown() || (types_ & kString) != 0; }
  [[nodiscard]] bool is_only_string() const { return types_ == kString; }
  // Whether a value is of one of the types; never when they are unknown.
  [[nodiscard]] bool Contain(const JsonValue& value) const;

 private:
  uint8_t types_ = 0;
};

struct ToolSchema {
  bool has_properties = false;  // false: what it takes is unknown
  std::map<std::string, JsonTypes, std::less<>> parameters;

  [[nodiscard]] JsonTypes TypesOf(std::string_view parameter) const;
};

// The tools of a request by name.
class ToolTable {
 public:
  // `function` objects; of two with one name the first counts.
  explicit ToolTable(std::span<const JsonValue> functions);
  // Null for a tool that was not declared.
  [[nodiscard]] const ToolSchema* Find(std::string_view name) const;
  [[nodiscard]] bool empty() const { return tools_.empty(); }

 private:
  std::map<std::string, ToolSchema, std::less<>> tools_;
};

// `text` as a JSON string.
std::string JsonStringText(std::string_view text);

// Strict JSON, no NaN and no trailing comma; none for other text.
std::optional<JsonValue> ReadStrictJson(std::string_view text);

// Whether the value is a string whatever its text is, so that it can be given out as it comes.
// `string_attribute` is what the markup says: true, false, nothing or something else.
bool IsStringParameter(JsonTypes types, const std::optional<std::string>& string_attribute);

struct TypedValue {
  std::string json;
  bool repaired = false;  // other than the markup says
};
// The value of a parameter that IsStringParameter leaves open: the spelling of numbers, inner
// spaces and escapes are kept.
TypedValue ReadTypedValue(JsonTypes types, const std::optional<std::string>& string_attribute,
                          std::string_view text);

}  // namespace fathom
