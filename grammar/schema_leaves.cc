#include "grammar/schema_leaves.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "grammar/schema_check.h"

namespace fathom {

namespace {

using namespace schema_types;  // NOLINT(google-build-using-namespace): a handful of constants

constexpr int kMaxDepth = 64;
constexpr int64_t kMaxExpanded = 200'000;
constexpr size_t kMaxAlternatives = 2'000;
constexpr size_t kMaxKeptBytes = size_t{8} << 20;
constexpr std::array<std::string_view, 4> kCombinators = {"$ref", "allOf", "anyOf", "oneOf"};

TypeSet TypeOfWord(std::string_view word) {
  if (word == "null") return kNull;
  if (word == "boolean") return kBoolean;
  if (word == "object") return kObject;
  if (word == "array") return kArray;
  if (word == "integer") return kInteger;
  if (word == "number") return kNumber;
  return word == "string" ? kString : 0;
}

JsonValue WordsOf(TypeSet types) {
  JsonValue::Array words;
  const auto add = [&](const char* word) { words.push_back(JsonValue::String(word)); };
  if ((types & kNull) != 0) add("null");
  if ((types & kBoolean) != 0) add("boolean");
  if ((types & kObject) != 0) add("object");
  if ((types & kArray) != 0) add("array");
  if ((types & kFraction) != 0) {
    add("number");
  } else if ((types & kInteger) != 0) {
    add("integer");
  }
  if ((types & kString) != 0) add("string");
  return JsonValue::FromArray(std::move(words));
}

bool IsCombinator(std::string_view key) {
  return std::find(kCombinators.begin(), kCombinators.end(), key) != kCombinators.end();
}

// The values of enum or const; none when there is neither.
const JsonValue* ConstOf(const JsonValue& leaf) { return leaf.Find("const"); }

std::set<std::string> ValuesOf(const JsonValue& leaf) {
  std::set<std::string> values;
  if (const JsonValue* constant = ConstOf(leaf)) {
    values.insert(ToPythonJson(*constant));
  } else if (const JsonValue* list = leaf.FindNonNull("enum")) {
    for (const JsonValue& value : *list->IfArray()) values.insert(ToPythonJson(value));
  }
  return values;
}

bool HaveNoneInCommon(const std::set<std::string>& a, const std::set<std::string>& b) {
  return std::none_of(a.begin(), a.end(), [&](const std::string& v) { return b.contains(v); });
}

bool IsRequired(const JsonValue& leaf, std::string_view key) {
  const JsonValue* required = leaf.FindNonNull("required");
  return required != nullptr &&
         std::any_of(required->IfArray()->begin(), required->IfArray()->end(),
                     [&](const JsonValue& name) { return *name.IfString() == key; });
}

// Whether it is plain to see that nothing conforms to both: no common type, different constants, or
// objects told apart by a required member with different constants.
bool AreDisjoint(const JsonValue& a, const JsonValue& b) {
  if ((TypesOf(a) & TypesOf(b)) == 0) return true;
  const auto values_a = ValuesOf(a), values_b = ValuesOf(b);
  if (!values_a.empty() && !values_b.empty()) return HaveNoneInCommon(values_a, values_b);
  if ((TypesOf(a) & TypesOf(b)) != kObject) return false;
  const JsonValue *properties_a = a.FindNonNull("properties"),
                  *properties_b = b.FindNonNull("properties");
  if (properties_a == nullptr || properties_b == nullptr) return false;
  for (const auto& [key, schema] : *properties_a->IfObject()) {
    const JsonValue* other = properties_b->Find(key);
    if (other == nullptr || !IsRequired(a, key) || !IsRequired(b, key)) continue;
    const auto mine = ValuesOf(schema), theirs = ValuesOf(*other);
    if (!mine.empty() && !theirs.empty() && HaveNoneInCommon(mine, theirs)) return true;
  }
  return false;
}

JsonValue AllOf(const JsonValue& a, const JsonValue& b) {
  return JsonValue::FromObject({{"allOf", JsonValue::FromArray({a, b})}});
}

}  // namespace

bool IsAnnotation(std::string_view keyword) {
  static const std::set<std::string_view> kAnnotations = {
      "title",      "description", "default",   "examples", "example",
      "$schema",    "$id",         "$comment",  "$defs",    "definitions",
      "deprecated", "readOnly",    "writeOnly", "strict",   "$anchor"};
  return kAnnotations.contains(keyword);
}

TypeSet TypeOfValue(const JsonValue& value) {
  if (value.is_null()) return kNull;
  if (value.IfBool() != nullptr) return kBoolean;
  if (value.IfString() != nullptr) return kString;
  if (value.IfObject() != nullptr) return kObject;
  if (value.IfArray() != nullptr) return kArray;
  return value.AsInt64().has_value() ? kInteger : kFraction;
}

TypeSet TypesOf(const JsonValue& leaf) {
  if (const bool* any = leaf.IfBool()) return *any ? kAll : 0;
  TypeSet types = kAll;
  if (const JsonValue* type = leaf.FindNonNull("type")) {
    types = 0;
    if (type->IfString() != nullptr) types = TypeOfWord(*type->IfString());
    if (const JsonValue::Array* words = type->IfArray()) {
      for (const JsonValue& word : *words) types |= TypeOfWord(*word.IfString());
    }
  }
  const JsonValue* list = leaf.FindNonNull("enum");
  if (const JsonValue* constant = ConstOf(leaf)) {
    return types & TypeOfValue(*constant);
  }
  if (list != nullptr) {
    TypeSet found = 0;
    for (const JsonValue& value : *list->IfArray()) found |= TypeOfValue(value);
    return types & found;
  }
  if (types != kAll) return types;
  // No type given. The standard lets every other type through then; who writes `properties` means
  // an object.
  const auto has = [&](std::initializer_list<std::string_view> keys) {
    return std::any_of(keys.begin(), keys.end(),
                       [&](std::string_view key) { return leaf.FindNonNull(key) != nullptr; });
  };
  if (has({"properties", "required", "additionalProperties"})) return kObject;
  if (has({"items", "prefixItems", "minItems", "maxItems"})) return kArray;
  if (has({"pattern", "minLength", "maxLength", "format"})) return kString;
  if (has({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})) return kNumber;
  return kAll;
}

SchemaLeaves::SchemaLeaves(const JsonValue& root, std::string root_path, SchemaOptions options)
    : root_(root), root_path_(std::move(root_path)), options_(options) {}

Result<std::vector<SchemaLeaves::Leaf>> SchemaLeaves::Of(const JsonValue& schema,
                                                         const std::string& path) {
  return Expand(schema, path, 0, false);
}

Result<std::vector<SchemaLeaves::Leaf>> SchemaLeaves::Expand(const JsonValue& schema,
                                                             const std::string& path, int depth,
                                                             bool is_shared) {
  if (depth > kMaxDepth) {
    return InvalidArgument(path + ": the schema refers to itself without end");
  }
  if (++num_expanded_ > kMaxExpanded) {
    return InvalidArgument(path + ": the schema has too many combinations of alternatives");
  }
  if (schema.IfObject() == nullptr) return std::vector<Leaf>{{&schema, path, is_shared}};

  // What stands beside the combinators is one more part that must hold.
  JsonValue::Object beside;
  bool has_combinator = false;
  for (const JsonValue::Member& member : *schema.IfObject()) {
    if (member.value.is_null() && member.key != "const") continue;
    if (IsCombinator(member.key)) {
      has_combinator = true;
    } else if (!IsAnnotation(member.key)) {
      beside.push_back(member);
    }
  }
  if (!has_combinator) return std::vector<Leaf>{{&schema, path, is_shared}};

  std::vector<Leaf> leaves;
  bool is_first = true;
  if (!beside.empty()) {
    FATHOM_ASSIGN_OR_RETURN(const JsonValue* kept, Keep(JsonValue::FromObject(std::move(beside))));
    leaves = {{kept, path, true}};
    is_first = false;
  }
  const auto add = [&](Result<std::vector<Leaf>> part) -> Status {
    if (!part.ok()) return part.status();
    if (std::exchange(is_first, false)) {
      leaves = std::move(part).value();
    } else {
      FATHOM_ASSIGN_OR_RETURN(leaves, Cross(leaves, *part, path));
    }
    if (leaves.size() <= kMaxAlternatives) return OkStatus();
    return InvalidArgument(path + ": the schema has more than " + std::to_string(kMaxAlternatives) +
                           " alternatives");
  };
  if (const JsonValue* ref = schema.FindNonNull("$ref")) {
    const auto target = ResolveRef(root_, *ref->IfString());
    if (!target.ok()) {
      return Status(target.status().code(), path + ".$ref: " + target.status().message());
    }
    std::string target_path = root_path_;
    const std::string& pointer = *ref->IfString();
    if (pointer.size() > 2) target_path += "." + pointer.substr(2, 200);
    std::replace(target_path.begin(), target_path.end(), '/', '.');
    FATHOM_RETURN_IF_ERROR(add(Expand(**target, target_path, depth + 1, true)));
  }
  if (const JsonValue* all = schema.FindNonNull("allOf")) {
    size_t index = 0;
    for (const JsonValue& part : *all->IfArray()) {
      const std::string at = path + ".allOf[" + std::to_string(index++) + "]";
      FATHOM_RETURN_IF_ERROR(add(Expand(part, at, depth + 1, is_shared)));
    }
  }
  if (const JsonValue* any = schema.FindNonNull("anyOf")) {
    std::vector<Leaf> branches;
    size_t index = 0;
    for (const JsonValue& part : *any->IfArray()) {
      const std::string at = path + ".anyOf[" + std::to_string(index++) + "]";
      FATHOM_ASSIGN_OR_RETURN(std::vector<Leaf> more, Expand(part, at, depth + 1, is_shared));
      branches.insert(branches.end(), more.begin(), more.end());
    }
    FATHOM_RETURN_IF_ERROR(add(std::move(branches)));
  }
  if (const JsonValue* one = schema.FindNonNull("oneOf")) {
    FATHOM_RETURN_IF_ERROR(add(ExpandOneOf(*one->IfArray(), path, depth, is_shared)));
  }
  return leaves;
}

// One and only one of the branches: the same as any of them when no two can hold together.
Result<std::vector<SchemaLeaves::Leaf>> SchemaLeaves::ExpandOneOf(const JsonValue::Array& branches,
                                                                  const std::string& path,
                                                                  int depth, bool is_shared) {
  std::vector<Leaf> leaves;
  for (size_t i = 0; i < branches.size(); ++i) {
    const std::string at = path + ".oneOf[" + std::to_string(i) + "]";
    FATHOM_ASSIGN_OR_RETURN(std::vector<Leaf> more, Expand(branches[i], at, depth + 1, is_shared));
    for (const Leaf& old : leaves) {
      for (const Leaf& leaf : more) {
        num_expanded_ += 1;
        if (options_.lenient || AreDisjoint(*old.schema, *leaf.schema)) continue;
        return Unimplemented(at +
                             ": cannot tell it from another branch of oneOf; use anyOf, or "
                             "give each a required member with its own const");
      }
    }
    leaves.insert(leaves.end(), more.begin(), more.end());
    if (leaves.size() > kMaxAlternatives) break;  // refused by the caller
  }
  return leaves;
}

Result<std::vector<SchemaLeaves::Leaf>> SchemaLeaves::Cross(const std::vector<Leaf>& a,
                                                            const std::vector<Leaf>& b,
                                                            const std::string& path) {
  std::vector<Leaf> out;
  if (a.size() * b.size() > kMaxAlternatives) {
    return InvalidArgument(path + ": the schema has more than " + std::to_string(kMaxAlternatives) +
                           " alternatives");
  }
  for (const Leaf& left : a) {
    for (const Leaf& right : b) {
      num_expanded_ += 1;
      FATHOM_ASSIGN_OR_RETURN(JsonValue merged, Merge(*left.schema, *right.schema, path));
      FATHOM_ASSIGN_OR_RETURN(const JsonValue* kept, Keep(std::move(merged)));
      out.push_back({kept, path, true});
    }
  }
  return out;
}

Result<const JsonValue*> SchemaLeaves::Keep(JsonValue schema) {
  std::string text = ToPythonJson(schema);
  const auto known = kept_.find(text);
  if (known != kept_.end()) return known->second.get();
  kept_bytes_ += text.size();
  if (kept_bytes_ > kMaxKeptBytes) {
    return InvalidArgument(root_path_ + ": the schema's allOf and $ref make it too large");
  }
  auto& place = kept_[std::move(text)];
  place = std::make_unique<JsonValue>(std::move(schema));
  return place.get();
}

namespace {

// Members that the other side's additionalProperties has something to say about.
bool Restricts(const JsonValue& a, const JsonValue& b) {
  const JsonValue* extra = a.FindNonNull("additionalProperties");
  const JsonValue* properties = b.FindNonNull("properties");
  if (extra == nullptr || properties == nullptr) return false;
  if (extra->IfBool() != nullptr && *extra->IfBool()) return false;
  const JsonValue* own = a.FindNonNull("properties");
  return std::any_of(
      properties->IfObject()->begin(), properties->IfObject()->end(),
      [&](const JsonValue::Member& m) { return own == nullptr || own->Find(m.key) == nullptr; });
}

}  // namespace

Result<JsonValue> SchemaLeaves::Merge(const JsonValue& a, const JsonValue& b,
                                      const std::string& path) {
  if (const bool* any = a.IfBool()) return *any ? b : a;
  if (const bool* any = b.IfBool()) return *any ? a : b;
  if (!options_.lenient && (Restricts(a, b) || Restricts(b, a))) {
    return Unimplemented(path +
                         ": additionalProperties of one schema restricts the properties of "
                         "another that must hold too");
  }
  JsonValue::Object out;
  for (const JsonValue::Member& member : *a.IfObject()) {
    const JsonValue* other = b.Find(member.key);
    if (IsAnnotation(member.key)) continue;
    if (other == nullptr || (other->is_null() && member.key != "const")) {
      out.push_back(member);
      continue;
    }
    if (member.key == "const" && ToPythonJson(member.value) != ToPythonJson(*other)) {
      return JsonValue::Bool(false);
    }
    FATHOM_ASSIGN_OR_RETURN(JsonValue merged, MergeKeyword(member.key, member.value, *other, path));
    out.push_back({member.key, std::move(merged)});
  }
  for (const JsonValue::Member& member : *b.IfObject()) {
    if (a.Find(member.key) == nullptr && !IsAnnotation(member.key)) out.push_back(member);
  }
  return JsonValue::FromObject(std::move(out));
}

Result<JsonValue> SchemaLeaves::MergeKeyword(const std::string& key, const JsonValue& a,
                                             const JsonValue& b, const std::string& path) {
  if (a.is_null() && key != "const") return b;
  if (ToPythonJson(a) == ToPythonJson(b)) return a;
  if (key == "type") {
    const auto types_of = [](const JsonValue& value) {
      return TypesOf(JsonValue::FromObject({{"type", value}}));
    };
    return WordsOf(types_of(a) & types_of(b));
  }
  if (key == "enum") {
    std::set<std::string> theirs;
    for (const JsonValue& value : *b.IfArray()) theirs.insert(ToPythonJson(value));
    JsonValue::Array common;
    for (const JsonValue& value : *a.IfArray()) {
      if (theirs.contains(ToPythonJson(value))) common.push_back(value);
    }
    return JsonValue::FromArray(std::move(common));
  }
  if (key == "required") {
    JsonValue::Array names = *a.IfArray();
    for (const JsonValue& name : *b.IfArray()) {
      const bool is_new = std::none_of(names.begin(), names.end(), [&](const JsonValue& old) {
        return *old.IfString() == *name.IfString();
      });
      if (is_new) names.push_back(name);
    }
    return JsonValue::FromArray(std::move(names));
  }
  if (key == "properties") {
    JsonValue::Object properties;
    for (const JsonValue::Member& member : *a.IfObject()) {
      const JsonValue* other = b.Find(member.key);
      properties.push_back(
          {member.key, other == nullptr || ToPythonJson(member.value) == ToPythonJson(*other)
                           ? member.value
                           : AllOf(member.value, *other)});
    }
    for (const JsonValue::Member& member : *b.IfObject()) {
      if (a.Find(member.key) == nullptr) properties.push_back(member);
    }
    return JsonValue::FromObject(std::move(properties));
  }
  if (key == "items" || key == "additionalProperties") {
    if (a.IfArray() == nullptr && b.IfArray() == nullptr) return AllOf(a, b);
  }
  if (const auto x = a.AsDouble(), y = b.AsDouble(); x.has_value() && y.has_value()) {
    const bool is_lower = key.starts_with("min") || key == "exclusiveMinimum";
    const bool is_upper = key.starts_with("max") || key == "exclusiveMaximum";
    if (is_lower) return *x >= *y ? a : b;
    if (is_upper) return *x <= *y ? a : b;
  }
  if (options_.lenient) return a;
  return Unimplemented(path + ": two schemas that must both hold give " + key +
                       " different values");
}

}  // namespace fathom
