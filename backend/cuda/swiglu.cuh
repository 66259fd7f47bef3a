// The activation of an expert, for the kernels that compute one.
#pragma once

#include "backend/cuda/formats.cuh"

namespace fathom::cuda {

// bf16(silu(gate) * up * weight), gate and up rounded to bf16 and clamped first (0: no limit).
__device__ inline float SwiGlu(float gate, float up, float limit, float weight) {
  float g = RoundBf16(gate);
  float u = RoundBf16(up);
  if (limit > 0.0f) {
    g = fminf(g, limit);
    u = fminf(fmaxf(u, -limit), limit);
  }
  return RoundBf16(g / (1.0f + expf(-g)) * u * weight);
}

}  // namespace fathom::cuda
