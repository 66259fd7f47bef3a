// Products of a step's rows with stored weights, for the operations that need them. Needs the CUDA
// runtime.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/weights.h"
#include "base/status.h"

namespace fathom::cuda {

// Rows of floats in device memory.
struct Rows {
  float* data = nullptr;
  int64_t n = 0;
  int64_t stride = 0;  // elements
};
struct ConstRows {
  const float* data = nullptr;
  int64_t n = 0;
  int64_t stride = 0;

  [[nodiscard]] ConstRows Slice(int64_t first, int64_t count) const {
    return {data + first * stride, count, stride};
  }
};

// out[i][row] = weight[row] . x[i], rounded to bf16 if asked. Rows of the weight come in `groups`
// equal groups; group g takes the columns [g * weight.cols, (g + 1) * weight.cols) of x.
Status Multiply(const ConstRows& x, const WeightView& weight, int groups, bool round, Rows out,
                cudaStream_t stream);

// The e4m3 values, groups of 128, that quantised weights take as their input. `cols` is a multiple
// of 128; out has rows of that many elements.
Status QuantiseRows(const ConstRows& x, int cols, float* out, cudaStream_t stream);

}  // namespace fathom::cuda
