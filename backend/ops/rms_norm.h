// RMSNorm of each row: bf16(w * (x * rsqrt(mean(x^2) + eps))), fp32 inside, plain weight.
// Source: official inference code, model.py: RMSNorm.
#pragma once

#include "base/status.h"
#include "base/tensor_view.h"

namespace fathom {

struct RmsNormArgs {
  TensorView<const float> x;       // [n, D]
  TensorView<const float> weight;  // [D]
  float eps = 0.0f;
  TensorView<float> out;  // [n, D], written; may be x
};

Status Check(const RmsNormArgs& args);

}  // namespace fathom
