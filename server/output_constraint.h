// ConstraintFactory: from what a request says of its answer (a schema, a grammar, allowed tokens, a
// tool that must be called) to the TokenConstraint that holds the engine to it.
//
// Grammars are compiled before a request is queued and kept for later requests that want the same.
// Any thread may call Prepare.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/types.h"
#include "engine/token_constraint.h"
#include "grammar/compiled_grammar.h"
#include "grammar/token_trie.h"
#include "server/api_error.h"
#include "server/request_fields.h"
#include "server/text_front_end.h"

namespace fathom {

using NewConstraint = std::function<std::shared_ptr<TokenConstraint>()>;

class ConstraintFactory {
 public:
  // The front end must outlive this object. `end_tokens`: the model's own.
  ConstraintFactory(const TextFrontEnd* front_end, std::vector<TokenId> end_tokens);

  // `make` stays empty where every token may come. `chat` is null for plain completions. 400 for a
  // bad schema, regex, grammar or tool, 422 for one that cannot be enforced.
  MaybeError Prepare(const ConstraintFields& fields, const ChatPrompt* chat, NewConstraint* make);

 private:
  using GrammarPtr = std::shared_ptr<const CompiledGrammar>;
  struct Plan {
    GrammarPtr grammar;  // null: none
    std::string opener;  // the grammar holds for what follows this text
  };

  MaybeError PlanGrammar(const ConstraintFields& fields, const ChatPrompt* chat, Plan* plan);
  // Compiles what `write` gives, unless a grammar of this key is kept.
  Result<GrammarPtr> Compile(const std::string& key, const std::function<Result<Grammar>()>& write);
  [[nodiscard]] std::shared_ptr<const TokenTrie> Trie();

  const TextFrontEnd* const front_end_;
  const std::vector<TokenId> end_tokens_;
  std::once_flag trie_made_;  // by the first request that needs it
  std::shared_ptr<const TokenTrie> trie_;

  std::mutex mutex_;  // guards what follows
  std::unordered_map<std::string, GrammarPtr> compiled_;
  std::deque<std::string> compiled_order_;  // oldest first
};

}  // namespace fathom
