// Mixture of experts: the chosen routed experts and the shared one.
//
// Expert: gate = bf16(w1 x), up = bf16(w3 x); up is clamped to +-limit, gate from above only;
// h = silu(gate) * up in fp32, times the routing weight (routed experts, before w2), rounded to
// bf16; y = bf16(w2 h). Inputs of quantised weights are rounded to e4m3 as in Linear. out =
// bf16(sum over chosen experts in ascending id of y_e, then + y_shared), accumulated in fp32.
// Source: official inference code, model.py: Expert.forward, MoE.forward.
#pragma once

#include <span>

#include "backend/weights.h"
#include "base/status.h"
#include "base/tensor_view.h"

namespace fathom {

struct MoeArgs {
  TensorView<const float> x;              // [n, D]
  TensorView<const int32_t> experts;      // [n, K], distinct ids in a row
  TensorView<const float> weights;        // [n, K]
  std::span<const ExpertWeights> routed;  // [E]
  ExpertWeights shared;
  float swiglu_limit = 0.0f;  // 0: no clamp
  TensorView<float> out;      // [n, D], written
};

Status Check(const MoeArgs& args);

// Whether the chosen ids are ones, for backends whose memory the host reads. An id that is none is
// kInvalidArgument, and nothing is computed for its token.
Status CheckExpertIds(const MoeArgs& args);

}  // namespace fathom
