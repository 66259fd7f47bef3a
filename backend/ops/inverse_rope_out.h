// Rotates the attention output back and applies the grouped first output projection.
//
// out_h's last rope_dim channels are rotated by the negative angle of the token's position (rounded
// to bf16). Heads are grouped in order; group g's heads, flattened, are the input of rows g * rank
// .. (g + 1) * rank of wo_a. fp8 weight bytes, decoded exactly, times bf16 activations: the input
// is not quantised. Result rounded to bf16. Source: official inference code, model.py:
// Attention.forward (wo_a einsum).
// With `quantise_input`, which is not official, the rotated heads are rounded to e4m3 before the
// product, as Linear does it: groups of 128 along a group's columns, a power-of-two scale. For
// quantised weights in official numerics only; kInvalidArgument else.
#pragma once

#include "backend/weights.h"
#include "base/status.h"
#include "base/tensor_view.h"

namespace fathom {

struct InverseRopeOutArgs {
  TensorView<float> o;              // [n, H, d], read; what is in it afterwards is not defined
  TensorView<const float> cos_sin;  // [n, rope_dim / 2, 2]
  WeightView wo_a;                  // [groups * rank, H * d / groups]
  int groups = 0;
  TensorView<float> out;        // [n, groups * rank], written
  bool quantise_input = false;  // `--o-proj-activations fp8`
};

Status Check(const InverseRopeOutArgs& args);

}  // namespace fathom
