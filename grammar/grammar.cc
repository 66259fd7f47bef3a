#include "grammar/grammar.h"

#include <algorithm>

namespace fathom {

namespace {

constexpr size_t kMaxExprs = 400'000;
constexpr size_t kMaxRules = 50'000;
constexpr size_t kMaxListed = 2'000'000;
constexpr size_t kMaxLiteralBytes = size_t{4} << 20;
constexpr int kMaxDepth = 1'000;
constexpr int64_t kMaxSize = int64_t{1} << 40;
// Repeats that make more states than this go through rules.
constexpr int64_t kMaxInlineRepeat = 64;

Status TooLarge(const std::string& what, int64_t limit) {
  return InvalidArgument("the grammar is too large: more than " + std::to_string(limit) + " " +
                         what);
}

}  // namespace

void GrammarBuilder::Fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

ExprId GrammarBuilder::Add(Grammar::Expr expr) {
  if (grammar_.exprs.size() >= kMaxExprs) {
    Fail(TooLarge("expressions", kMaxExprs));
    return 0;
  }
  if (expr.depth > kMaxDepth) {
    Fail(TooLarge("nested expressions", kMaxDepth));
    expr.depth = 1;
  }
  expr.size = std::min(expr.size, kMaxSize);
  grammar_.exprs.push_back(expr);
  return static_cast<ExprId>(grammar_.exprs.size() - 1);
}

ExprId GrammarBuilder::Byte(int lo, int hi) {
  return Add({.kind = Grammar::ExprKind::kBytes, .a = lo, .b = hi});
}

ExprId GrammarBuilder::Literal(std::string_view text) {
  if (text.size() > kMaxLiteralBytes) Fail(TooLarge("bytes in one literal", kMaxLiteralBytes));
  if (failed()) return 0;
  grammar_.literals.emplace_back(text);
  return Add({.kind = Grammar::ExprKind::kLiteral,
              .a = static_cast<int32_t>(grammar_.literals.size() - 1),
              .size = static_cast<int64_t>(text.size()) + 1});
}

ExprId GrammarBuilder::Control(std::string_view spelling) {
  const ExprId expr = Literal(spelling);
  if (!failed()) {
    grammar_.exprs[static_cast<size_t>(expr)].kind = Grammar::ExprKind::kControl;
  }
  return expr;
}

ExprId GrammarBuilder::AddList(Grammar::ExprKind kind, std::vector<ExprId> parts) {
  if (failed()) return 0;
  if (parts.size() > kMaxListed) Fail(TooLarge("parts in one rule", kMaxListed));
  Grammar::Expr expr{.kind = kind, .a = static_cast<int32_t>(grammar_.lists.size())};
  for (const ExprId part : parts) {
    const Grammar::Expr& child = grammar_.exprs[static_cast<size_t>(part)];
    expr.depth = std::max(expr.depth, child.depth + 1);
    expr.size = std::min(expr.size + child.size, kMaxSize);
  }
  grammar_.lists.push_back(std::move(parts));
  return Add(expr);
}

ExprId GrammarBuilder::Sequence(std::vector<ExprId> parts) {
  if (parts.size() == 1) return parts[0];
  return AddList(Grammar::ExprKind::kSequence, std::move(parts));
}

ExprId GrammarBuilder::Choice(std::vector<ExprId> parts) {
  if (parts.size() == 1) return parts[0];
  return AddList(Grammar::ExprKind::kChoice, std::move(parts));
}

ExprId GrammarBuilder::Automaton(ByteAutomaton automaton) {
  if (failed()) return 0;
  Grammar::Expr expr{.kind = Grammar::ExprKind::kAutomaton,
                     .a = static_cast<int32_t>(grammar_.automata.size()),
                     .size = static_cast<int64_t>(automaton.accepting.size())};
  grammar_.automata.push_back(std::move(automaton));
  return Add(expr);
}

RuleId GrammarBuilder::NewRule(std::string name) {
  if (grammar_.rules.size() >= kMaxRules) {
    Fail(TooLarge("rules", kMaxRules));
    return 0;
  }
  grammar_.rules.push_back({.name = std::move(name)});
  return static_cast<RuleId>(grammar_.rules.size() - 1);
}

void GrammarBuilder::SetBody(RuleId rule, ExprId body) {
  if (!failed()) grammar_.rules[static_cast<size_t>(rule)].body = body;
}

ExprId GrammarBuilder::Use(RuleId rule) {
  return Add({.kind = Grammar::ExprKind::kRule, .a = rule});
}

ExprId GrammarBuilder::NewRuleOf(std::string name, ExprId body) {
  const RuleId rule = NewRule(std::move(name));
  SetBody(rule, body);
  return Use(rule);
}

ExprId GrammarBuilder::InlineRepeat(ExprId expr, int64_t min, int64_t max) {
  const Grammar::Expr& child = grammar_.exprs[static_cast<size_t>(expr)];
  return Add({.kind = Grammar::ExprKind::kRepeat,
              .a = expr,
              .min = static_cast<int32_t>(min),
              .max = static_cast<int32_t>(max),
              .depth = child.depth + 1,
              .size = child.size * std::max<int64_t>({min + 1, max, 1})});
}

// Exactly `count` times, as rules that double: 1000 times is 10 rules.
ExprId GrammarBuilder::Exactly(ExprId rule_use, int64_t count) {
  if (count <= kMaxInlineRepeat / 4) return InlineRepeat(rule_use, count, count);
  const auto known = exactly_.find({rule_use, count});
  if (known != exactly_.end()) return known->second;
  const ExprId half = Exactly(rule_use, count / 2);
  std::vector<ExprId> parts = {half, half};
  if (count % 2 != 0) parts.push_back(rule_use);
  const ExprId expr = NewRuleOf("repeat", Sequence(std::move(parts)));
  exactly_[{rule_use, count}] = expr;
  return expr;
}

// At most `count` times: either the first half in full and then some of the rest, or less than that
// half. Each text is counted in one way only; while reading it, about log(count) ways are open.
ExprId GrammarBuilder::UpTo(ExprId rule_use, int64_t count) {
  if (count <= kMaxInlineRepeat / 4) return InlineRepeat(rule_use, 0, count);
  const auto known = up_to_.find({rule_use, count});
  if (known != up_to_.end()) return known->second;
  const int64_t half = (count + 1) / 2;
  const ExprId full = Sequence({Exactly(rule_use, half), UpTo(rule_use, count - half)});
  const ExprId expr = NewRuleOf("repeat", Choice({full, UpTo(rule_use, half - 1)}));
  up_to_[{rule_use, count}] = expr;
  return expr;
}

ExprId GrammarBuilder::Repeat(ExprId expr, int64_t min, int64_t max) {
  if (min > kMaxRepeat || max > kMaxRepeat) Fail(TooLarge("repeats", kMaxRepeat));
  if (failed()) return 0;
  const int64_t count = std::max(min, max);
  const Grammar::Expr child = grammar_.exprs[static_cast<size_t>(expr)];
  if (count <= 1 || child.size * count <= kMaxInlineRepeat) return InlineRepeat(expr, min, max);
  const ExprId use =
      child.kind == Grammar::ExprKind::kRule ? expr : NewRuleOf("repeated part", expr);
  const ExprId rest = max < 0 ? InlineRepeat(use, 0, kUnlimited) : UpTo(use, max - min);
  return Sequence({Exactly(use, min), rest});
}

Result<Grammar> GrammarBuilder::Build(RuleId root) {
  if (!status_.ok()) return status_;
  for (const Grammar::Rule& rule : grammar_.rules) {
    if (rule.body < 0) return InvalidArgument("rule '" + rule.name + "' is used but not defined");
  }
  grammar_.root = root;
  return std::move(grammar_);
}

Grammar EitherOf(Grammar a, const Grammar& b) {
  using Kind = Grammar::ExprKind;
  const auto size = [](const auto& items) { return static_cast<int32_t>(items.size()); };
  const int32_t exprs = size(a.exprs), lists = size(a.lists), literals = size(a.literals),
                automata = size(a.automata), rules = size(a.rules);
  for (Grammar::Expr expr : b.exprs) {
    switch (expr.kind) {
      case Kind::kBytes:
        break;
      case Kind::kLiteral:
      case Kind::kControl:
        expr.a += literals;
        break;
      case Kind::kSequence:
      case Kind::kChoice:
        expr.a += lists;
        break;
      case Kind::kRepeat:
        expr.a += exprs;
        break;
      case Kind::kRule:
        expr.a += rules;
        break;
      case Kind::kAutomaton:
        expr.a += automata;
        break;
    }
    a.exprs.push_back(expr);
  }
  for (std::vector<ExprId> list : b.lists) {
    for (ExprId& expr : list) expr += exprs;
    a.lists.push_back(std::move(list));
  }
  a.literals.insert(a.literals.end(), b.literals.begin(), b.literals.end());
  a.automata.insert(a.automata.end(), b.automata.begin(), b.automata.end());
  for (const Grammar::Rule& rule : b.rules) {
    a.rules.push_back({rule.name, rule.body < 0 ? rule.body : rule.body + exprs});
  }
  const auto use = [&a](RuleId rule) {
    Grammar::Expr expr;
    expr.kind = Kind::kRule;
    expr.a = rule;
    a.exprs.push_back(expr);
    return static_cast<ExprId>(a.exprs.size() - 1);
  };
  a.lists.push_back({use(a.root), use(b.root + rules)});
  Grammar::Expr choice;
  choice.kind = Kind::kChoice;
  choice.a = size(a.lists) - 1;
  choice.depth = 2;
  choice.size = 3;
  a.exprs.push_back(choice);
  a.rules.push_back({"either", size(a.exprs) - 1});
  a.root = size(a.rules) - 1;
  return a;
}

}  // namespace fathom
