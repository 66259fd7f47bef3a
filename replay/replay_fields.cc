#include "replay/replay_fields.h"

#include <algorithm>
#include <utility>

namespace fathom {
namespace {

constexpr size_t kMaxShown = 100;  // bytes of a bad value in a message

std::string Shown(const std::string& text) {
  return "'" + (text.size() <= kMaxShown ? text : text.substr(0, kMaxShown) + "...") + "'";
}

}  // namespace

ReplayFields::ReplayFields(const JsonValue& object, const JsonValue* defaults, std::string where)
    : object_(object), defaults_(defaults), where_(std::move(where)) {
  if (object.IfObject() == nullptr) {
    Fail(InvalidArgument(where_ + ": expected an object, found a value of type " +
                         std::string(object.TypeName())));
  }
}

const JsonValue* ReplayFields::Find(std::string_view name) {
  if (std::find(known_.begin(), known_.end(), name) == known_.end()) known_.emplace_back(name);
  if (const JsonValue* value = object_.Find(name)) return value;
  return defaults_ == nullptr ? nullptr : defaults_->Find(name);
}

Status ReplayFields::Problem(std::string_view name, const std::string& what) const {
  return InvalidArgument(where_ + "." + std::string(name) + ": " + what);
}

void ReplayFields::Fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

void ReplayFields::WrongType(std::string_view name, const JsonValue& value,
                             std::string_view wanted) {
  Fail(Problem(name, "expected " + std::string(wanted) + ", found a value of type " +
                         std::string(value.TypeName())));
}

void ReplayFields::Read(std::string_view name, int64_t min, int64_t max, int64_t* out) {
  const JsonValue* value = Find(name);
  if (value == nullptr) return;
  const std::string* spelling = value->IfNumberText();
  if (spelling == nullptr) return WrongType(name, *value, "a whole number");
  const std::optional<int64_t> number = value->AsInt64();
  if (!number || *number < min || *number > max) {
    return Fail(Problem(name, Shown(*spelling) + " is not a whole number from " +
                                  std::to_string(min) + " to " + std::to_string(max)));
  }
  *out = *number;
}

void ReplayFields::Read(std::string_view name, double min, double max, double* out) {
  const JsonValue* value = Find(name);
  if (value == nullptr) return;
  const std::string* spelling = value->IfNumberText();
  if (spelling == nullptr) return WrongType(name, *value, "a number");
  const std::optional<double> number = value->AsDouble();
  if (!number || !(*number >= min && *number <= max)) {
    return Fail(Problem(name, Shown(*spelling) + " is not a number from " + PythonFloatRepr(min) +
                                  " to " + PythonFloatRepr(max)));
  }
  *out = *number;
}

void ReplayFields::Read(std::string_view name, bool* out) {
  const JsonValue* value = Find(name);
  if (value == nullptr) return;
  const bool* flag = value->IfBool();
  if (flag == nullptr) return WrongType(name, *value, "true or false");
  *out = *flag;
}

void ReplayFields::Read(std::string_view name, std::string* out) {
  const JsonValue* value = Find(name);
  if (value == nullptr) return;
  const std::string* text = value->IfString();
  if (text == nullptr) return WrongType(name, *value, "a string");
  *out = *text;
}

void ReplayFields::Read(std::string_view name, std::vector<std::string>* out) {
  const JsonValue* value = Find(name);
  if (value == nullptr) return;
  if (const std::string* text = value->IfString()) {
    *out = {*text};
    return;
  }
  const JsonValue::Array* list = value->IfArray();
  if (list == nullptr) return WrongType(name, *value, "a string or a list of strings");
  out->clear();
  for (const JsonValue& item : *list) {
    const std::string* text = item.IfString();
    if (text == nullptr) return WrongType(name, item, "strings in the list");
    out->push_back(*text);
  }
}

void ReplayFields::ReadChoice(std::string_view name, const std::vector<std::string_view>& choices,
                              size_t* out) {
  std::string text;
  const JsonValue* value = Find(name);
  if (value == nullptr) return;
  if (const std::string* found = value->IfString()) {
    text = *found;
  } else {
    return WrongType(name, *value, "a string");
  }
  const auto choice = std::find(choices.begin(), choices.end(), text);
  if (choice == choices.end()) {
    std::string known;
    for (const std::string_view c : choices) known += (known.empty() ? "" : ", ") + std::string(c);
    return Fail(Problem(name, Shown(text) + " is none of " + known));
  }
  *out = static_cast<size_t>(choice - choices.begin());
}

Status ReplayFields::Finish() {
  if (!status_.ok()) return status_;
  for (const JsonValue::Member& member : *object_.IfObject()) {
    if (std::find(known_.begin(), known_.end(), member.key) != known_.end()) continue;
    std::string known;
    for (const std::string& name : known_) known += (known.empty() ? "" : ", ") + name;
    return InvalidArgument(where_ + ": unknown field " + Shown(member.key) + "; known are " +
                           known);
  }
  return OkStatus();
}

}  // namespace fathom
