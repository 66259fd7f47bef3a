// Schemas without combinators: $ref, allOf, anyOf and oneOf worked in, so that what is left are
// alternatives that each say types and their keywords only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "chat/json_value.h"

namespace fathom {

struct SchemaOptions {
  // Keywords that a grammar cannot enforce are ignored instead of refused. What cannot be written
  // down at all is an error all the same.
  bool lenient = false;
};

// Sets of types.
using TypeSet = uint32_t;
namespace schema_types {
inline constexpr TypeSet kNull = 1, kBoolean = 2, kObject = 4, kArray = 8, kInteger = 16,
                         kFraction = 32,  // numbers that are not whole
    kString = 64, kNumber = kInteger | kFraction, kAll = 127;
}  // namespace schema_types

// Types that the schema (without combinators) allows: its `type`, or where there is none those that
// its keywords speak about; all when it has no such keywords. Values of enum and const count.
TypeSet TypesOf(const JsonValue& leaf);
TypeSet TypeOfValue(const JsonValue& value);

// Keywords that say nothing about which values conform.
bool IsAnnotation(std::string_view keyword);

class SchemaLeaves {
 public:
  struct Leaf {
    const JsonValue* schema = nullptr;  // an object or a boolean; lives as long as the SchemaLeaves
    std::string path;
    bool is_shared = false;  // reached by reference or merged, so that it may contain itself
  };

  // `root` is what references point into; it passed ValidateSchema and outlives this.
  SchemaLeaves(const JsonValue& root, std::string root_path, SchemaOptions options);

  // The alternatives of `schema`, a part of root or of a leaf: a text conforms to it exactly if it
  // conforms to one of them. kUnimplemented where that cannot be said, kInvalidArgument for a
  // schema that is only a reference to itself.
  Result<std::vector<Leaf>> Of(const JsonValue& schema, const std::string& path);

 private:
  Result<std::vector<Leaf>> Expand(const JsonValue& schema, const std::string& path, int depth,
                                   bool is_shared);
  Result<std::vector<Leaf>> ExpandOneOf(const JsonValue::Array& branches, const std::string& path,
                                        int depth, bool is_shared);
  Result<std::vector<Leaf>> Cross(const std::vector<Leaf>& a, const std::vector<Leaf>& b,
                                  const std::string& path);
  Result<JsonValue> Merge(const JsonValue& a, const JsonValue& b, const std::string& path);
  Result<JsonValue> MergeKeyword(const std::string& key, const JsonValue& a, const JsonValue& b,
                                 const std::string& path);
  // One copy of each merged schema, so that equal ones are the same rule.
  Result<const JsonValue*> Keep(JsonValue schema);

  const JsonValue& root_;
  std::string root_path_;
  SchemaOptions options_;
  std::map<std::string, std::unique_ptr<JsonValue>> kept_;
  size_t kept_bytes_ = 0;
  int64_t num_expanded_ = 0;
};

}  // namespace fathom
