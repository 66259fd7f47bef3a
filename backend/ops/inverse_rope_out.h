// Rotates the attention output back and applies the grouped first output projection.
//
// out_h's last rope_dim channels are rotated by the negative angle of the token's position (rounded
// to bf16). Heads are grouped in order; group g's heads, flattened, are the input of rows g * rank
// .. (g + 1) * rank of wo_a. fp8 weight bytes, decoded exactly, times bf16 activations: the input
// is not quantised. Result rounded to bf16. Source: official inference code, model.py:
// Attention.forward (wo_a einsum).
#pragma once

#include "backend/weights.h"
#include "base/status.h"
#include "base/tensor_view.h"

namespace fathom {

struct InverseRopeOutArgs {
  TensorView<float> o;              // [n, H, d], read; the rotated channels are overwritten
  TensorView<const float> cos_sin;  // [n, rope_dim / 2, 2]
  WeightView wo_a;                  // [groups * rank, H * d / groups]
  int groups = 0;
  TensorView<float> out;  // [n, groups * rank], written
};

Status Check(const InverseRopeOutArgs& args);

}  // namespace fathom
