// The first half of compiling a grammar: expressions to automata with epsilon edges, and the
// shortest way to the end from each of their states. Used by compiled_grammar.cc only.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "grammar/grammar.h"
#include "grammar/token_trie.h"

namespace fathom {

inline constexpr int64_t kNoWay = std::numeric_limits<int64_t>::max() / 4;

struct RawAutomata {
  enum class Kind : uint8_t { kSymbol, kCall, kEpsilon };
  struct Step {
    int32_t from = 0, to = 0;
    Kind kind = Kind::kEpsilon;
    uint16_t lo = 0, hi = 0;  // kSymbol, as CompiledGrammar::Edge
    RuleId rule = 0;          // kCall
  };
  int32_t num_states = 0;
  std::vector<Step> steps;
  std::vector<int32_t> start, end;  // of each rule; -1 where the root does not reach it
  std::vector<TokenId> control_tokens;

  // Positions in steps, ordered by `from`: those of state s are order[first[s] .. first[s + 1]).
  struct Index {
    std::vector<int32_t> first, order;
  };
  [[nodiscard]] Index IndexBy(int32_t Step::*end_of_step) const;
};

// kInvalidArgument when there are too many states or steps.
Result<RawAutomata> BuildAutomata(const Grammar& grammar, const TokenTrie* trie);

// For each state, how many symbols are at least read from it to the end of its rule; kNoWay when
// that end cannot be reached.
std::vector<int64_t> ShortestToEnd(const RawAutomata& automata);

}  // namespace fathom
