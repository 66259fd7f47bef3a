// Sampler: from one row of logits to the next token of one request.
//
// Order: log-probabilities are taken of the raw logits; then logit bias and penalties, the
// request's constraint and the masks; then temperature, min_p, top_k, top_p; then one draw. The
// draw's random number is a hash of (seed, position), so a token depends on the request and its own
// logits, never on the batch, the chunking or how often the sampler was called. Ties go to the
// smaller token id everywhere. The arithmetic is that of backend/ops/sample.h, so that a device
// chooses the same token. One per request; single-threaded.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/choose_token.h"
#include "base/status.h"
#include "base/types.h"
#include "engine/request.h"

namespace fathom {

// kInvalidArgument naming the field that is out of range (ranges: engine/request.h).
Status ValidateSampling(const SamplingParams& params, int vocab_size);

// 64 random bits: a hash of its arguments, the same on every machine.
uint64_t RandomAt(uint64_t seed, int64_t position);

// Working memory of a draw, shared by the samplers of one thread.
struct SampleScratch {
  explicit SampleScratch(int vocab_size) {
    candidates.reserve(static_cast<size_t>(vocab_size));
    raw.reserve(static_cast<size_t>(vocab_size));
    allowed.reserve((static_cast<size_t>(vocab_size) + 63) / 64);
  }
  std::vector<TokenCandidate> candidates;
  std::vector<float> raw;
  std::vector<uint64_t> allowed;  // bit t % 64 of word t / 64: the constraint allows token t
};

// The log-probability of `token`, and of the `num_logprobs` likeliest ones, given raw logits
// [vocab].
TokenEvent LogprobsOf(std::span<const float> logits, TokenId token, int num_logprobs,
                      SampleScratch& scratch);

class Sampler {
 public:
  // `seed` is used where params.seed is absent. `prompt` counts for the repetition penalty.
  Sampler(const SamplingParams& params, uint64_t seed, int vocab_size,
          std::span<const TokenId> prompt);

  // The token at `position` of the sequence, given the logits [vocab] there; `logits` is
  // overwritten. `constraint`, when there is one, says what may be chosen and is told what was.
  // `masked` ids are not chosen (end tokens before min_tokens), unless the constraint allows
  // nothing else. `num_logprobs` as in GenerateRequest.
  TokenEvent Sample(std::span<float> logits, int64_t position, std::span<const TokenId> masked,
                    TokenConstraint* constraint, int num_logprobs, SampleScratch& scratch);

  // The same for logits elsewhere (backend/ops/sample.h), in two parts: what the token is chosen
  // by, and which it was. The row borrows from this object, from `masked` and from `allowed`, which
  // the constraint's answer is written to.
  [[nodiscard]] SampleRow RowAt(int64_t position, std::span<const TokenId> masked,
                                TokenConstraint* constraint, size_t vocab_size,
                                std::vector<uint64_t>& allowed) const;
  void Accept(TokenId token, TokenConstraint* constraint);

 private:
  [[nodiscard]] bool repeats() const { return params_.repetition_penalty != 1.0; }
  [[nodiscard]] bool counts() const {
    return params_.presence_penalty != 0.0 || params_.frequency_penalty != 0.0;
  }
  // Index of the token's adjustment, which is there afterwards.
  size_t AdjustmentOf(TokenId token);

  SamplingParams params_;
  uint64_t seed_;
  std::vector<TokenAdjustment> adjustments_;  // ascending
  std::vector<int32_t> generated_;            // how often, of the same tokens; where counts()
};

}  // namespace fathom
