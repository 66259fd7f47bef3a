// Typed reads of optional request fields: null and missing are the same, another type is a 400
// whose param is the dotted path. Booleans are not numbers, and nothing is converted from strings.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "chat/json_value.h"
#include "chat/request_error.h"

namespace fathom {

// `path` is the dotted path of `object` with a dot at the end, or empty for the request body. On
// success `out` holds the value, or none if the field is absent.
std::optional<RequestError> ReadOptional(const JsonValue& object, const std::string& path,
                                         std::string_view key, std::optional<bool>& out);
std::optional<RequestError> ReadOptional(const JsonValue& object, const std::string& path,
                                         std::string_view key, std::optional<std::string>& out);
// `out` is null if the field is absent.
std::optional<RequestError> ReadOptionalObject(const JsonValue& object, const std::string& path,
                                               std::string_view key, const JsonValue*& out);
std::optional<RequestError> ReadOptionalArray(const JsonValue& object, const std::string& path,
                                              std::string_view key, const JsonValue::Array*& out);

}  // namespace fathom
