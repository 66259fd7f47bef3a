// The token constraints of a request (engine/token_constraint.h): grammars, lists of tokens, words
// that must not come, the end of thinking; and several of them together.
//
// Each is for one sequence and belongs to the thread that generates it. Grammar and trie are shared
// between constraints; whoever drops them last is their last owner.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "engine/token_constraint.h"
#include "grammar/compiled_grammar.h"
#include "grammar/token_trie.h"
#include "tokenizer/tokenizer.h"

namespace fathom {

struct GrammarConstraintOptions {
  // Allowed exactly where the text is complete. At least one.
  std::vector<TokenId> end_tokens;
  // The prompt ends in reasoning: everything is allowed up to this token (</think>), or up to its
  // text spelled by others.
  std::optional<TokenId> start_after = std::nullopt;
  // Everything is allowed until this text was generated (after the reasoning); then the grammar
  // holds until its text is first complete, then everything again, and so on. Empty: the grammar
  // holds from the start. For blocks: ToolCallGrammar with is_opened and "<｜DSML｜tool_calls>".
  std::string opener = "";
};

// `grammar` was compiled with `trie`.
std::unique_ptr<TokenConstraint> NewGrammarConstraint(
    std::shared_ptr<const CompiledGrammar> grammar, std::shared_ptr<const TokenTrie> trie,
    GrammarConstraintOptions options);

// Only these tokens (at least one, ids from 0 on).
std::unique_ptr<TokenConstraint> NewAllowedTokens(std::span<const TokenId> tokens);

// The last token of each sequence (none empty) is not allowed right after the ones before it. Only
// generated tokens count. `end_token` is what Suggest answers.
std::unique_ptr<TokenConstraint> NewBadWords(std::vector<std::vector<TokenId>> sequences,
                                             TokenId end_token);
// The sequences of bad_words: each word as it is, and with a space in front where that is spelled
// by other tokens (vLLM wants as many tokens for that, too, and so lets " word" through where a
// vocabulary has it as one token and "word" as two). kInvalidArgument for words that are empty or
// not valid UTF-8.
Result<std::vector<std::vector<TokenId>>> BadWordTokens(const Tokenizer& tokenizer,
                                                        std::span<const std::string> words);

// After `max_tokens` (from 0 on) tokens of reasoning only `think_close` is allowed. Without effect
// where the prompt does not end in reasoning.
std::unique_ptr<TokenConstraint> NewThinkingBudget(int max_tokens, TokenId think_close,
                                                   TokenId end_token, bool starts_in_reasoning);

// All of them (at least one; none null). Where they leave nothing together, earlier ones win: a
// constraint that would leave nothing of what those before it allow is ignored for that token.
std::unique_ptr<TokenConstraint> Compose(std::vector<std::unique_ptr<TokenConstraint>> constraints);

}  // namespace fathom
