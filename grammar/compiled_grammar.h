// CompiledGrammar: a grammar as a pushdown machine, ready for Matcher.
//
// Each rule becomes an automaton without epsilon edges whose steps read one symbol (a byte or a
// control token) or call a rule. Compiling drops what can lead to no finished text, so whatever a
// matcher still has open can be completed, and computes how long the shortest completion is.
// Immutable; any thread may read it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "grammar/grammar.h"
#include "grammar/token_trie.h"

namespace fathom {

struct CompiledGrammar {
  // Bytes that no rule tells apart are one symbol; control tokens have symbols of their own.
  using Symbol = int32_t;
  static constexpr int32_t kTailCall = -1;

  struct Edge {
    uint16_t lo = 0, hi = 0;  // bytes; 256 + i for control token i (lo == hi)
    int32_t to = 0;
  };
  struct Call {
    RuleId rule = 0;
    int32_t to = 0;  // where to go on after it; kTailCall: the calling rule ends there
  };
  struct State {
    int32_t edges_begin = 0, edges_end = 0;
    int32_t calls_begin = 0, calls_end = 0;
    int64_t distance = 0;  // symbols to the end of its rule, at least
    bool is_final = false;
  };
  struct Rule {
    int32_t start = 0;
    int32_t rank = 0;  // a rule that can begin with another has the smaller rank
  };

  std::vector<State> states;
  std::vector<Edge> edges;
  std::vector<Call> calls;
  std::vector<Rule> rules;
  RuleId root = 0;

  std::array<Symbol, 256> symbol_of_byte{};
  std::vector<int32_t>
      byte_of_symbol;  // an example, printable where there is one; 256 + i as above
  std::vector<TokenId> control_tokens;

  [[nodiscard]] int num_symbols() const { return static_cast<int>(byte_of_symbol.size()); }
  [[nodiscard]] Symbol SymbolOfControl(size_t index) const {
    return static_cast<Symbol>(byte_of_symbol.size() - control_tokens.size() + index);
  }
};

// `trie` says which control tokens the vocabulary has; without one, or where it has none of that
// spelling, a control token stands for its bytes. kInvalidArgument: too large, a rule that begins
// with itself, no finite text.
Result<std::shared_ptr<const CompiledGrammar>> CompileGrammar(const Grammar& grammar,
                                                              const TokenTrie* trie);

}  // namespace fathom
