// Short ways to make JsonValues, for what is translated from one API to another.
#pragma once

#include <string>
#include <utility>

#include "chat/json_value.h"

namespace fathom {

// Collects the members of an object.
class JsonObjectBuilder {
 public:
  void Set(std::string key, JsonValue value) {
    members_.push_back({std::move(key), std::move(value)});
  }
  void SetText(std::string key, std::string text) {
    Set(std::move(key), JsonValue::String(std::move(text)));
  }
  // Copies a member of another object, where it is there and not null.
  void Copy(const JsonValue& from, std::string_view key, std::string as = {}) {
    const JsonValue* value = from.FindNonNull(key);
    if (value != nullptr) Set(as.empty() ? std::string(key) : std::move(as), *value);
  }
  JsonValue Take() { return JsonValue::FromObject(std::exchange(members_, {})); }

 private:
  JsonValue::Object members_;
};

}  // namespace fathom
