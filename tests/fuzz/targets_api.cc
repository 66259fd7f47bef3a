// Bodies of all APIs, and what users write to constrain an answer.
#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "chat/json_parse.h"
#include "grammar/constraints.h"
#include "grammar/ebnf.h"
#include "grammar/json_schema.h"
#include "grammar/regex.h"
#include "grammar/tool_call_grammar.h"
#include "server/field_names.h"
#include "server/messages_request.h"
#include "server/request_fields.h"
#include "server/responses_request.h"
#include "tests/fuzz/targets.h"

namespace fathom::fuzz {
namespace {

constexpr int kMaxDepth = 128;
constexpr TokenId kEnd = 256;

std::string_view TextOf(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// One token for each byte, and an end token.
std::shared_ptr<const TokenTrie> ByteTrie() {
  static const auto trie = [] {
    std::vector<TokenTrie::Token> tokens;
    for (int byte = 0; byte < 256; ++byte) {
      tokens.push_back({std::string(1, static_cast<char>(byte)), false});
    }
    tokens.push_back({"<end>", true});
    return std::make_shared<const TokenTrie>(std::move(tokens));
  }();
  return trie;
}

Result<Grammar> GrammarOf(uint8_t kind, std::string_view text) {
  if (kind % 4 == 0) return RegexToGrammar(text);
  if (kind % 4 == 1) return EbnfToGrammar(text);
  JsonParseOptions options;
  options.max_depth = kMaxDepth;
  FATHOM_ASSIGN_OR_RETURN(const JsonValue schema, ParseJson(text, options));
  const bool lenient = (kind & 4) != 0;
  if (kind % 4 == 2) return JsonSchemaToGrammar(schema, {.lenient = lenient});
  ToolSpec tool{.name = "f", .parameters = &schema, .strict = !lenient, .path = "tools[0]"};
  return ToolCallGrammar(std::span(&tool, 1), {.parallel = (kind & 8) != 0});
}

}  // namespace

void ApiRequest(std::span<const uint8_t> bytes) {
  if (bytes.empty()) return;
  JsonParseOptions options;
  options.max_depth = kMaxDepth;
  const Result<JsonValue> body = ParseJson(TextOf(bytes.subspan(1)), options);
  if (!body.ok() || body->IfObject() == nullptr) return;
  RequestLimits limits;
  limits.vocab_size = 1000;
  limits.priority_scheduling = (bytes[0] & 8) != 0;
  FieldNames names;
  auto check = [&names](MaybeError error) {
    if (!error) return;
    names.Restore(&*error);
    FATHOM_CHECK(error->http_status >= 400 && error->http_status < 500, "a client's mistake");
    FATHOM_CHECK(!error->message.empty(), "says what is wrong");
    FATHOM_CHECK(error->message.size() < 4096, "no echo of the request");
  };
  if (bytes[0] % 4 == 0) {
    CompletionFields fields;
    return check(ReadCompletionFields(*body, limits, &fields));
  }
  JsonValue chat = *body;
  MaybeError error;
  std::string repeated;
  if (bytes[0] % 4 == 1) error = TranslateMessages(*body, (bytes[0] & 16) != 0, &chat, &names);
  if (bytes[0] % 4 == 2) error = TranslateResponses(*body, &chat, &repeated, &names);
  check(error);
  if (error) return;
  if (!repeated.empty()) {
    FATHOM_CHECK(ParseJson("{" + repeated + "}").ok(), "what is repeated is JSON");
  }
  ChatFields fields;
  check(ReadChatFields(chat, limits, &fields));
}

void ConstraintText(std::span<const uint8_t> bytes) {
  if (bytes.empty()) return;
  const Result<Grammar> grammar = GrammarOf(bytes[0], TextOf(bytes.subspan(1)));
  if (!grammar.ok()) return;
  const auto compiled = CompileGrammar(*grammar, ByteTrie().get());
  if (!compiled.ok()) return;
  const auto constraint =
      NewGrammarConstraint(*compiled, ByteTrie(), GrammarConstraintOptions{.end_tokens = {kEnd}});
  std::vector<uint64_t> allowed(5);
  // The shortest way ends, or is longer than what is looked at here; each token on it is allowed.
  for (int i = 0; i < 300; ++i) {
    std::fill(allowed.begin(), allowed.end(), ~uint64_t{0});
    constraint->Restrict(allowed);
    const TokenId token = constraint->Suggest();
    FATHOM_CHECK(token >= 0 && token <= kEnd, "a token of the vocabulary");
    FATHOM_CHECK((allowed[static_cast<size_t>(token) / 64] >> (token % 64) & 1) != 0,
                 "what is suggested is allowed");
    constraint->Accept(token);
    if (token == kEnd) return;
  }
}

}  // namespace fathom::fuzz
