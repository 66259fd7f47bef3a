// cos and sin of the rotary angles of given positions, once per step.
//
// The angle is fp32(position) * frequency[k], rounded once to fp32; its cos and sin are taken in
// double and rounded to fp32. No table over positions: the fp32 product belongs to the model.
// Source: official inference code, model.py: precompute_freqs_cis.
#pragma once

#include <span>

#include "base/status.h"
#include "base/tensor_view.h"
#include "base/types.h"

namespace fathom {

struct RopeTableArgs {
  std::span<const Position> positions;  // [n]
  TensorView<const float> frequencies;  // [rope_dim / 2]
  TensorView<float> cos_sin;            // [n, rope_dim / 2, 2], written: cos then sin
};

Status Check(const RopeTableArgs& args);

}  // namespace fathom
