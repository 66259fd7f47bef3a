// Test helper: the vector files of tests/data, read with the folder's own JSON reader because key
// order and number spelling matter there.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "chat/json_parse.h"

namespace fathom {

inline JsonValue ReadVectorFile(const std::string& name) {
  const std::string path = std::string(FATHOM_SOURCE_DIR) + "/tests/data/vectors/" + name;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  Result<JsonValue> json = ParseJson(text.str());
  EXPECT_TRUE(json.ok()) << path << ": " << json.status().ToString();
  return json.ok() ? *json : JsonValue();
}

// Member that must be there and be a string.
inline std::string StringAt(const JsonValue& object, std::string_view key) {
  const JsonValue* value = object.Find(key);
  if (value == nullptr || value->IfString() == nullptr) {
    ADD_FAILURE() << "no string " << key << " in " << ToPythonJson(object).substr(0, 200);
    return {};
  }
  return *value->IfString();
}

// Member that must be there and be an array.
inline const JsonValue::Array& ArrayAt(const JsonValue& object, std::string_view key) {
  static const JsonValue::Array kEmpty;
  const JsonValue* value = object.Find(key);
  if (value == nullptr || value->IfArray() == nullptr) {
    ADD_FAILURE() << "no array " << key;
    return kEmpty;
  }
  return *value->IfArray();
}

}  // namespace fathom
