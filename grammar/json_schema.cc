#include "grammar/json_schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "grammar/regex.h"
#include "grammar/schema_check.h"

namespace fathom {

namespace {

using namespace schema_types;  // NOLINT(google-build-using-namespace): a handful of constants

const JsonValue& AnySchema() {
  static const JsonValue any = JsonValue::Bool(true);
  return any;
}

// Patterns of `format`, ASCII, pinned at both ends.
struct Format {
  std::string_view name, pattern;
};
#define FATHOM_DATE                                                                   \
  "(\\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|" \
  "02-(0[1-9]|1\\d|2[0-8]))|(\\d\\d(0[48]|[2468][048]|[13579][26])|([02468][048]|"    \
  "[13579][26])00)-02-29)"
#define FATHOM_TIME \
  "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)"
#define FATHOM_LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
constexpr std::array<Format, 8> kFormats = {{
    {"date", "^" FATHOM_DATE "$"},
    {"time", "^" FATHOM_TIME "$"},
    {"date-time", "^" FATHOM_DATE "T" FATHOM_TIME "$"},
    {"uuid", "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"},
    {"email", "^[A-Za-z0-9_%+-]+(\\.[A-Za-z0-9_%+-]+)*@" FATHOM_LABEL "(\\." FATHOM_LABEL ")+$"},
    {"ipv4",
     "^((25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)\\.){3}(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)$"},
    {"hostname", "^" FATHOM_LABEL "(\\." FATHOM_LABEL "){0,3}$"},
    {"uri", "^[A-Za-z][A-Za-z0-9+.-]*:([A-Za-z0-9._~:/?#@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+$"},
}};
#undef FATHOM_DATE
#undef FATHOM_TIME
#undef FATHOM_LABEL
// Formats of the standard that are not in the table; others are remarks (int32, password, ...).
constexpr std::array<std::string_view, 10> kOtherFormats = {
    "duration",      "idn-email",    "idn-hostname",          "ipv6", "uri-reference", "iri",
    "iri-reference", "json-pointer", "relative-json-pointer", "regex"};

// Keywords that no grammar here enforces. Null ones are absent; so are those that demand nothing.
constexpr std::array<std::string_view, 17> kUnenforced = {"patternProperties",
                                                          "propertyNames",
                                                          "dependentRequired",
                                                          "dependentSchemas",
                                                          "dependencies",
                                                          "if",
                                                          "then",
                                                          "else",
                                                          "not",
                                                          "contains",
                                                          "minContains",
                                                          "maxContains",
                                                          "multipleOf",
                                                          "unevaluatedItems",
                                                          "$dynamicRef",
                                                          "$recursiveRef",
                                                          "unevaluatedProperties"};

constexpr std::array<std::string_view, 12> kValueKeywords = {
    "minLength", "maxLength", "pattern",  "format",     "minimum", "maximum",
    "minItems",  "maxItems",  "required", "properties", "items",   "prefixItems"};

int64_t CountOf(const JsonValue& leaf, std::string_view key, int64_t otherwise) {
  const JsonValue* value = leaf.FindNonNull(key);
  return value == nullptr ? otherwise : value->AsInt64().value_or(otherwise);
}

}  // namespace

SchemaCompiler::SchemaCompiler(GrammarBuilder& builder, JsonParts& parts, const JsonValue& root,
                               std::string root_path, SchemaOptions options)
    : builder_(builder),
      parts_(parts),
      options_(options),
      leaves_(root, std::move(root_path), options) {}

Status SchemaCompiler::Refuse(const std::string& path, const std::string& why) const {
  return options_.lenient ? OkStatus() : Unimplemented(path + ": " + why);
}

Result<ExprId> SchemaCompiler::Compile(const JsonValue& schema, const std::string& path,
                                       TypeSet types) {
  FATHOM_ASSIGN_OR_RETURN(const std::vector<SchemaLeaves::Leaf> leaves, leaves_.Of(schema, path));
  std::vector<ExprId> parts;
  for (const SchemaLeaves::Leaf& leaf : leaves) {
    FATHOM_ASSIGN_OR_RETURN(const ExprId expr, Leaf(leaf, types));
    parts.push_back(expr);
  }
  return builder_.Choice(std::move(parts));
}

Status SchemaCompiler::Finish() {
  while (!pending_.empty()) {
    const Pending next = std::move(pending_.back());
    pending_.pop_back();
    FATHOM_ASSIGN_OR_RETURN(const ExprId body,
                            LeafBody(*next.leaf.schema, next.leaf.path, next.types));
    builder_.SetBody(next.rule, body);
  }
  return OkStatus();
}

// A leaf that may contain itself is a rule whose body is made later: the recursion here then ends
// with the text of the schema.
Result<ExprId> SchemaCompiler::Leaf(const SchemaLeaves::Leaf& leaf, TypeSet types) {
  types &= TypesOf(*leaf.schema);
  if (types == 0) return builder_.Never();
  if (!leaf.is_shared) return LeafBody(*leaf.schema, leaf.path, types);
  const auto known = rules_.find({leaf.schema, types});
  if (known != rules_.end()) return builder_.Use(known->second);
  const RuleId rule = builder_.NewRule(leaf.path);
  if (!builder_.failed()) pending_.push_back({rule, leaf, types});
  rules_[{leaf.schema, types}] = rule;
  return builder_.Use(rule);
}

Status SchemaCompiler::CheckKeywords(const JsonValue& leaf, const std::string& path) const {
  for (const std::string_view key : kUnenforced) {
    const JsonValue* value = leaf.FindNonNull(key);
    if (value == nullptr) continue;
    if (key == "unevaluatedProperties" && leaf.FindNonNull("additionalProperties") != nullptr) {
      continue;  // nothing is left unevaluated
    }
    FATHOM_RETURN_IF_ERROR(Refuse(path + PathStep(key), "this keyword cannot be enforced"));
  }
  const JsonValue* unique = leaf.FindNonNull("uniqueItems");
  if (unique != nullptr && *unique->IfBool() && CountOf(leaf, "maxItems", 2) > 1) {
    return Refuse(path + ".uniqueItems", "this keyword cannot be enforced");
  }
  return OkStatus();
}

Result<ExprId> SchemaCompiler::LeafBody(const JsonValue& leaf, const std::string& path,
                                        TypeSet types) {
  if (leaf.IfBool() == nullptr) FATHOM_RETURN_IF_ERROR(CheckKeywords(leaf, path));
  if (leaf.Find("const") != nullptr || leaf.FindNonNull("enum") != nullptr) {
    return Constants(leaf, path, types);
  }
  if (types == kAll) return parts_.Value();
  std::vector<ExprId> choices;
  const auto add = [&](Result<ExprId> expr) -> Status {
    if (!expr.ok()) return expr.status();
    choices.push_back(*expr);
    return OkStatus();
  };
  if ((types & kObject) != 0) FATHOM_RETURN_IF_ERROR(add(Object(leaf, path)));
  if ((types & kArray) != 0) FATHOM_RETURN_IF_ERROR(add(Array(leaf, path)));
  if ((types & kString) != 0) {
    FATHOM_ASSIGN_OR_RETURN(const ExprId text, StringText(leaf, path, TextStyle::kJsonString));
    const ExprId quote = builder_.Byte('"', '"');
    choices.push_back(builder_.Sequence({quote, text, quote}));
  }
  if ((types & kNumber) != 0) FATHOM_RETURN_IF_ERROR(add(Number(leaf, path, types)));
  if ((types & kBoolean) != 0) {
    choices.push_back(builder_.Choice({builder_.Literal("true"), builder_.Literal("false")}));
  }
  if ((types & kNull) != 0) choices.push_back(builder_.Literal("null"));
  return builder_.Choice(std::move(choices));
}

Result<ExprId> SchemaCompiler::Constants(const JsonValue& leaf, const std::string& path,
                                         TypeSet types) {
  for (const std::string_view key : kValueKeywords) {
    if (leaf.FindNonNull(key) == nullptr) continue;
    FATHOM_RETURN_IF_ERROR(Refuse(path + PathStep(key), "cannot be enforced beside enum or const"));
  }
  const JsonValue* constant = leaf.Find("const");
  const JsonValue* list = leaf.FindNonNull("enum");
  JsonValue::Array values;
  if (list != nullptr) values = *list->IfArray();
  if (constant != nullptr) {
    const std::string text = ToPythonJson(*constant);
    const bool is_listed =
        list == nullptr || std::any_of(values.begin(), values.end(), [&](const JsonValue& value) {
          return ToPythonJson(value) == text;
        });
    values.clear();
    if (is_listed) values.push_back(*constant);
  }
  std::vector<std::string> strings;
  std::vector<ExprId> choices;
  for (const JsonValue& value : values) {
    if ((TypeOfValue(value) & types) == 0) continue;
    if (value.IfString() != nullptr) {
      strings.push_back("\"" + JsonEscaped(*value.IfString()) + "\"");
    } else {
      choices.push_back(parts_.Constant(value));
    }
  }
  if (!strings.empty()) choices.push_back(builder_.Automaton(OneOfStrings(strings)));
  return builder_.Choice(std::move(choices));
}

Result<ExprId> SchemaCompiler::StringText(const JsonValue& leaf, const std::string& path,
                                          TextStyle style) {
  const JsonValue* pattern = leaf.FindNonNull("pattern");
  const JsonValue* format = leaf.FindNonNull("format");
  const int64_t min = CountOf(leaf, "minLength", 0), max = CountOf(leaf, "maxLength", -1);
  const bool has_length = min > 0 || max >= 0;
  std::string expression = pattern == nullptr ? std::string() : *pattern->IfString();
  bool has_expression = pattern != nullptr;
  if (format != nullptr) {
    const std::string& name = *format->IfString();
    const auto* known = std::find_if(kFormats.begin(), kFormats.end(),
                                     [&](const Format& f) { return f.name == name; });
    const bool is_standard =
        std::find(kOtherFormats.begin(), kOtherFormats.end(), name) != kOtherFormats.end();
    if (is_standard) {
      FATHOM_RETURN_IF_ERROR(Refuse(path + ".format", "'" + name + "' cannot be enforced"));
    }
    if (known != kFormats.end() && has_expression) {
      FATHOM_RETURN_IF_ERROR(Refuse(path + ".format", "cannot be enforced beside a pattern"));
    } else if (known != kFormats.end()) {
      expression = known->pattern;
      has_expression = true;
    }
  }
  if (has_expression) {
    if (has_length) {
      FATHOM_RETURN_IF_ERROR(Refuse(path + (min > 0 ? ".minLength" : ".maxLength"),
                                    "cannot be enforced beside a pattern or format; the pattern "
                                    "can say it"));
    }
    auto expr = RegexToExpr(builder_, expression, RegexMatch::kFind, style);
    if (expr.ok()) return expr;
    FATHOM_RETURN_IF_ERROR(Refuse(path + ".pattern", expr.status().message()));
  }
  if (max >= 0 && min > max) return builder_.Never();
  const ExprId any = style == TextStyle::kJsonString ? parts_.StringChar()
                                                     : OneOf(builder_, CharSet::All(), style);
  return builder_.Repeat(any, min, max);
}

Result<ExprId> SchemaCompiler::Number(const JsonValue& leaf, const std::string& path,
                                      TypeSet types) {
  // For whole numbers a bound of 0.5 is as good as one of 1.
  const bool is_whole = (types & kFraction) == 0;
  std::optional<JsonParts::Bound> min, max;
  for (const char* key : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
    const JsonValue* given = leaf.FindNonNull(key);
    if (given == nullptr) continue;
    const std::string at = path + PathStep(key);
    const bool is_lower = std::string_view(key).ends_with("inimum");
    const double value = given->AsDouble().value_or(0);
    if (std::abs(value) > 1e18) {
      FATHOM_RETURN_IF_ERROR(Refuse(at, "a bound beyond 1e18 cannot be enforced"));
      continue;
    }
    const bool is_integer = std::floor(value) == value;
    if (!is_whole && !is_integer) {
      FATHOM_RETURN_IF_ERROR(
          Refuse(at, "of numbers with fractions, only whole bounds can be enforced"));
    }
    JsonParts::Bound bound{.value = given->AsInt64().value_or(static_cast<int64_t>(
                               is_lower ? std::ceil(value) : std::floor(value))),
                           .is_exclusive = key[0] == 'e' && is_integer};
    if (is_whole && bound.is_exclusive) bound = {.value = bound.value + (is_lower ? 1 : -1)};
    std::optional<JsonParts::Bound>& place = is_lower ? min : max;
    const bool is_tighter = !place.has_value() ||
                            (is_lower ? bound.value > place->value : bound.value < place->value) ||
                            (bound.value == place->value && bound.is_exclusive);
    if (is_tighter) place = bound;
  }
  if (!min.has_value() && !max.has_value()) return is_whole ? parts_.Integer() : parts_.Number();
  if (!is_whole) return parts_.NumberBetween(min, max);
  const auto value_of = [](const std::optional<JsonParts::Bound>& bound) {
    return bound.has_value() ? std::optional<int64_t>(bound->value) : std::nullopt;
  };
  return parts_.IntegerBetween(value_of(min), value_of(max));
}

Result<ExprId> SchemaCompiler::Array(const JsonValue& leaf, const std::string& path) {
  const JsonValue* items = leaf.FindNonNull("items");
  const JsonValue* prefix = leaf.FindNonNull("prefixItems");
  const JsonValue* rest = items;
  std::string prefix_path = path + ".prefixItems", rest_path = path + ".items";
  if (items != nullptr && items->IfArray() != nullptr) {  // as in drafts before 2020-12
    prefix = items;
    prefix_path = rest_path;
    rest = leaf.FindNonNull("additionalItems");
    rest_path = path + ".additionalItems";
  }
  std::vector<ExprId> first;
  if (prefix != nullptr) {
    for (const JsonValue& schema : *prefix->IfArray()) {
      const std::string at = prefix_path + "[" + std::to_string(first.size()) + "]";
      FATHOM_ASSIGN_OR_RETURN(const ExprId expr, Compile(schema, at));
      first.push_back(expr);
    }
  }
  std::optional<ExprId> others = parts_.Value();
  if (rest != nullptr) {
    FATHOM_ASSIGN_OR_RETURN(others, Compile(*rest, rest_path));
    if (rest->IfBool() != nullptr && !*rest->IfBool()) others.reset();
  }
  return parts_.ArrayOf(first, others, CountOf(leaf, "minItems", 0), CountOf(leaf, "maxItems", -1));
}

Result<SchemaCompiler::Members> SchemaCompiler::MembersOf(const JsonValue& leaf,
                                                          const std::string& path) {
  Members members;
  const JsonValue* properties = leaf.FindNonNull("properties");
  const JsonValue* additional = leaf.FindNonNull("additionalProperties");
  if (additional == nullptr && leaf.FindNonNull("unevaluatedProperties") != nullptr) {
    additional = leaf.FindNonNull("unevaluatedProperties");
  }
  if (additional != nullptr) {
    const bool* is_open = additional->IfBool();
    if (is_open == nullptr || *is_open) members.extra = additional;
  } else if (properties == nullptr) {
    members.extra = &AnySchema();
  }
  if (properties != nullptr) {
    for (const auto& [key, schema] : *properties->IfObject()) {
      members.declared.push_back({.key = key,
                                  .schema = schema.is_null() ? &AnySchema() : &schema,
                                  .path = path + ".properties" + PathStep(key)});
    }
  }
  if (const JsonValue* required = leaf.FindNonNull("required")) {
    std::map<std::string_view, size_t> index;
    for (size_t i = 0; i < members.declared.size(); ++i) index[members.declared[i].key] = i;
    for (const JsonValue& name : *required->IfArray()) {
      const auto found = index.find(*name.IfString());
      if (found != index.end()) {
        members.declared[found->second].is_required = true;
        continue;
      }
      // With additionalProperties absent, a required member that is not declared is any value.
      if (members.extra == nullptr && additional != nullptr) {
        return InvalidArgument(path + ".required: " + ToPythonJson(name) +
                               " is not among the properties, and additionalProperties forbids it");
      }
      const bool is_new =
          std::none_of(members.declared.begin(), members.declared.end(),
                       [&](const Member& member) { return member.key == *name.IfString(); });
      if (!is_new) continue;
      members.declared.push_back({.key = *name.IfString(),
                                  .schema = members.extra == nullptr ? &AnySchema() : members.extra,
                                  .path = path + ".required",
                                  .is_required = true});
    }
  }
  const auto num_required =
      static_cast<int64_t>(std::count_if(members.declared.begin(), members.declared.end(),
                                         [](const Member& member) { return member.is_required; }));
  if (CountOf(leaf, "minProperties", 0) > num_required) {
    FATHOM_RETURN_IF_ERROR(Refuse(path + ".minProperties", "this keyword cannot be enforced"));
  }
  const int64_t most = CountOf(leaf, "maxProperties", -1);
  if (most >= 0 &&
      (members.extra != nullptr || most < static_cast<int64_t>(members.declared.size()))) {
    FATHOM_RETURN_IF_ERROR(Refuse(path + ".maxProperties", "this keyword cannot be enforced"));
  }
  return members;
}

Result<ExprId> SchemaCompiler::Object(const JsonValue& leaf, const std::string& path) {
  FATHOM_ASSIGN_OR_RETURN(const Members members, MembersOf(leaf, path));
  std::vector<JsonParts::ObjectMember> parts;
  std::vector<std::string> names;
  for (const Member& member : members.declared) {
    FATHOM_ASSIGN_OR_RETURN(const ExprId value, Compile(*member.schema, member.path));
    const ExprId key = builder_.Literal("\"" + JsonEscaped(member.key) + "\"");
    parts.push_back({.member = parts_.Member(key, value), .required = member.is_required});
    names.push_back(member.key);
  }
  std::optional<ExprId> extra;
  if (members.extra != nullptr) {
    FATHOM_ASSIGN_OR_RETURN(const ExprId value,
                            Compile(*members.extra, path + ".additionalProperties"));
    const ExprId quote = builder_.Byte('"', '"');
    const ExprId key =
        names.empty()
            ? parts_.String()
            : builder_.Sequence({quote, builder_.Automaton(PlainJsonTextExcept(names)), quote});
    extra = parts_.Member(key, value);
  }
  return parts_.ObjectOf(parts, extra);
}

Result<Grammar> JsonSchemaToGrammar(const JsonValue& schema, const SchemaOptions& options,
                                    std::string_view path) {
  FATHOM_RETURN_IF_ERROR(ValidateSchema(schema, path));
  const JsonValue& root = schema.is_null() ? AnySchema() : schema;
  GrammarBuilder builder;
  JsonParts parts(builder);
  SchemaCompiler compiler(builder, parts, root, std::string(path), options);
  const RuleId start = builder.NewRule(std::string(path));
  FATHOM_ASSIGN_OR_RETURN(const ExprId value, compiler.Compile(root, std::string(path)));
  FATHOM_RETURN_IF_ERROR(compiler.Finish());
  builder.SetBody(start, builder.Sequence({parts.Blanks(), value}));
  return builder.Build(start);
}

}  // namespace fathom
