// JSON schemas as grammars.
//
// The texts of a schema's grammar are JSON values that conform to it; not every conforming value
// has a text in it, so that models stay on the common path:
//   - members come in the order of `properties`, then additional ones, whose keys are written
//     without escapes; where `properties` is given and additionalProperties is not, there are none;
//   - strings under a pattern, format, enum or const have one spelling per character;
//   - blanks and digits are bounded (json_grammar.h).
// What a grammar cannot enforce (a number's multipleOf, uniqueItems, `not`, ...) is kUnimplemented
// naming the place, or ignored where options.lenient says so. Pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "chat/json_value.h"
#include "grammar/char_set.h"
#include "grammar/grammar.h"
#include "grammar/json_grammar.h"
#include "grammar/schema_leaves.h"

namespace fathom {

// Validates (schema_check.h) and translates. `path` names the schema in messages.
Result<Grammar> JsonSchemaToGrammar(const JsonValue& schema, const SchemaOptions& options = {},
                                    std::string_view path = "schema");

// Translates the parts of one schema into expressions of one builder. Single-threaded.
class SchemaCompiler {
 public:
  // `root` passed ValidateSchema; all references are kept.
  SchemaCompiler(GrammarBuilder& builder, JsonParts& parts, const JsonValue& root,
                 std::string root_path, SchemaOptions options);

  // The JSON texts of `schema`, a part of root, restricted to `types`.
  Result<ExprId> Compile(const JsonValue& schema, const std::string& path,
                         TypeSet types = schema_types::kAll);
  // Gives the rules that Compile only named their bodies. Call once, at the end.
  Status Finish();

  // For callers that write some values in another way than JSON.
  SchemaLeaves& leaves() { return leaves_; }
  // The strings of a leaf, without quotes.
  Result<ExprId> StringText(const JsonValue& leaf, const std::string& path, TextStyle style);
  // The members that an object schema declares, `required` without declaration included.
  struct Member {
    std::string key;
    const JsonValue* schema = nullptr;
    std::string path;
    bool is_required = false;
  };
  struct Members {
    std::vector<Member> declared;
    const JsonValue* extra = nullptr;  // schema of others; null: there are none
  };
  Result<Members> MembersOf(const JsonValue& leaf, const std::string& path);
  // kUnimplemented if the leaf has a keyword that nothing here enforces.
  Status CheckKeywords(const JsonValue& leaf, const std::string& path) const;

 private:
  Result<ExprId> Leaf(const SchemaLeaves::Leaf& leaf, TypeSet types);
  Result<ExprId> LeafBody(const JsonValue& leaf, const std::string& path, TypeSet types);
  Result<ExprId> Constants(const JsonValue& leaf, const std::string& path, TypeSet types);
  Result<ExprId> Number(const JsonValue& leaf, const std::string& path, TypeSet types);
  Result<ExprId> Array(const JsonValue& leaf, const std::string& path);
  Result<ExprId> Object(const JsonValue& leaf, const std::string& path);
  // What is refused unless lenient.
  Status Refuse(const std::string& path, const std::string& why) const;

  struct Pending {
    RuleId rule;
    SchemaLeaves::Leaf leaf;
    TypeSet types;
  };

  GrammarBuilder& builder_;
  JsonParts& parts_;
  SchemaOptions options_;
  SchemaLeaves leaves_;
  std::map<std::pair<const JsonValue*, TypeSet>, RuleId> rules_;
  std::vector<Pending> pending_;
};

}  // namespace fathom
