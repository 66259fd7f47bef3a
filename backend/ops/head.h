// From the residual stream to logits, for the rows that need them.
//
// rho as in HcPreNorm; pre[i] = sigmoid((fn X)[i] * rho * scale[0] + base[i]) + hc_eps;
// y = bf16(sum_i pre[i] X[i]); logits = fp32(RMSNorm(y)) . fp32(head). No Sinkhorn.
// Source: official inference code, model.py: ParallelHead.
#pragma once

#include <span>

#include "backend/weights.h"
#include "base/status.h"
#include "base/tensor_view.h"

namespace fathom {

struct HeadArgs {
  TensorView<const float> hc;           // [n, hc_mult, D]
  std::span<const int> rows;            // [m], rows of hc
  TensorView<const float> fn;           // [hc_mult, hc_mult * D]
  TensorView<const float> base;         // [hc_mult]
  TensorView<const float> scale;        // [1]
  TensorView<const float> norm_weight;  // [D]
  WeightView head;                      // bf16 [V, D]
  float norm_eps = 0.0f;
  float hc_eps = 0.0f;
  TensorView<float> logits;  // [m, V], written
};

Status Check(const HeadArgs& args);

}  // namespace fathom
