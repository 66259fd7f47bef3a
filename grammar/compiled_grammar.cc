#include "grammar/compiled_grammar.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "grammar/thompson.h"

namespace fathom {

namespace {

constexpr size_t kMaxEdges = 4'000'000;

using Kind = RawAutomata::Kind;

class Compiler {
 public:
  Compiler(const Grammar& grammar, RawAutomata raw)
      : grammar_(grammar),
        raw_(std::move(raw)),
        distance_(ShortestToEnd(raw_)),
        out_of_(raw_.IndexBy(&RawAutomata::Step::from)),
        new_id_(static_cast<size_t>(raw_.num_states), -1),
        visited_(static_cast<size_t>(raw_.num_states), -1),
        is_end_(static_cast<size_t>(raw_.num_states), false) {}

  Result<std::shared_ptr<const CompiledGrammar>> Run() {
    for (const int32_t end : raw_.end) {
      if (end >= 0) is_end_[static_cast<size_t>(end)] = true;
    }
    const auto root = static_cast<size_t>(grammar_.root);
    if (distance_[static_cast<size_t>(raw_.start[root])] >= kNoWay) {
      return InvalidArgument("the grammar matches no text of finite length");
    }
    out_.root = grammar_.root;
    out_.rules.resize(grammar_.rules.size());
    for (size_t rule = 0; rule < raw_.start.size(); ++rule) {
      if (IsProductive(static_cast<RuleId>(rule))) out_.rules[rule].start = Keep(raw_.start[rule]);
    }
    for (size_t i = 0; i < kept_.size(); ++i) {
      AddState(kept_[i]);
      if (out_.edges.size() + out_.calls.size() > kMaxEdges) {
        return InvalidArgument("the grammar is too large: more than " + std::to_string(kMaxEdges) +
                               " transitions");
      }
    }
    FATHOM_RETURN_IF_ERROR(RankRules());
    MarkTailCalls();
    NameSymbols();
    return std::make_shared<const CompiledGrammar>(std::move(out_));
  }

 private:
  bool IsProductive(RuleId rule) const {
    const int32_t start = raw_.start[static_cast<size_t>(rule)];
    return start >= 0 && distance_[static_cast<size_t>(start)] < kNoWay;
  }
  bool IsNullable(RuleId rule) const {
    return distance_[static_cast<size_t>(raw_.start[static_cast<size_t>(rule)])] == 0;
  }

  int32_t Keep(int32_t raw_state) {
    int32_t& id = new_id_[static_cast<size_t>(raw_state)];
    if (id < 0) {
      id = static_cast<int32_t>(kept_.size());
      kept_.push_back(raw_state);
    }
    return id;
  }

  // One state with all that can be done from `raw_state` after epsilon steps; a call of a rule that
  // may be empty is an epsilon step as well.
  void AddState(int32_t raw_state) {
    const size_t edges_begin = out_.edges.size(), calls_begin = out_.calls.size();
    CompiledGrammar::State state;
    state.distance = distance_[static_cast<size_t>(raw_state)];
    std::vector<int32_t> pending = {raw_state};
    visited_[static_cast<size_t>(raw_state)] = raw_state;
    const auto visit = [&](int32_t next) {
      if (std::exchange(visited_[static_cast<size_t>(next)], raw_state) != raw_state) {
        pending.push_back(next);
      }
    };
    while (!pending.empty()) {
      const auto at = static_cast<size_t>(pending.back());
      pending.pop_back();
      state.is_final = state.is_final || is_end_[at];
      for (int32_t i = out_of_.first[at]; i < out_of_.first[at + 1]; ++i) {
        const RawAutomata::Step& step =
            raw_.steps[static_cast<size_t>(out_of_.order[static_cast<size_t>(i)])];
        if (distance_[static_cast<size_t>(step.to)] >= kNoWay) continue;
        if (step.kind == Kind::kEpsilon) {
          visit(step.to);
        } else if (step.kind == Kind::kSymbol) {
          out_.edges.push_back({step.lo, step.hi, Keep(step.to)});
        } else if (IsProductive(step.rule)) {
          out_.calls.push_back({step.rule, Keep(step.to)});
          if (IsNullable(step.rule)) visit(step.to);
        }
      }
    }
    const auto by_edge = [](const CompiledGrammar::Edge& e) { return std::tie(e.lo, e.hi, e.to); };
    SortUnique(out_.edges, edges_begin, by_edge);
    SortUnique(out_.calls, calls_begin,
               [](const CompiledGrammar::Call& c) { return std::tie(c.rule, c.to); });
    state.edges_begin = static_cast<int32_t>(edges_begin);
    state.edges_end = static_cast<int32_t>(out_.edges.size());
    state.calls_begin = static_cast<int32_t>(calls_begin);
    state.calls_end = static_cast<int32_t>(out_.calls.size());
    out_.states.push_back(state);
  }

  template <typename T, typename Key>
  static void SortUnique(std::vector<T>& items, size_t begin, Key key) {
    const auto first = items.begin() + static_cast<std::ptrdiff_t>(begin);
    std::sort(first, items.end(), [&](const T& a, const T& b) { return key(a) < key(b); });
    items.erase(
        std::unique(first, items.end(), [&](const T& a, const T& b) { return key(a) == key(b); }),
        items.end());
  }

  // Orders rules so that one that can begin with a call of another comes first. A circle would let
  // a matcher push calls forever without reading anything.
  Status RankRules() {
    const size_t num_rules = out_.rules.size();
    std::vector<int32_t> num_callers(num_rules, 0);
    const auto calls_at_start = [&](size_t rule) {
      const CompiledGrammar::State& state =
          out_.states[static_cast<size_t>(out_.rules[rule].start)];
      return std::pair(out_.calls.data() + state.calls_begin, out_.calls.data() + state.calls_end);
    };
    size_t num_open = 0;
    for (size_t rule = 0; rule < num_rules; ++rule) {
      if (!IsProductive(static_cast<RuleId>(rule))) continue;
      ++num_open;
      const auto [begin, end] = calls_at_start(rule);
      for (const auto* call = begin; call != end; ++call) {
        ++num_callers[static_cast<size_t>(call->rule)];
      }
    }
    std::vector<size_t> order;
    for (size_t rule = 0; rule < num_rules; ++rule) {
      if (IsProductive(static_cast<RuleId>(rule)) && num_callers[rule] == 0) order.push_back(rule);
    }
    for (size_t i = 0; i < order.size(); ++i) {
      out_.rules[order[i]].rank = static_cast<int32_t>(i);
      const auto [begin, end] = calls_at_start(order[i]);
      for (const auto* call = begin; call != end; ++call) {
        const auto callee = static_cast<size_t>(call->rule);
        if (--num_callers[callee] == 0) order.push_back(callee);
      }
    }
    if (order.size() == num_open) return OkStatus();
    size_t rule = 0;
    while (num_callers[rule] == 0) ++rule;
    return InvalidArgument("rule '" + grammar_.rules[rule].name +
                           "' begins with itself (left recursion), directly or through others");
  }

  // Where the caller has nothing more to do after a call, returning to it would only cost: right
  // recursion then needs no stack.
  void MarkTailCalls() {
    for (CompiledGrammar::Call& call : out_.calls) {
      const CompiledGrammar::State& to = out_.states[static_cast<size_t>(call.to)];
      if (to.is_final && to.edges_begin == to.edges_end && to.calls_begin == to.calls_end) {
        call.to = CompiledGrammar::kTailCall;
      }
    }
  }

  // Bytes between the same borders of all edges are one symbol.
  void NameSymbols() {
    std::array<bool, 257> begins{};
    begins[0] = true;
    for (const CompiledGrammar::Edge& edge : out_.edges) {
      if (edge.lo >= 256) continue;
      begins[edge.lo] = true;
      begins[edge.hi + size_t{1}] = true;
    }
    for (int byte = 0; byte < 256; ++byte) {
      if (begins[static_cast<size_t>(byte)]) out_.byte_of_symbol.push_back(byte);
      out_.symbol_of_byte[static_cast<size_t>(byte)] =
          static_cast<CompiledGrammar::Symbol>(out_.byte_of_symbol.size() - 1);
      // Examples that read well: what Suggest builds is shown to people.
      if (byte > ' ' && byte < 0x7F && out_.byte_of_symbol.back() <= ' ') {
        out_.byte_of_symbol.back() = byte;
      }
    }
    out_.control_tokens = raw_.control_tokens;
    for (size_t i = 0; i < out_.control_tokens.size(); ++i) {
      out_.byte_of_symbol.push_back(static_cast<int32_t>(256 + i));
    }
  }

  const Grammar& grammar_;
  RawAutomata raw_;
  std::vector<int64_t> distance_;
  RawAutomata::Index out_of_;
  std::vector<int32_t> new_id_, visited_, kept_;
  std::vector<bool> is_end_;
  CompiledGrammar out_;
};

}  // namespace

Result<std::shared_ptr<const CompiledGrammar>> CompileGrammar(const Grammar& grammar,
                                                              const TokenTrie* trie) {
  FATHOM_ASSIGN_OR_RETURN(RawAutomata raw, BuildAutomata(grammar, trie));
  return Compiler(grammar, std::move(raw)).Run();
}

}  // namespace fathom
