#include "chat/tool_values.h"

#include <cmath>
#include <utility>
#include <vector>

#include "chat/json_parse.h"
#include "chat/white_space.h"

namespace fathom {
namespace {

// 0 for a name that JSON Schema doesn't have.
uint8_t TypeByName(std::string_view name) {
  if (name == "null") return JsonTypes::kNull;
  if (name == "boolean") return JsonTypes::kBoolean;
  if (name == "integer") return JsonTypes::kInteger;
  if (name == "number") return JsonTypes::kNumber;
  if (name == "string") return JsonTypes::kString;
  if (name == "array") return JsonTypes::kArray;
  if (name == "object") return JsonTypes::kObject;
  return 0;
}

bool IsInteger(const JsonValue& number) {
  if (number.IfNumberText()->find_first_of(".eE") == std::string::npos) return true;
  const std::optional<double> value = number.AsDouble();
  return value && std::floor(*value) == *value;
}

uint8_t TypeOf(const JsonValue& value) {
  if (value.is_number()) return IsInteger(value) ? JsonTypes::kInteger : JsonTypes::kNumber;
  return TypeByName(value.TypeName());
}

// The types that the schema names itself; `known` false if it names something else.
uint8_t NamedTypes(const JsonValue& type, bool& known) {
  uint8_t types = 0;
  const auto add = [&](const JsonValue& name) {
    const uint8_t named = name.IfString() == nullptr ? 0 : TypeByName(*name.IfString());
    known = known && named != 0;
    types |= named;
  };
  if (type.IfArray() == nullptr) {
    add(type);
  } else {
    for (const JsonValue& name : *type.IfArray()) add(name);
  }
  return types;
}

}  // namespace

JsonTypes JsonTypes::OfSchema(const JsonValue& schema) {
  uint8_t types = 0;
  bool known = true;
  // Alternatives nest; a list of what is left instead of recursion.
  std::vector<const JsonValue*> left = {&schema};
  while (!left.empty() && known) {
    const JsonValue& part = *left.back();
    left.pop_back();
    const JsonValue::Array* alternatives = nullptr;
    for (const char* key : {"anyOf", "oneOf"}) {
      const JsonValue* found = part.Find(key);
      if (alternatives == nullptr && found != nullptr) alternatives = found->IfArray();
    }
    const JsonValue* values = part.Find("enum");
    if (const JsonValue* type = part.Find("type")) {
      types |= NamedTypes(*type, known);
    } else if (alternatives != nullptr) {
      for (const JsonValue& alternative : *alternatives) left.push_back(&alternative);
    } else if (values != nullptr && values->IfArray() != nullptr) {
      for (const JsonValue& value : *values->IfArray()) types |= TypeOf(value);
    } else {
      known = false;
    }
  }
  JsonTypes result;
  if (known) result.types_ = types;
  return result;
}

bool JsonTypes::Contain(const JsonValue& value) const {
  uint8_t accepted = TypeOf(value);
  if (accepted == kInteger) accepted |= kNumber;
  return (types_ & accepted) != 0;
}

JsonTypes ToolSchema::TypesOf(std::string_view parameter) const {
  const auto found = parameters.find(parameter);
  return found == parameters.end() ? JsonTypes() : found->second;
}

ToolTable::ToolTable(std::span<const JsonValue> functions) {
  for (const JsonValue& function : functions) {
    const JsonValue* name = function.Find("name");
    if (name == nullptr || name->IfString() == nullptr) continue;
    const auto [tool, is_new] = tools_.try_emplace(*name->IfString());
    if (!is_new) continue;
    const JsonValue* parameters = function.Find("parameters");
    const JsonValue* properties = parameters == nullptr ? nullptr : parameters->Find("properties");
    if (properties == nullptr || properties->IfObject() == nullptr) continue;
    tool->second.has_properties = true;
    for (const JsonValue::Member& property : *properties->IfObject()) {
      tool->second.parameters.emplace(property.key, JsonTypes::OfSchema(property.value));
    }
  }
}

const ToolSchema* ToolTable::Find(std::string_view name) const {
  const auto found = tools_.find(name);
  return found == tools_.end() ? nullptr : &found->second;
}

std::string JsonStringText(std::string_view text) {
  std::string json = "\"";
  AppendJsonEscaped(text, json);
  return json += '"';
}

std::optional<JsonValue> ReadStrictJson(std::string_view text) {
  JsonParseOptions options;
  --options.max_depth;  // the arguments' object is around it, and they must be readable as well
  Result<JsonValue> value = ParseJson(text, options);
  if (!value.ok()) return std::nullopt;
  return std::move(value).value();
}

bool IsStringParameter(JsonTypes types, const std::optional<std::string>& string_attribute) {
  return string_attribute != "false" && types.may_be_string();
}

TypedValue ReadTypedValue(JsonTypes types, const std::optional<std::string>& string_attribute,
                          std::string_view text) {
  const bool marked_string = string_attribute == "true";
  const std::string_view trimmed = TrimSpace(text);
  const std::optional<JsonValue> value = ReadStrictJson(trimmed);
  const TypedValue as_string{JsonStringText(text), !marked_string};
  if (marked_string) {
    if (value && types.Contain(*value)) return {std::string(trimmed), true};
    return as_string;
  }
  if (types.is_only_string()) {
    if (value && value->IfString() != nullptr) return {std::string(trimmed), false};
    return as_string;
  }
  if (value) return {std::string(trimmed), string_attribute != "false"};
  if (trimmed == "True") return {"true", true};
  if (trimmed == "False") return {"false", true};
  if (trimmed == "None") return {"null", true};
  return as_string;
}

}  // namespace fathom
