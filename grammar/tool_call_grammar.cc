#include "grammar/tool_call_grammar.h"

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/json_grammar.h"
#include "grammar/json_schema.h"
#include "grammar/schema_check.h"

namespace fathom {

namespace {

// The middle of every tag, one control token of the checkpoint's vocabulary.
constexpr std::string_view kDsml = "｜DSML｜";
constexpr size_t kMaxNameBytes = 256;

// Names are trimmed by readers and end at a quote.
bool FitsIntoTag(std::string_view name) {
  const auto is_blank = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  return !name.empty() && name.size() <= kMaxNameBytes && !is_blank(name.front()) &&
         !is_blank(name.back()) && name.find_first_of("\"<\n") == std::string_view::npos;
}

// Tags at which the parser ends a raw value.
std::vector<std::string> TagsInValues() {
  const std::string dsml(kDsml);
  return {"</" + dsml, "<" + dsml + "invoke", "<" + dsml + "parameter"};
}

class ToolWriter {
 public:
  ToolWriter(GrammarBuilder& builder, JsonParts& parts) : builder_(builder), parts_(parts) {}

  ExprId Open(std::string_view rest) {
    return builder_.Sequence(
        {builder_.Literal("<"), builder_.Control(kDsml), builder_.Literal(rest)});
  }
  ExprId Close(std::string_view rest) {
    return builder_.Sequence(
        {builder_.Literal("</"), builder_.Control(kDsml), builder_.Literal(rest)});
  }

  Result<ExprId> Invoke(const ToolSpec& tool) {
    if (tool.tags_only) {
      return FitsIntoTag(tool.name) ? InvokeOf(tool.name, AnyParameters()) : builder_.Never();
    }
    if (!FitsIntoTag(tool.name)) {
      return Unimplemented(tool.path + ": a tool of this name cannot be called in DSML");
    }
    ExprId parameters = builder_.Empty();
    if (tool.parameters != nullptr && !tool.parameters->is_null()) {
      FATHOM_RETURN_IF_ERROR(ValidateSchema(*tool.parameters, tool.path));
      compilers_.emplace_back(builder_, parts_, *tool.parameters, tool.path,
                              SchemaOptions{.lenient = !tool.strict});
      SchemaCompiler& compiler = compilers_.back();
      FATHOM_ASSIGN_OR_RETURN(parameters, Parameters(compiler, tool));
      FATHOM_RETURN_IF_ERROR(compiler.Finish());
    }
    return InvokeOf(tool.name, parameters);
  }

 private:
  ExprId InvokeOf(const std::string& name, ExprId parameters) {
    return builder_.NewRuleOf(
        "call of " + name, builder_.Sequence({Open("invoke name=\"" + name + "\">\n"), parameters,
                                              builder_.Literal("\n"), Close("invoke>")}));
  }

  ExprId AnyParameters() {
    if (!any_parameters_) {
      const ExprId parameter = builder_.NewRuleOf(
          "parameter",
          builder_.Sequence({Open("parameter name=\""), builder_.Automaton(WordExcept({})),
                             builder_.Literal("\" string=\""),
                             builder_.Choice({builder_.Literal("true"), builder_.Literal("false")}),
                             builder_.Literal("\">"), AnyText(), Close("parameter>")}));
      const ExprId more = builder_.Sequence({builder_.Literal("\n"), parameter});
      any_parameters_ = builder_.NewRuleOf(
          "parameters", builder_.Optional(builder_.Sequence(
                            {parameter, builder_.Repeat(more, 0, GrammarBuilder::kUnlimited)})));
    }
    return *any_parameters_;
  }

  ExprId AnyText() {
    if (!any_text_) {
      any_text_ = builder_.NewRuleOf("text", builder_.Automaton(Utf8TextWithout(TagsInValues())));
    }
    return *any_text_;
  }

  Result<ExprId> Parameters(SchemaCompiler& compiler, const ToolSpec& tool) {
    FATHOM_ASSIGN_OR_RETURN(const auto leaves, compiler.leaves().Of(*tool.parameters, tool.path));
    std::vector<ExprId> choices;
    for (const SchemaLeaves::Leaf& leaf : leaves) {
      if ((TypesOf(*leaf.schema) & schema_types::kObject) == 0) continue;
      FATHOM_ASSIGN_OR_RETURN(const ExprId expr, ObjectOf(compiler, leaf));
      choices.push_back(expr);
    }
    if (choices.empty()) {
      return InvalidArgument(tool.path + ": the parameters of a tool must be an object");
    }
    return builder_.Choice(std::move(choices));
  }

  Result<ExprId> ObjectOf(SchemaCompiler& compiler, const SchemaLeaves::Leaf& leaf) {
    for (const char* key : {"const", "enum"}) {
      if (leaf.schema->Find(key) != nullptr) {
        return Unimplemented(leaf.path + PathStep(key) + ": cannot be enforced for all parameters");
      }
    }
    if (leaf.schema->IfBool() == nullptr) {
      FATHOM_RETURN_IF_ERROR(compiler.CheckKeywords(*leaf.schema, leaf.path));
    }
    FATHOM_ASSIGN_OR_RETURN(const auto members, compiler.MembersOf(*leaf.schema, leaf.path));
    std::vector<JsonParts::ObjectMember> parts;
    std::vector<std::string> names;
    for (const SchemaCompiler::Member& member : members.declared) {
      if (!FitsIntoTag(member.key)) {
        return Unimplemented(member.path + ": a parameter of this name cannot be written in DSML");
      }
      FATHOM_ASSIGN_OR_RETURN(
          const ExprId parameter,
          Parameter(compiler, builder_.Literal(member.key), *member.schema, member.path));
      parts.push_back({.member = parameter, .required = member.is_required});
      names.push_back(member.key);
    }
    std::optional<ExprId> extra;
    if (members.extra != nullptr) {
      FATHOM_ASSIGN_OR_RETURN(
          extra, Parameter(compiler, builder_.Automaton(WordExcept(names)), *members.extra,
                           leaf.path + ".additionalProperties"));
    }
    return parts_.InOrder(parts, extra, builder_.Literal("\n"), builder_.Empty());
  }

  // <parameter name="KEY" string="true">text</parameter>, or string="false" and JSON.
  Result<ExprId> Parameter(SchemaCompiler& compiler, ExprId key, const JsonValue& schema,
                           const std::string& path) {
    std::vector<ExprId> values;
    FATHOM_ASSIGN_OR_RETURN(const auto leaves, compiler.leaves().Of(schema, path));
    std::vector<ExprId> texts;
    for (const SchemaLeaves::Leaf& leaf : leaves) {
      if ((TypesOf(*leaf.schema) & schema_types::kString) == 0) continue;
      FATHOM_ASSIGN_OR_RETURN(const ExprId text, RawString(compiler, leaf));
      texts.push_back(text);
    }
    if (!texts.empty()) {
      values.push_back(builder_.Sequence(
          {builder_.Literal("\" string=\"true\">"), builder_.Choice(std::move(texts))}));
    }
    FATHOM_ASSIGN_OR_RETURN(
        const ExprId json,
        compiler.Compile(schema, path, schema_types::kAll & ~schema_types::kString));
    values.push_back(builder_.Sequence({builder_.Literal("\" string=\"false\">"), json}));
    return builder_.NewRuleOf(
        path, builder_.Sequence({Open("parameter name=\""), key, builder_.Choice(std::move(values)),
                                 Close("parameter>")}));
  }

  Result<ExprId> RawString(SchemaCompiler& compiler, const SchemaLeaves::Leaf& leaf) {
    const JsonValue& schema = *leaf.schema;
    if (schema.Find("const") != nullptr || schema.FindNonNull("enum") != nullptr) {
      return RawConstants(schema, leaf.path);
    }
    const bool is_bounded =
        std::any_of(kStringKeywords.begin(), kStringKeywords.end(),
                    [&](std::string_view key) { return schema.FindNonNull(key) != nullptr; });
    if (is_bounded) return compiler.StringText(schema, leaf.path, TextStyle::kToolValue);
    return AnyText();
  }

  Result<ExprId> RawConstants(const JsonValue& schema, const std::string& path) {
    JsonValue::Array values;
    if (const JsonValue* constant = schema.Find("const")) {
      values.push_back(*constant);
    } else {
      values = *schema.FindNonNull("enum")->IfArray();
    }
    std::vector<std::string> strings;
    for (const JsonValue& value : values) {
      const std::string* text = value.IfString();
      if (text == nullptr) continue;
      for (const std::string& tag : TagsInValues()) {
        if (text->find(tag) == std::string::npos) continue;
        return Unimplemented(path + ": " + ToPythonJson(value) + " cannot be written in DSML");
      }
      strings.push_back(*text);
    }
    return builder_.Automaton(OneOfStrings(strings));
  }

  static constexpr std::array<std::string_view, 4> kStringKeywords = {"minLength", "maxLength",
                                                                      "pattern", "format"};

  GrammarBuilder& builder_;
  JsonParts& parts_;
  std::deque<SchemaCompiler> compilers_;  // their merged schemas must outlive the rules made later
  std::optional<ExprId> any_text_, any_parameters_;
};

}  // namespace

Result<Grammar> ToolCallGrammar(std::span<const ToolSpec> tools, const ToolCallOptions& options) {
  if (tools.empty()) return InvalidArgument("there is no tool to call");
  GrammarBuilder builder;
  JsonParts parts(builder);
  ToolWriter writer(builder, parts);
  const RuleId root = builder.NewRule("tool calls");
  std::vector<ExprId> invokes;
  for (const ToolSpec& tool : tools) {
    FATHOM_ASSIGN_OR_RETURN(const ExprId invoke, writer.Invoke(tool));
    invokes.push_back(invoke);
  }
  const ExprId invoke = builder.NewRuleOf("call", builder.Choice(std::move(invokes)));
  std::vector<ExprId> block;
  if (!options.is_opened) {
    block = {builder.Literal("\n\n"), writer.Open("tool_calls>")};
  }
  block.insert(block.end(), {builder.Literal("\n"), invoke});
  if (options.parallel) {
    block.push_back(builder.Repeat(builder.Sequence({builder.Literal("\n"), invoke}), 0,
                                   GrammarBuilder::kUnlimited));
  }
  block.insert(block.end(), {builder.Literal("\n"), writer.Close("tool_calls>")});
  if (options.is_opened) {
    block.push_back(builder.Repeat(builder.Byte(0, 255), 0, GrammarBuilder::kUnlimited));
  }
  builder.SetBody(root, builder.Sequence(std::move(block)));
  return builder.Build(root);
}

}  // namespace fathom
