#include "grammar/thompson.h"

#include <algorithm>
#include <map>
#include <queue>
#include <string>
#include <utility>

namespace fathom {

namespace {

constexpr int32_t kMaxStates = 600'000;
constexpr size_t kMaxSteps = 2'000'000;

using Step = RawAutomata::Step;
using Kind = RawAutomata::Kind;

class Builder {
 public:
  Builder(const Grammar& grammar, const TokenTrie* trie) : grammar_(grammar), trie_(trie) {}

  Result<RawAutomata> Run() {
    out_.start.assign(grammar_.rules.size(), -1);
    out_.end.assign(grammar_.rules.size(), -1);
    Want(grammar_.root);
    for (size_t i = 0; i < wanted_.size(); ++i) {
      const auto rule = static_cast<size_t>(wanted_[i]);
      Instantiate(grammar_.rules[rule].body, out_.start[rule], out_.end[rule]);
      if (out_.num_states > kMaxStates || out_.steps.size() > kMaxSteps) {
        return InvalidArgument("the grammar is too large: more than " + std::to_string(kMaxStates) +
                               " states");
      }
    }
    return std::move(out_);
  }

 private:
  int32_t NewState() { return out_.num_states++; }
  bool IsFull() const { return out_.num_states > kMaxStates || out_.steps.size() > kMaxSteps; }

  void Want(RuleId rule) {
    const auto index = static_cast<size_t>(rule);
    if (out_.start[index] >= 0) return;
    out_.start[index] = NewState();
    out_.end[index] = NewState();
    wanted_.push_back(rule);
  }

  void Epsilon(int32_t from, int32_t to) { out_.steps.push_back({.from = from, .to = to}); }
  void Symbols(int32_t from, int lo, int hi, int32_t to) {
    out_.steps.push_back({.from = from,
                          .to = to,
                          .kind = Kind::kSymbol,
                          .lo = static_cast<uint16_t>(lo),
                          .hi = static_cast<uint16_t>(hi)});
  }

  // The recursion is as deep as the expression, which GrammarBuilder bounds.
  void Instantiate(ExprId id, int32_t from, int32_t to) {
    if (IsFull()) return;
    const Grammar::Expr& expr = grammar_.exprs[static_cast<size_t>(id)];
    const auto a = static_cast<size_t>(expr.a);
    switch (expr.kind) {
      case Grammar::ExprKind::kBytes:
        return Symbols(from, expr.a, expr.b, to);
      case Grammar::ExprKind::kLiteral:
        return Literal(grammar_.literals[a], from, to);
      case Grammar::ExprKind::kControl:
        return Control(grammar_.literals[a], from, to);
      case Grammar::ExprKind::kSequence: {
        const std::vector<ExprId>& parts = grammar_.lists[a];
        if (parts.empty()) return Epsilon(from, to);
        for (size_t i = 0; i < parts.size(); ++i) {
          const int32_t next = i + 1 == parts.size() ? to : NewState();
          Instantiate(parts[i], from, next);
          from = next;
        }
        return;
      }
      case Grammar::ExprKind::kChoice:
        // Nothing ever leads back to `from` or on from `to`, so that branches can share them.
        for (const ExprId part : grammar_.lists[a]) Instantiate(part, from, to);
        return;
      case Grammar::ExprKind::kRepeat:
        return Repeat(expr, from, to);
      case Grammar::ExprKind::kRule:
        Want(expr.a);
        out_.steps.push_back({.from = from, .to = to, .kind = Kind::kCall, .rule = expr.a});
        return;
      case Grammar::ExprKind::kAutomaton:
        return Automaton(grammar_.automata[a], from, to);
    }
  }

  void Literal(const std::string& text, int32_t from, int32_t to) {
    if (text.empty()) return Epsilon(from, to);
    for (size_t i = 0; i < text.size(); ++i) {
      const int32_t next = i + 1 == text.size() ? to : NewState();
      const auto byte = static_cast<uint8_t>(text[i]);
      Symbols(from, byte, byte, next);
      from = next;
    }
  }

  void Control(const std::string& spelling, int32_t from, int32_t to) {
    const auto token = trie_ != nullptr ? trie_->FindControl(spelling) : std::nullopt;
    if (!token.has_value()) return Literal(spelling, from, to);
    const auto [found, is_new] =
        controls_.try_emplace(*token, static_cast<int>(out_.control_tokens.size()));
    if (is_new) out_.control_tokens.push_back(*token);
    Symbols(from, 256 + found->second, 256 + found->second, to);
  }

  void Repeat(const Grammar::Expr& expr, int32_t from, int32_t to) {
    for (int32_t i = 0; i < expr.min && !IsFull(); ++i) {
      const int32_t next = NewState();
      Instantiate(expr.a, from, next);
      from = next;
    }
    if (expr.max < 0) {
      const int32_t loop = NewState(), back = NewState();
      Epsilon(from, loop);
      Instantiate(expr.a, loop, back);
      Epsilon(back, loop);
      return Epsilon(loop, to);
    }
    for (int32_t i = expr.min; i < expr.max && !IsFull(); ++i) {
      Epsilon(from, to);
      const int32_t next = NewState();
      Instantiate(expr.a, from, next);
      from = next;
    }
    Epsilon(from, to);
  }

  void Automaton(const ByteAutomaton& automaton, int32_t from, int32_t to) {
    const int32_t base = out_.num_states;
    out_.num_states += static_cast<int32_t>(automaton.accepting.size());
    if (IsFull()) return;
    Epsilon(from, base);
    for (const ByteAutomaton::Edge& edge : automaton.edges) {
      Symbols(base + edge.from, edge.lo, edge.hi, base + edge.to);
    }
    for (size_t i = 0; i < automaton.accepting.size(); ++i) {
      if (automaton.accepting[i]) Epsilon(base + static_cast<int32_t>(i), to);
    }
  }

  const Grammar& grammar_;
  const TokenTrie* trie_;
  RawAutomata out_;
  std::vector<RuleId> wanted_;
  std::map<TokenId, int> controls_;
};

}  // namespace

RawAutomata::Index RawAutomata::IndexBy(int32_t Step::*end_of_step) const {
  Index index;
  index.first.assign(static_cast<size_t>(num_states) + 1, 0);
  for (const Step& step : steps) ++index.first[static_cast<size_t>(step.*end_of_step) + 1];
  for (size_t s = 1; s < index.first.size(); ++s) index.first[s] += index.first[s - 1];
  index.order.resize(steps.size());
  std::vector<int32_t> next(index.first.begin(), index.first.end() - 1);
  for (size_t i = 0; i < steps.size(); ++i) {
    int32_t& place = next[static_cast<size_t>(steps[i].*end_of_step)];
    index.order[static_cast<size_t>(place++)] = static_cast<int32_t>(i);
  }
  return index;
}

Result<RawAutomata> BuildAutomata(const Grammar& grammar, const TokenTrie* trie) {
  return Builder(grammar, trie).Run();
}

// Knuth's generalisation of Dijkstra's search: states are settled in order of their distance, and a
// call costs what the start of the called rule costs, which is settled before anything longer.
std::vector<int64_t> ShortestToEnd(const RawAutomata& automata) {
  const auto num_states = static_cast<size_t>(automata.num_states);
  std::vector<int64_t> distance(num_states, kNoWay);
  std::vector<bool> is_settled(num_states, false);
  const RawAutomata::Index into = automata.IndexBy(&Step::to);
  std::vector<std::vector<int32_t>> calls_of(automata.start.size());
  std::vector<RuleId> starts_rule(num_states, -1);
  for (size_t i = 0; i < automata.steps.size(); ++i) {
    const Step& step = automata.steps[i];
    if (step.kind == Kind::kCall) {
      calls_of[static_cast<size_t>(step.rule)].push_back(static_cast<int32_t>(i));
    }
  }

  using Entry = std::pair<int64_t, int32_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  const auto offer = [&](int32_t state, int64_t value) {
    value = std::min(value, kNoWay - 1);
    if (value >= distance[static_cast<size_t>(state)]) return;
    distance[static_cast<size_t>(state)] = value;
    queue.emplace(value, state);
  };
  for (size_t rule = 0; rule < automata.start.size(); ++rule) {
    if (automata.start[rule] < 0) continue;
    starts_rule[static_cast<size_t>(automata.start[rule])] = static_cast<RuleId>(rule);
    offer(automata.end[rule], 0);
  }
  const auto offer_call = [&](const Step& call) {
    const auto callee = static_cast<size_t>(automata.start[static_cast<size_t>(call.rule)]);
    const auto after = static_cast<size_t>(call.to);
    if (is_settled[callee] && is_settled[after]) {
      offer(call.from, distance[callee] + distance[after]);
    }
  };
  while (!queue.empty()) {
    const auto state = static_cast<size_t>(queue.top().second);
    queue.pop();
    if (is_settled[state]) continue;
    is_settled[state] = true;
    for (int32_t i = into.first[state]; i < into.first[state + 1]; ++i) {
      const Step& step = automata.steps[static_cast<size_t>(into.order[static_cast<size_t>(i)])];
      if (step.kind == Kind::kCall) {
        offer_call(step);
      } else {
        offer(step.from, distance[state] + (step.kind == Kind::kSymbol ? 1 : 0));
      }
    }
    if (starts_rule[state] >= 0) {
      for (const int32_t call : calls_of[static_cast<size_t>(starts_rule[state])]) {
        offer_call(automata.steps[static_cast<size_t>(call)]);
      }
    }
  }
  return distance;
}

}  // namespace fathom
