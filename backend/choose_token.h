// One row of logits to one token, on the host: the meaning of ops/sample.h.
//
// The reference backend's operation and the engine's sampler are this code; device code has its
// own, of the same integers. Pure functions; scratch is the caller's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/ops/sample.h"
#include "backend/token_mass.h"

namespace fathom {

// What a draw needs of a row's settings.
struct DrawRule {
  double scale = 0.0;         // log2(e) / temperature; 0: greedy
  double min_distance = 0.0;  // temperature * log(min_p): to the largest logit
  uint64_t nucleus = 0;       // top_p of 2^64; 0: off
  uint64_t random = 0;
  int64_t top_k = 0;  // 0: off
};
DrawRule RuleOf(const SampleRow& row);

struct TokenCandidate {
  TokenId token = 0;
  uint32_t order = 0;  // LogitOrder
  uint64_t mass = 0;
};
// Larger logit first, then smaller id.
inline constexpr auto kBetterToken = [](const TokenCandidate& a, const TokenCandidate& b) {
  return a.order != b.order ? a.order > b.order : a.token < b.token;
};

// Adjusted and masked, `logits` [vocab] are what is chosen from.
TokenId ChooseToken(const SampleRow& row, std::span<float> logits,
                    std::vector<TokenCandidate>& scratch);

LogitSum SumLogits(std::span<const float> logits);

}  // namespace fathom
