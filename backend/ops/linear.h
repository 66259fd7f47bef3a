// Matrix products of one input with one or two weights: y_i = W_i x.
//
// For fp8 and fp4 weights the input is rounded to e4m3 in groups of 128 along K with a power-of-two
// scale (official numerics), once for all the weights of the call; bf16 and fp32 weights take it as
// it is. Accumulation is fp32, in an order that depends on K alone. The result is rounded to bf16
// where `round_output` is set. Source: official inference code, model.py: Linear, linear();
// kernel.py: act_quant, fp8_gemm, fp4_gemm.
#pragma once

#include "backend/weights.h"
#include "base/status.h"
#include "base/tensor_view.h"

namespace fathom {

struct LinearOutput {
  WeightView weight;      // [N, K]
  TensorView<float> out;  // [n, N], written
};

struct LinearArgs {
  TensorView<const float> x;  // [n, K]
  LinearOutput first;
  LinearOutput second;  // optional (empty weight): same input, same kind of weight
  // bf16 results (fp8, fp4 and bf16 linears of the official code) or fp32 ones (compressors).
  bool round_output = true;
};

Status Check(const LinearArgs& args);

}  // namespace fathom
