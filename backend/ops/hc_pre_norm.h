// Entry of a sub-layer: the mixing weights of the hyper-connections, the weighted sum of the copies
// and its RMSNorm.
//
// Per token, in fp32: rho = rsqrt(mean over all hc_mult*D values of X^2 + norm_eps); m = (fn X) *
// rho, (2 + hc_mult) * hc_mult values:
//   pre[i]     = sigmoid(m[i] * scale[0] + base[i]) + hc_eps
//   post[i]    = 2 * sigmoid(m[hc + i] * scale[1] + base[hc + i])
//   C[j][k]    = m[2 hc + j hc + k] * scale[2] + base[...]; row softmax, + hc_eps; column step;
//   then
//                sinkhorn_iters - 1 times a row step and a column step, where a step divides by
//                (sum + hc_eps). j is the source copy, k the destination copy.
// y = bf16(sum_i pre[i] X[i]); x = RMSNorm(y, norm_weight), rounded to bf16.
// Source: official inference code, model.py: Block.hc_pre; kernel.py: hc_split_sinkhorn.
#pragma once

#include "base/status.h"
#include "base/tensor_view.h"

namespace fathom {

struct HcPreNormArgs {
  TensorView<const float> hc;           // [n, hc_mult, D]
  TensorView<const float> fn;           // [(2 + hc_mult) * hc_mult, hc_mult * D]
  TensorView<const float> base;         // [(2 + hc_mult) * hc_mult]
  TensorView<const float> scale;        // [3]
  TensorView<const float> norm_weight;  // [D]
  float norm_eps = 0.0f;
  float hc_eps = 0.0f;
  int sinkhorn_iters = 0;  // at least 1
  TensorView<float> x;     // [n, D], written
  TensorView<float> post;  // [n, hc_mult], written
  TensorView<float> comb;  // [n, hc_mult, hc_mult], written: C[source][destination]
};

inline constexpr int kMaxHcMult = 8;

Status Check(const HcPreNormArgs& args);

}  // namespace fathom
