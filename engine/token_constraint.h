// TokenConstraint: restricts which tokens may come next in one request.
//
// The engine samples among what a constraint leaves; what the tokens mean (a JSON schema, a list of
// words) is not its business, so it sees this interface only. Stateful, one per sequence, used by
// one thread at a time: the engine's. Implementations: grammar/constraints.h.
#pragma once

#include <cstdint>
#include <span>

#include "base/types.h"

namespace fathom {

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // Clears the bits of tokens that may not come next: token t is bit t % 64 of word t / 64. On
  // entry the bits of all tokens of the vocabulary are set. At least one stays. Returns false when
  // nothing was cleared.
  virtual bool Restrict(std::span<uint64_t> allowed) = 0;

  // Takes the token that was chosen. Called in order for every generated token, end tokens
  // included.
  virtual void Accept(TokenId token) = 0;

  // For engines that replay a script instead of sampling: a token on a shortest way to a legal end,
  // to be taken where the scripted one is not allowed.
  [[nodiscard]] virtual TokenId Suggest() = 0;
};

}  // namespace fathom
