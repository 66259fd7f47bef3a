// The tokens that a grammar lets come next.
#pragma once

#include <cstdint>
#include <span>

#include "grammar/matcher.h"
#include "grammar/token_trie.h"

namespace fathom {

// Sets the bit of each token (t % 64 of word t / 64) that can follow `config`: of ordinary tokens
// all of whose bytes can, and of control tokens that the grammar names. `mask` is zero on entry;
// tokens beyond it are left out. Returns the number of tree nodes looked at.
//
// The work is bounded: in a grammar with a great many ways open at once, tokens of several bytes
// may be left out.
size_t ComputeTokenMask(Matcher& matcher, Matcher::Config config, const TokenTrie& trie,
                        std::span<uint64_t> mask);

// A token on a shortest way to the end of the grammar's text; -1 when `config` is complete or the
// vocabulary has no such token.
TokenId ShortestToken(Matcher& matcher, Matcher::Config config, const TokenTrie& trie);

}  // namespace fathom
