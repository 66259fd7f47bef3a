#include "chat/request_fields.h"

namespace fathom {
namespace {

RequestError WrongType(const std::string& path, std::string_view key, std::string_view expected,
                       const JsonValue& found) {
  const std::string param = path + std::string(key);
  return BadRequest(param, param + " must be " + std::string(expected) + ", not " +
                               std::string(found.TypeName()));
}

}  // namespace

std::optional<RequestError> ReadOptional(const JsonValue& object, const std::string& path,
                                         std::string_view key, std::optional<bool>& out) {
  out.reset();
  const JsonValue* value = object.FindNonNull(key);
  if (value == nullptr) return std::nullopt;
  const bool* boolean = value->IfBool();
  if (boolean == nullptr) return WrongType(path, key, "a boolean", *value);
  out = *boolean;
  return std::nullopt;
}

std::optional<RequestError> ReadOptional(const JsonValue& object, const std::string& path,
                                         std::string_view key, std::optional<std::string>& out) {
  out.reset();
  const JsonValue* value = object.FindNonNull(key);
  if (value == nullptr) return std::nullopt;
  const std::string* text = value->IfString();
  if (text == nullptr) return WrongType(path, key, "a string", *value);
  out = *text;
  return std::nullopt;
}

std::optional<RequestError> ReadOptionalObject(const JsonValue& object, const std::string& path,
                                               std::string_view key, const JsonValue*& out) {
  out = object.FindNonNull(key);
  if (out != nullptr && out->IfObject() == nullptr) return WrongType(path, key, "an object", *out);
  return std::nullopt;
}

std::optional<RequestError> ReadOptionalArray(const JsonValue& object, const std::string& path,
                                              std::string_view key, const JsonValue::Array*& out) {
  out = nullptr;
  const JsonValue* value = object.FindNonNull(key);
  if (value == nullptr) return std::nullopt;
  out = value->IfArray();
  if (out == nullptr) return WrongType(path, key, "a list", *value);
  return std::nullopt;
}

}  // namespace fathom
