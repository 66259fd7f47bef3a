// What the tests of this folder share: a naive reader of grammars, random choices, compiled
// grammars of fathom-nano's vocabulary.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/json_parse.h"
#include "grammar/compiled_grammar.h"
#include "grammar/matcher.h"
#include "grammar/token_mask.h"
#include "grammar/token_trie.h"
#include "tokenizer/tokenizer.h"

namespace fathom::testing {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  // From 0 to n - 1.
  int Below(int n) { return static_cast<int>(engine_() % static_cast<uint64_t>(n)); }
  bool OneIn(int n) { return Below(n) == 0; }
  template <typename T>
  const T& Of(const std::vector<T>& items) {
    return items[static_cast<size_t>(Below(static_cast<int>(items.size())))];
  }

 private:
  std::mt19937_64 engine_;
};

inline const Tokenizer& NanoTokenizer() {
  static const Tokenizer tokenizer = [] {
    auto loaded = Tokenizer::Load(std::string(FATHOM_SOURCE_DIR) + "/models/fathom-nano");
    FATHOM_CHECK(loaded.ok(), loaded.status().ToString());
    return std::move(loaded).value();
  }();
  return tokenizer;
}

inline std::shared_ptr<const TokenTrie> NanoTrie() {
  static const auto trie = std::make_shared<const TokenTrie>(NanoTokenizer());
  return trie;
}

inline constexpr TokenId kNanoEos = 1;

// Null, with a failure recorded, where there is an error.
inline std::shared_ptr<const CompiledGrammar> Compiled(const Result<Grammar>& grammar,
                                                       const TokenTrie* trie = nullptr) {
  EXPECT_TRUE(grammar.ok()) << grammar.status().ToString();
  if (!grammar.ok()) return nullptr;
  const auto compiled = CompileGrammar(*grammar, trie);
  EXPECT_TRUE(compiled.ok()) << compiled.status().ToString();
  return compiled.ok() ? *compiled : nullptr;
}

inline bool Accepts(const std::shared_ptr<const CompiledGrammar>& grammar, std::string_view text) {
  if (grammar == nullptr) return false;
  Matcher matcher(grammar);
  const Matcher::Config at = matcher.StepText(matcher.start(), text);
  return at != Matcher::kDead && matcher.IsComplete(at);
}

inline bool Accepts(const Result<Grammar>& grammar, std::string_view text) {
  return Accepts(Compiled(grammar), text);
}

// The token as a matcher sees it, without tree or mask.
inline Matcher::Config StepToken(Matcher& matcher, Matcher::Config at, const TokenTrie& trie,
                                 TokenId token) {
  if (!trie.IsControl(token)) {
    if (trie.Bytes(token).empty()) return Matcher::kDead;
    return matcher.StepText(at, trie.Bytes(token));
  }
  const auto& controls = matcher.grammar().control_tokens;
  for (size_t i = 0; i < controls.size(); ++i) {
    if (controls[i] == token) return matcher.Step(at, matcher.grammar().SymbolOfControl(i));
  }
  return Matcher::kDead;
}

inline std::vector<TokenId> TokensIn(const std::vector<uint64_t>& mask) {
  std::vector<TokenId> tokens;
  for (size_t t = 0; t < mask.size() * 64; ++t) {
    if ((mask[t / 64] >> (t % 64) & 1) != 0) tokens.push_back(static_cast<TokenId>(t));
  }
  return tokens;
}

// A text of the grammar: `num_free` random tokens of the masks, then the shortest way to the end.
inline std::string RandomText(const std::shared_ptr<const CompiledGrammar>& grammar,
                              const TokenTrie& trie, Random& random, int num_free) {
  Matcher matcher(grammar);
  Matcher::Config at = matcher.start();
  std::string text;
  for (int i = 0; i < 100'000; ++i) {
    TokenId token = -1;
    if (i < num_free) {
      std::vector<uint64_t> mask(static_cast<size_t>(trie.vocab_size()) / 64 + 1, 0);
      ComputeTokenMask(matcher, at, trie, mask);
      const std::vector<TokenId> tokens = TokensIn(mask);
      const bool may_end = matcher.IsComplete(at);
      if (tokens.empty() || (may_end && random.OneIn(4))) return text;
      token = random.Of(tokens);
    } else {
      if (matcher.IsComplete(at)) return text;
      token = ShortestToken(matcher, at, trie);
    }
    if (token < 0) break;
    text += trie.Bytes(token);
    at = StepToken(matcher, at, trie, token);
    if (at == Matcher::kDead) break;
  }
  ADD_FAILURE() << "no way to the end after " << text.substr(0, 500);
  return text;
}

// Reads a grammar as it is written down: the ends of all matches of an expression from a place.
// Exponential; for small grammars and texts.
class NaiveReader {
 public:
  NaiveReader(const Grammar& grammar, std::string_view text) : grammar_(grammar), text_(text) {}

  bool Matches() { return Ends(Body(grammar_.root), 0).contains(text_.size()); }

 private:
  ExprId Body(RuleId rule) const { return grammar_.rules[static_cast<size_t>(rule)].body; }

  std::set<size_t> Ends(ExprId id, size_t begin) {
    const Grammar::Expr& expr = grammar_.exprs[static_cast<size_t>(id)];
    const auto a = static_cast<size_t>(expr.a);
    switch (expr.kind) {
      case Grammar::ExprKind::kBytes:
        if (begin < text_.size() && static_cast<uint8_t>(text_[begin]) >= expr.a &&
            static_cast<uint8_t>(text_[begin]) <= expr.b) {
          return {begin + 1};
        }
        return {};
      case Grammar::ExprKind::kLiteral:
      case Grammar::ExprKind::kControl:
        if (text_.substr(begin).starts_with(grammar_.literals[a])) {
          return {begin + grammar_.literals[a].size()};
        }
        return {};
      case Grammar::ExprKind::kSequence: {
        std::set<size_t> ends = {begin};
        for (const ExprId part : grammar_.lists[a]) ends = EndsFromAll(part, ends);
        return ends;
      }
      case Grammar::ExprKind::kChoice: {
        std::set<size_t> ends;
        for (const ExprId part : grammar_.lists[a]) ends.merge(Ends(part, begin));
        return ends;
      }
      case Grammar::ExprKind::kRepeat: {
        std::set<size_t> at = {begin}, ends;
        for (int i = 0; i < expr.min; ++i) at = EndsFromAll(expr.a, at);
        ends = at;
        for (int i = expr.min; (expr.max < 0 || i < expr.max) && !at.empty(); ++i) {
          at = EndsFromAll(expr.a, at);
          const size_t before = ends.size();
          ends.insert(at.begin(), at.end());
          if (ends.size() == before) break;
        }
        return ends;
      }
      case Grammar::ExprKind::kRule: {
        // Rules without finite text may begin with themselves: they have no match.
        if (!active_.insert({expr.a, begin}).second) return {};
        std::set<size_t> ends = Ends(Body(expr.a), begin);
        active_.erase({expr.a, begin});
        return ends;
      }
      case Grammar::ExprKind::kAutomaton: {
        const ByteAutomaton& automaton = grammar_.automata[a];
        std::set<std::pair<size_t, int32_t>> reached = {{begin, 0}};
        std::set<size_t> ends;
        for (auto it = reached.begin(); it != reached.end(); ++it) {
          if (automaton.accepting[static_cast<size_t>(it->second)]) ends.insert(it->first);
          if (it->first == text_.size()) continue;
          const auto byte = static_cast<uint8_t>(text_[it->first]);
          for (const ByteAutomaton::Edge& edge : automaton.edges) {
            if (edge.from == it->second && edge.lo <= byte && byte <= edge.hi) {
              reached.insert({it->first + 1, edge.to});
            }
          }
        }
        return ends;
      }
    }
    return {};
  }

  std::set<size_t> EndsFromAll(ExprId id, const std::set<size_t>& begins) {
    std::set<size_t> ends;
    for (const size_t begin : begins) ends.merge(Ends(id, begin));
    return ends;
  }

  const Grammar& grammar_;
  std::string_view text_;
  std::set<std::pair<RuleId, size_t>> active_;
};

}  // namespace fathom::testing
