// Bit sets over a vocabulary, as TokenConstraint takes them: bit t % 64 of word t / 64. Pure
// functions.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "base/types.h"
#include "engine/token_constraint.h"

namespace fathom {

// Sets `allowed` to what the constraint allows of a vocabulary; false when that is all of it.
inline bool AskConstraint(TokenConstraint& constraint, size_t vocab_size,
                          std::vector<uint64_t>& allowed) {
  allowed.assign((vocab_size + 63) / 64, ~uint64_t{0});
  if (vocab_size % 64 != 0) allowed.back() = (uint64_t{1} << (vocab_size % 64)) - 1;
  return constraint.Restrict(allowed);
}

inline bool IsAllowed(std::span<const uint64_t> allowed, TokenId token) {
  const auto t = static_cast<size_t>(token);
  return (allowed[t / 64] >> (t % 64) & 1) != 0;
}

// Whether any other token than `masked` (no id twice) is allowed.
inline bool AllowsOtherThan(std::span<const uint64_t> allowed, std::span<const TokenId> masked) {
  int64_t others = 0;
  for (const uint64_t word : allowed) others += std::popcount(word);
  for (const TokenId token : masked) others -= IsAllowed(allowed, token) ? 1 : 0;
  return others > 0;
}

// The smallest allowed id; at least one must be.
inline TokenId FirstAllowed(std::span<const uint64_t> allowed) {
  size_t word = 0;
  while (word + 1 < allowed.size() && allowed[word] == 0) ++word;
  return static_cast<TokenId>(word * 64 + static_cast<size_t>(std::countr_zero(allowed[word])));
}

}  // namespace fathom
