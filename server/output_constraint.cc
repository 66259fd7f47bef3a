#include "server/output_constraint.h"

#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "chat/markers.h"
#include "grammar/constraints.h"
#include "grammar/ebnf.h"
#include "grammar/json_grammar.h"
#include "grammar/json_schema.h"
#include "grammar/regex.h"
#include "grammar/schema_check.h"
#include "grammar/tool_call_grammar.h"

namespace fathom {
namespace {

using Kind = ConstraintFields::Kind;

constexpr size_t kMaxCompiled = 64;

RequestError At(std::string param, const Status& status) {
  RequestError error = FromStatus(status);
  error.param = std::move(param);
  return error;
}

// Paths of tools in messages, as people write them; `param` has dots.
std::string ToolPath(size_t index) {
  return "tools[" + std::to_string(index) + "].function.parameters";
}

struct Tools {
  std::vector<ToolSpec> specs;
  bool any_strict = false;
};

// Checks the schemas of all tools, whether or not they are going to be enforced.
MaybeError ReadTools(const std::vector<JsonValue>& functions, Tools* tools) {
  for (size_t i = 0; i < functions.size(); ++i) {
    ToolSpec spec;
    spec.name = *functions[i].Find("name")->IfString();
    spec.parameters = functions[i].FindNonNull("parameters");
    spec.path = ToolPath(i);
    const JsonValue* strict = functions[i].FindNonNull("strict");
    spec.strict = strict != nullptr && strict->IfBool() != nullptr && *strict->IfBool();
    tools->any_strict |= spec.strict;
    if (spec.parameters != nullptr) {
      if (const Status status = ValidateSchema(*spec.parameters, spec.path); !status.ok()) {
        return At("tools." + std::to_string(i) + ".function.parameters", status);
      }
    }
    tools->specs.push_back(std::move(spec));
  }
  return std::nullopt;
}

// Keys are put together from texts of clients. Each brings its length, so that no text can spell
// the key of somebody else's grammar.
std::string KeyPart(std::string_view text) {
  return std::to_string(text.size()) + ":" + std::string(text);
}

// Everything that the grammar of these tools depends on.
std::string KeyOf(const std::vector<JsonValue>& functions, std::string_view choice) {
  std::string key = "tools" + KeyPart(choice);
  for (const JsonValue& function : functions) key += KeyPart(ToPythonJson(function));
  return key;
}

std::string KeyOf(const ConstraintFields& fields) {
  std::string key = std::to_string(static_cast<int>(fields.kind)) + " " + KeyPart(fields.text);
  if (fields.kind == Kind::kJsonSchema) key += KeyPart(ToPythonJson(fields.schema));
  for (const std::string& choice : fields.choices) key += KeyPart(choice);
  return key;
}

Result<Grammar> WriteGrammar(const ConstraintFields& fields) {
  switch (fields.kind) {
    case Kind::kJsonSchema:
      return JsonSchemaToGrammar(fields.schema, {}, fields.param);
    case Kind::kRegex:
      return RegexToGrammar(fields.text);
    case Kind::kChoice:
      return ChoiceGrammar(fields.choices);
    case Kind::kGrammar:
      return EbnfToGrammar(fields.text);
    case Kind::kJsonObject:
    case Kind::kNone:
      break;
  }
  return JsonObjectGrammar();
}

}  // namespace

ConstraintFactory::ConstraintFactory(const TextFrontEnd* front_end, std::vector<TokenId> end_tokens)
    : front_end_(front_end), end_tokens_(std::move(end_tokens)) {}

std::shared_ptr<const TokenTrie> ConstraintFactory::Trie() {
  std::call_once(trie_made_,
                 [this] { trie_ = std::make_shared<TokenTrie>(front_end_->tokenizer()); });
  return trie_;
}

Result<ConstraintFactory::GrammarPtr> ConstraintFactory::Compile(
    const std::string& key, const std::function<Result<Grammar>()>& write) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = compiled_.find(key); it != compiled_.end()) return it->second;
  }
  FATHOM_ASSIGN_OR_RETURN(const Grammar grammar, write());
  FATHOM_ASSIGN_OR_RETURN(GrammarPtr compiled, CompileGrammar(grammar, Trie().get()));
  const std::lock_guard lock(mutex_);
  if (compiled_.emplace(key, compiled).second) compiled_order_.push_back(key);
  if (compiled_order_.size() > kMaxCompiled) {
    compiled_.erase(compiled_order_.front());
    compiled_order_.pop_front();
  }
  return compiled;
}

MaybeError ConstraintFactory::PlanGrammar(const ConstraintFields& fields, const ChatPrompt* chat,
                                          Plan* plan) {
  Tools tools;
  ToolChoice choice = ToolChoice::kNone;
  if (chat != nullptr) {
    choice = chat->tool_choice;
    if (MaybeError error = ReadTools(chat->parser.tools, &tools)) return error;
  }
  const bool has_tools = choice != ToolChoice::kNone && !tools.specs.empty();
  const bool has_format = fields.kind != Kind::kNone;
  ToolCallOptions options;
  if (chat != nullptr) options.parallel = chat->parser.parallel_tool_calls;

  if (choice == ToolChoice::kRequired || choice == ToolChoice::kNamed) {
    if (has_format && choice == ToolChoice::kNamed) {
      return BadRequest(fields.param, fields.param + " and a named tool_choice exclude each other");
    }
    if (choice == ToolChoice::kNamed) {
      options.parallel = false;
      std::erase_if(tools.specs,
                    [chat](const ToolSpec& spec) { return spec.name != chat->named_tool; });
    }
    const std::string key =
        KeyOf(chat->parser.tools, (options.parallel ? "+" : "1") + chat->named_tool);
    auto grammar = Compile(key, [&] { return ToolCallGrammar(tools.specs, options); });
    if (!grammar.ok()) return At("tools", grammar.status());
    plan->grammar = std::move(grammar).value();
    return std::nullopt;
  }
  if (has_format) {
    // The model may still call a tool instead of answering.
    const std::string key =
        KeyOf(fields) + (has_tools ? KeyOf(chat->parser.tools, options.parallel ? "|" : "|1") : "");
    std::string param = fields.param;
    auto grammar = Compile(key, [&]() -> Result<Grammar> {
      FATHOM_ASSIGN_OR_RETURN(Grammar answer, WriteGrammar(fields));
      if (!has_tools) return answer;
      FATHOM_ASSIGN_OR_RETURN(const Grammar calls, ToolCallGrammar(tools.specs, options));
      return EitherOf(std::move(answer), calls);
    });
    if (!grammar.ok()) return At(std::move(param), grammar.status());
    plan->grammar = std::move(grammar).value();
    return std::nullopt;
  }
  if (!has_tools) return std::nullopt;
  // Free until a block begins. Then the tags at least are held to the format: a model that slips
  // there would leave its client without the call.
  options.is_opened = true;
  for (ToolSpec& spec : tools.specs) spec.tags_only = !spec.strict;
  const std::string key = KeyOf(chat->parser.tools, options.parallel ? "..." : "...1");
  auto grammar = Compile(key, [&] { return ToolCallGrammar(tools.specs, options); });
  if (!grammar.ok()) {
    // Not what anybody asked for: too many tools, or names that no tag can carry.
    if (!tools.any_strict) return std::nullopt;
    return At("tools", grammar.status());
  }
  plan->grammar = std::move(grammar).value();
  plan->opener = markers::kToolCallsOpen;
  return std::nullopt;
}

MaybeError ConstraintFactory::Prepare(const ConstraintFields& fields, const ChatPrompt* chat,
                                      NewConstraint* make) {
  Plan plan;
  if (MaybeError error = PlanGrammar(fields, chat, &plan)) return error;
  std::vector<std::vector<TokenId>> bad_words;
  if (!fields.bad_words.empty()) {
    auto tokens = BadWordTokens(front_end_->tokenizer(), fields.bad_words);
    if (!tokens.ok()) return At("bad_words", tokens.status());
    bad_words = std::move(tokens).value();
  }
  const bool in_reasoning = chat != nullptr && chat->parser.split_reasoning &&
                            chat->parser.start == OutputState::kReasoning;
  const std::optional<TokenId> think_close =
      front_end_->tokenizer().FindAddedToken(markers::kThinkClose);
  const bool has_budget = fields.thinking_token_budget && in_reasoning;
  if (has_budget && !think_close) {
    RequestError error = NotSupported("thinking_token_budget");
    error.message += ": this model's vocabulary has no </think>";
    return error;
  }
  const bool is_free =
      plan.grammar == nullptr && fields.allowed_tokens.empty() && bad_words.empty() && !has_budget;
  if (is_free) return std::nullopt;

  GrammarConstraintOptions options;
  options.end_tokens = end_tokens_;
  options.opener = plan.opener;
  if (in_reasoning) options.start_after = think_close;
  const int budget = static_cast<int>(
      std::min<int64_t>(fields.thinking_token_budget.value_or(0), std::numeric_limits<int>::max()));
  *make = [grammar = plan.grammar, trie = plan.grammar ? Trie() : nullptr, options, has_budget,
           budget, think_close, allowed = fields.allowed_tokens, bad_words, in_reasoning,
           end = end_tokens_.front()]() -> std::shared_ptr<TokenConstraint> {
    // Earlier ones win where they leave nothing together.
    std::vector<std::unique_ptr<TokenConstraint>> parts;
    if (grammar) parts.push_back(NewGrammarConstraint(grammar, trie, options));
    if (has_budget) parts.push_back(NewThinkingBudget(budget, *think_close, end, in_reasoning));
    if (!allowed.empty()) parts.push_back(NewAllowedTokens(allowed));
    if (!bad_words.empty()) parts.push_back(NewBadWords(bad_words, end));
    return parts.size() == 1 ? std::move(parts.front()) : Compose(std::move(parts));
  };
  return std::nullopt;
}

}  // namespace fathom
