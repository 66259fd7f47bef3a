// From rows of logits to a token each.
//
// Per row, in this order: adjustments, then the allowed ids, then the masked ones; where a
// temperature is given, min_p, top_k, top_p and one draw, else the largest logit. Ties go to the
// smaller id everywhere. Logits that are -inf or NaN are never chosen while there are others;
// without any the smallest allowed id is. An infinite logit that is the largest is taken.
// Probabilities are the integers of backend/token_mass.h, so that every backend chooses the same
// token. backend/choose_token.h has it in plain code.
//
// Not every backend has this operation: Backend::samples().
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "base/tensor_view.h"
#include "base/types.h"

namespace fathom {

// Temperatures below this mean greedy.
inline constexpr double kGreedyTemperature = 1e-5;

// One token's logit l becomes l + bias; then l / repetition where it is positive, l * repetition
// where not; then l - penalty. All in fp32.
struct TokenAdjustment {
  TokenId token = 0;
  float bias = 0.0f;
  float repetition = 1.0f;
  float penalty = 0.0f;
};

// How a row is sampled. Greedy uses neither top_p, top_k, min_p nor `random`.
struct SampleRow {
  double temperature = 1.0;  // at least 0, finite
  double top_p = 1.0;        // (0, 1]
  double min_p = 0.0;        // [0, 1]
  int top_k = 0;             // 0: off
  bool logprob = false;      // the token's log-probability is wanted
  uint64_t random = 0;       // uniform: the draw is a function of it and the logits
  std::span<const TokenAdjustment> adjustments = {};  // ascending tokens, none twice
  // Bit t % 64 of word t / 64, at least one and none beyond the vocabulary; empty: all tokens.
  std::span<const uint64_t> allowed = {};
  std::span<const TokenId> masked = {};  // not chosen
};

struct SampleArgs {
  TensorView<float> logits;         // [n, V]; rows that are sampled are overwritten
  std::span<const int> indices;     // [m], rows of logits, ascending
  std::span<const SampleRow> rows;  // [m]
  TensorView<int32_t> tokens;       // [m], written: ids
  // [m], written: log-probability of the token, natural, of the logits as they came (before
  // temperature and adjustments); 0 where it is not wanted, NaN where the logits have none.
  TensorView<float> logprobs;
};

// kInvalidArgument when shapes disagree, a field is out of its range, or a token is outside of the
// vocabulary.
Status Check(const SampleArgs& args);

}  // namespace fathom
