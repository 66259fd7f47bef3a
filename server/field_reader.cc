#include "server/field_reader.h"

#include <cmath>

namespace fathom {
namespace {

std::string ItemPath(std::string_view path, size_t index) {
  return std::string(path) + "." + std::to_string(index);
}

// A number may be written with any number of digits.
std::string NumberOrBool(const JsonValue& value) {
  constexpr size_t kMaxChars = 40;
  const std::string text = ToPythonJson(value);
  return text.size() <= kMaxChars ? text : text.substr(0, kMaxChars) + "...";
}

// The value as written for scalars, else its type.
std::string Describe(const JsonValue& value) {
  if (value.is_number() || value.IfBool() != nullptr) return NumberOrBool(value);
  if (const std::string* text = value.IfString()) return "the string " + QuoteForError(*text);
  return "a value of type " + std::string(value.TypeName());
}

std::string NumberText(double value) { return PythonFloatRepr(value); }

}  // namespace

MaybeError ReadTokenIds(const JsonValue& value, std::string_view path, int vocab_size,
                        std::vector<TokenId>* ids) {
  const JsonValue::Array* items = value.IfArray();
  if (items == nullptr) {
    return BadRequest(std::string(path),
                      std::string(path) + " must be a list of token ids, got " + Describe(value));
  }
  ids->reserve(items->size());
  for (size_t i = 0; i < items->size(); ++i) {
    const std::optional<int64_t> id = (*items)[i].AsInt64();
    if (!id || *id < 0 || *id >= vocab_size) {
      const std::string item = ItemPath(path, i);
      return BadRequest(item, item + " must be a token id from 0 to " +
                                  std::to_string(vocab_size - 1) + ", got " +
                                  Describe((*items)[i]));
    }
    ids->push_back(static_cast<TokenId>(*id));
  }
  return std::nullopt;
}

const JsonValue* FieldReader::Find(std::string_view name) const {
  return ok() ? object_->FindNonNull(name) : nullptr;
}

bool FieldReader::Bool(std::string_view name, bool fallback) {
  const JsonValue* value = Find(name);
  if (value == nullptr) return fallback;
  if (const bool* boolean = value->IfBool()) return *boolean;
  FailType(name, "true or false", *value);
  return fallback;
}

std::optional<int64_t> FieldReader::Int(std::string_view name, int64_t min, int64_t max) {
  const JsonValue* value = Find(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> number = value->AsInt64();
  if (!number || *number < min || *number > max) {
    FailType(name, "an integer from " + std::to_string(min) + " to " + std::to_string(max), *value);
    return std::nullopt;
  }
  return number;
}

std::optional<double> FieldReader::Number(std::string_view name, double min, double max) {
  const JsonValue* value = Find(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<double> number = value->AsDouble();
  if (!number || !std::isfinite(*number) || *number < min || *number > max) {
    FailType(name, "a number from " + NumberText(min) + " to " + NumberText(max), *value);
    return std::nullopt;
  }
  return number;
}

std::optional<std::string> FieldReader::String(std::string_view name) {
  const JsonValue* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (const std::string* text = value->IfString()) return *text;
  FailType(name, "a string", *value);
  return std::nullopt;
}

std::vector<TokenId> FieldReader::TokenIds(std::string_view name, int vocab_size) {
  std::vector<TokenId> ids;
  if (const JsonValue* value = Find(name)) {
    Merge(ReadTokenIds(*value, PathOf(name), vocab_size, &ids));
  }
  return ids;
}

std::vector<std::string> FieldReader::Strings(std::string_view name, size_t max_items) {
  const JsonValue* value = Find(name);
  if (value == nullptr) return {};
  std::vector<std::string> strings;
  if (const std::string* text = value->IfString()) {
    strings.push_back(*text);
  } else if (const JsonValue::Array* items = value->IfArray()) {
    if (items->size() > max_items) {
      Fail(name, "may hold at most " + std::to_string(max_items) + " strings, got " +
                     std::to_string(items->size()));
      return {};
    }
    for (size_t i = 0; i < items->size(); ++i) {
      const std::string* item = (*items)[i].IfString();
      if (item == nullptr) {
        FailType(ItemPath(name, i), "a string", (*items)[i]);
        return {};
      }
      strings.push_back(*item);
    }
  } else {
    FailType(name, "a string or a list of strings", *value);
  }
  for (const std::string& text : strings) {
    if (text.empty()) Fail(name, "must not hold an empty string");
  }
  return strings;
}

const JsonValue* FieldReader::Object(std::string_view name) {
  const JsonValue* value = Find(name);
  if (value == nullptr || value->IfObject() != nullptr) return value;
  FailType(name, "an object", *value);
  return nullptr;
}

void FieldReader::Fail(std::string_view name, std::string message) {
  const std::string path = PathOf(name);
  Merge(BadRequest(path, path + " " + std::move(message)));
}

void FieldReader::Refuse(std::string_view name) { Merge(NotSupported(PathOf(name))); }

void FieldReader::Merge(MaybeError error) {
  if (ok() && error) error_ = std::move(error);
}

void FieldReader::FailType(std::string_view name, std::string_view wanted, const JsonValue& found) {
  Fail(name, "must be " + std::string(wanted) + ", got " + Describe(found));
}

std::string FieldReader::PathOf(std::string_view name) const {
  return path_.empty() ? std::string(name) : path_ + "." + std::string(name);
}

}  // namespace fathom
