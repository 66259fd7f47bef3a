// The rotation in front of the output projection. Needs the CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/status.h"

namespace fathom::cuda {

// Attention's output [n, num, dim] and the rotations [n, pairs, 2] of its rows.
struct RotatedHeads {
  float* o = nullptr;
  const float* cos_sin = nullptr;
  int64_t n = 0;
  int num = 0;
  int dim = 0;
  int pairs = 0;

  [[nodiscard]] constexpr int64_t cols() const { return int64_t{num} * dim; }
};

// Rotates the last channels of every head back, in place.
Status RotateHeadsBack(const RotatedHeads& heads, cudaStream_t stream);

// The same and PackRows (tile_products.h), in one kernel where dim is a multiple of four; `o` may
// be overwritten. cols() is a multiple of 128; out has n rows of them, below 2^31 groups of 128.
Status PackHeads(const RotatedHeads& heads, bool quantise, uint16_t* out, cudaStream_t stream);

}  // namespace fathom::cuda
