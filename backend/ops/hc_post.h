// Exit of a sub-layer: its output is added to the mixed copies of the residual stream.
//
// X'[k] = bf16(post[k] * o + sum_j comb[j][k] * X[j]), in place, where X is what the sub-layer's
// HcPreNorm read.
// Source: official inference code, model.py: Block.hc_post.
#pragma once

#include "base/status.h"
#include "base/tensor_view.h"

namespace fathom {

struct HcPostArgs {
  TensorView<const float> out;   // [n, D], the sub-layer's output
  TensorView<const float> post;  // [n, hc_mult]
  TensorView<const float> comb;  // [n, hc_mult, hc_mult]
  TensorView<float> hc;          // [n, hc_mult, D], read and written
};

Status Check(const HcPostArgs& args);

}  // namespace fathom
