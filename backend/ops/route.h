// Which experts each token goes to, and with which weight.
//
// g = fp32(x) . fp32(gate); p = sqrt(softplus(g)) (or sigmoid, softmax). Scored layers take the
// experts with the largest p + bias, equal values by smaller id; hash layers take them from the
// table at the token's id. weight_e = p_e / (sum of p over the chosen) * scale, from the unbiased p
// (softmax is not normalised again). Source: official inference code, model.py: Gate.forward.
#pragma once

#include <span>

#include "backend/weights.h"
#include "base/status.h"
#include "base/tensor_view.h"
#include "base/types.h"

namespace fathom {

enum class RouteScoring { kSqrtSoftplus, kSigmoid, kSoftmax };

struct RouteArgs {
  TensorView<const float> x;             // [n, D]
  WeightView gate;                       // bf16 [E, D]
  TensorView<const float> bias;          // [E]; empty for hash layers
  TensorView<const int64_t> hash_table;  // [vocab, K]; empty for scored layers
  std::span<const TokenId> token_ids;    // [n]; used by hash layers
  RouteScoring scoring = RouteScoring::kSqrtSoftplus;
  float scale = 1.0f;           // routed_scaling_factor
  TensorView<int32_t> experts;  // [n, K], written, in order of choice
  TensorView<float> weights;    // [n, K], written
};

inline constexpr int kMaxExpertsPerToken = 32;

// Hash tables come from a file: an id outside [0, E) in a token's row is kDataLoss when it is met.
Status Check(const RouteArgs& args);

}  // namespace fathom
