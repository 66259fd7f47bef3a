#include "grammar/schema_check.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "grammar/regex.h"

namespace fathom {

namespace {

constexpr size_t kMaxEcho = 100;

constexpr std::array<std::string_view, 7> kTypes = {"null",   "boolean", "object", "array",
                                                    "number", "string",  "integer"};
constexpr std::array<std::string_view, 12> kSchemas = {"additionalProperties",
                                                       "unevaluatedProperties",
                                                       "propertyNames",
                                                       "contains",
                                                       "not",
                                                       "if",
                                                       "then",
                                                       "else",
                                                       "unevaluatedItems",
                                                       "additionalItems",
                                                       "contentSchema",
                                                       "items"};
constexpr std::array<std::string_view, 5> kSchemaMaps = {"properties", "patternProperties", "$defs",
                                                         "definitions", "dependentSchemas"};
constexpr std::array<std::string_view, 4> kSchemaLists = {"anyOf", "oneOf", "allOf", "prefixItems"};
constexpr std::array<std::string_view, 8> kCounts = {
    "minLength",     "maxLength",     "minItems",    "maxItems",
    "minProperties", "maxProperties", "minContains", "maxContains"};
constexpr std::array<std::string_view, 5> kNumbers = {"minimum", "maximum", "exclusiveMinimum",
                                                      "exclusiveMaximum", "multipleOf"};
constexpr std::array<std::string_view, 2> kStrings = {"format", "$ref"};

template <size_t n>
bool Has(const std::array<std::string_view, n>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::string Echo(const JsonValue& value) {
  std::string text = ToPythonJson(value);
  if (text.size() > kMaxEcho) {
    size_t end = kMaxEcho;
    while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;
    text = text.substr(0, end) + "...";
  }
  return text;
}

// The recursion is as deep as the value, which its parser bounds.
class Checker {
 public:
  explicit Checker(const JsonValue& root) : root_(root) {}

  Status Schema(const JsonValue& schema, const std::string& path) {
    if (schema.IfBool() != nullptr) return OkStatus();
    if (schema.IfObject() == nullptr) return Bad(path, "a schema (object or boolean)", schema);
    for (const auto& [key, value] : *schema.IfObject()) {
      if (value.is_null()) continue;
      FATHOM_RETURN_IF_ERROR(Keyword(key, value, path + PathStep(key)));
    }
    return OkStatus();
  }

 private:
  static Status Bad(const std::string& path, const std::string& expected, const JsonValue& found) {
    return InvalidArgument(path + ": " + expected + " was expected, found " + Echo(found));
  }

  Status Keyword(std::string_view key, const JsonValue& value, const std::string& path) {
    if (key == "type") return Type(value, path);
    if (key == "required") return Strings(value, path);
    if (key == "enum") {
      if (value.IfArray() == nullptr || value.IfArray()->empty()) {
        return Bad(path, "a list of at least one value", value);
      }
      return OkStatus();
    }
    if (key == "pattern") return Pattern(value, path);
    if (key == "uniqueItems") {
      return value.IfBool() != nullptr ? OkStatus() : Bad(path, "true or false", value);
    }
    if (key == "items" && value.IfArray() != nullptr) return SchemaList(value, path);
    if (Has(kSchemas, key)) return Schema(value, path);
    if (Has(kSchemaLists, key)) return SchemaList(value, path);
    if (Has(kSchemaMaps, key)) {
      if (value.IfObject() == nullptr) return Bad(path, "an object of schemas", value);
      for (const auto& [name, schema] : *value.IfObject()) {
        FATHOM_RETURN_IF_ERROR(Schema(schema, path + PathStep(name)));
      }
      return OkStatus();
    }
    if (Has(kCounts, key)) {
      const auto count = value.AsInt64();
      return count.has_value() && *count >= 0 ? OkStatus()
                                              : Bad(path, "a whole number from 0 on", value);
    }
    if (Has(kNumbers, key)) {
      const auto number = value.AsDouble();
      if (!number.has_value()) return Bad(path, "a number", value);
      if (key == "multipleOf" && *number <= 0) return Bad(path, "a number above 0", value);
      return OkStatus();
    }
    if (Has(kStrings, key)) {
      if (value.IfString() == nullptr) return Bad(path, "a string", value);
      if (key != "$ref") return OkStatus();
      const auto target = ResolveRef(root_, *value.IfString());
      if (!target.ok() && target.status().code() == StatusCode::kInvalidArgument) {
        return InvalidArgument(path + ": " + target.status().message());
      }
    }
    return OkStatus();
  }

  static Status Type(const JsonValue& value, const std::string& path) {
    const auto one = [&](const JsonValue& word) {
      if (word.IfString() != nullptr && Has(kTypes, *word.IfString())) return OkStatus();
      return Bad(path, "a type (null, boolean, object, array, number, string, integer)", word);
    };
    if (value.IfArray() == nullptr) return one(value);
    if (value.IfArray()->empty()) return Bad(path, "at least one type", value);
    for (const JsonValue& word : *value.IfArray()) FATHOM_RETURN_IF_ERROR(one(word));
    return OkStatus();
  }

  static Status Strings(const JsonValue& value, const std::string& path) {
    if (value.IfArray() == nullptr) return Bad(path, "a list of strings", value);
    for (const JsonValue& item : *value.IfArray()) {
      if (item.IfString() == nullptr) return Bad(path, "a list of strings", value);
    }
    return OkStatus();
  }

  Status SchemaList(const JsonValue& value, const std::string& path) {
    if (value.IfArray() == nullptr || value.IfArray()->empty()) {
      return Bad(path, "a list of at least one schema", value);
    }
    size_t index = 0;
    for (const JsonValue& schema : *value.IfArray()) {
      FATHOM_RETURN_IF_ERROR(Schema(schema, path + "[" + std::to_string(index++) + "]"));
    }
    return OkStatus();
  }

  static Status Pattern(const JsonValue& value, const std::string& path) {
    if (value.IfString() == nullptr) return Bad(path, "a string", value);
    GrammarBuilder builder;
    const auto expr =
        RegexToExpr(builder, *value.IfString(), RegexMatch::kFind, TextStyle::kJsonString);
    if (!expr.ok() && expr.status().code() == StatusCode::kInvalidArgument) {
      return InvalidArgument(path + ": " + expr.status().message());
    }
    return OkStatus();
  }

  const JsonValue& root_;
};

// One token of a JSON pointer with ~0, ~1 and the %XX of a URI resolved.
std::string PointerToken(std::string_view token) {
  std::string out;
  for (size_t i = 0; i < token.size(); ++i) {
    unsigned code = 0;
    const char* digits = token.data() + i + 1;
    if (token[i] == '%' && i + 2 < token.size() &&
        std::from_chars(digits, digits + 2, code, 16).ptr == digits + 2) {
      out += static_cast<char>(code);
      i += 2;
    } else {
      out += token[i];
    }
  }
  std::string plain;
  for (size_t i = 0; i < out.size(); ++i) {
    const bool is_escape = out[i] == '~' && i + 1 < out.size();
    if (is_escape && (out[i + 1] == '0' || out[i + 1] == '1')) {
      plain += out[++i] == '0' ? '~' : '/';
    } else {
      plain += out[i];
    }
  }
  return plain;
}

}  // namespace

std::string PathStep(std::string_view key) {
  const bool is_word = !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '$' || c == '-';
  });
  if (is_word && key.size() <= kMaxEcho) return "." + std::string(key);
  return "[" + Echo(JsonValue::String(std::string(key))) + "]";
}

Status ValidateSchema(const JsonValue& schema, std::string_view path) {
  if (schema.is_null()) return OkStatus();
  return Checker(schema).Schema(schema, std::string(path));
}

Result<const JsonValue*> ResolveRef(const JsonValue& root, std::string_view ref) {
  const std::string shown = Echo(JsonValue::String(std::string(ref)));
  if (ref.empty() || ref[0] != '#' || (ref.size() > 1 && ref[1] != '/')) {
    return Unimplemented("the reference " + shown + " is not to a part of this schema (#/...)");
  }
  const JsonValue* at = &root;
  std::string_view rest = ref.substr(1);
  while (!rest.empty()) {
    rest.remove_prefix(1);  // the slash
    const size_t end = std::min(rest.find('/'), rest.size());
    const std::string token = PointerToken(rest.substr(0, end));
    rest.remove_prefix(end);
    const JsonValue* next = at->Find(token);
    if (const JsonValue::Array* array = at->IfArray()) {
      size_t index = 0;
      const auto parsed = std::from_chars(token.data(), token.data() + token.size(), index);
      const bool is_index = parsed.ec == std::errc() && parsed.ptr == token.data() + token.size();
      if (is_index && index < array->size()) next = &(*array)[index];
    }
    if (next == nullptr) return InvalidArgument("the reference " + shown + " leads nowhere");
    at = next;
  }
  if (at->IfObject() == nullptr && at->IfBool() == nullptr) {
    return InvalidArgument("the reference " + shown + " leads to no schema");
  }
  return at;
}

}  // namespace fathom
