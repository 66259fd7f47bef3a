#pragma once

#include <cstdint>
#include <span>

#include "base/types.h"

namespace fathom {

// Restricts which tokens may come next in one request. Stateful; one per sequence; used by one
// thread at a time (the engine's).
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // Clears the bits of tokens that may not come next (bit t%64 of word t/64; on entry all tokens of
  // the vocabulary are set). At least one bit stays. Returns false when nothing was cleared.
  virtual bool Restrict(std::span<uint64_t> allowed) = 0;
  // Takes the token that was chosen. Called in order for every generated token, end tokens
  // included.
  virtual void Accept(TokenId token) = 0;
  // For engines that replay a script instead of sampling: a token that leads to the shortest legal
  // end, to be used where the scripted one is not allowed.
  virtual TokenId Suggest() = 0;
};

}  // namespace fathom
