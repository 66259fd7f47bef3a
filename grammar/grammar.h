// Grammar: a context-free language over bytes and control tokens, as rules of expressions, and the
// builder that every front end (schema, regex, EBNF, tool calls) writes it with.
//
// The builder bounds everything that input sets: number of expressions and rules, depth, repeat
// counts. What is too large, or otherwise wrong, is remembered and reported once, by Build, so that
// front ends need no check after every call. Grammar is immutable; any thread may read it. A
// builder belongs to one thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "grammar/byte_automaton.h"

namespace fathom {

using ExprId = int32_t;
using RuleId = int32_t;

struct Grammar {
  enum class ExprKind : uint8_t {
    kBytes,      // one byte in [a, b]
    kLiteral,    // literals[a]
    kSequence,   // lists[a]
    kChoice,     // lists[a]; none of them: matches nothing at all
    kRepeat,     // a, from min to max times; max < 0: no limit
    kRule,       // rules[a]
    kControl,    // the control token spelled literals[a]
    kAutomaton,  // automata[a]
  };
  struct Expr {
    ExprKind kind = ExprKind::kSequence;
    int32_t a = 0, b = 0;
    int32_t min = 0, max = 0;
    int32_t depth = 1;
    int64_t size = 1;  // about how many states one use makes
  };
  struct Rule {
    std::string name;  // for messages
    ExprId body = -1;
  };

  std::vector<Expr> exprs;
  std::vector<std::vector<ExprId>> lists;
  std::vector<std::string> literals;
  std::vector<ByteAutomaton> automata;
  std::vector<Rule> rules;
  RuleId root = 0;
};

// The texts of either. Sizes add up, so the result may exceed the builder's bounds by a factor of
// two; CompileGrammar has the last word.
Grammar EitherOf(Grammar a, const Grammar& b);

class GrammarBuilder {
 public:
  static constexpr int kUnlimited = -1;
  static constexpr int kMaxRepeat = 1 << 24;

  ExprId Empty() { return Sequence({}); }
  ExprId Never() { return Choice({}); }
  ExprId Byte(int lo, int hi);
  ExprId Literal(std::string_view text);
  // The control token with this spelling; its bytes where a vocabulary has no such token.
  ExprId Control(std::string_view spelling);
  ExprId Sequence(std::vector<ExprId> parts);
  ExprId Choice(std::vector<ExprId> parts);
  ExprId Optional(ExprId expr) { return Repeat(expr, 0, 1); }
  // `expr` from `min` to `max` times (kUnlimited: no limit). Large counts cost their logarithm.
  ExprId Repeat(ExprId expr, int64_t min, int64_t max);
  ExprId Automaton(ByteAutomaton automaton);

  // A rule may be used before it has a body.
  RuleId NewRule(std::string name);
  void SetBody(RuleId rule, ExprId body);
  ExprId Use(RuleId rule);
  ExprId NewRuleOf(std::string name, ExprId body);

  // Keeps the first one. Build reports it.
  void Fail(Status status);
  [[nodiscard]] bool failed() const { return !status_.ok(); }

  // What was wrong, or the grammar whose texts are those of `root`. The builder is used up.
  Result<Grammar> Build(RuleId root);

 private:
  ExprId Add(Grammar::Expr expr);
  ExprId AddList(Grammar::ExprKind kind, std::vector<ExprId> parts);
  ExprId Exactly(ExprId rule_use, int64_t count);
  ExprId UpTo(ExprId rule_use, int64_t count);
  ExprId InlineRepeat(ExprId expr, int64_t min, int64_t max);

  Grammar grammar_;
  std::map<std::pair<ExprId, int64_t>, ExprId> exactly_, up_to_;
  Status status_;
};

}  // namespace fathom
