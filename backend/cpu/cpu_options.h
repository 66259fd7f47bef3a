// What may be chosen about CpuBackend. Plain data.
#pragma once

namespace fathom {

// Deviations from the official numerics, for speed; docs/performance-cpu.md says what they cost.
// Exact numerics take neither.
struct CpuOptions {
  bool int8_activations = false;  // inputs of FP4 weights in int8 (groups of 32) instead of e4m3
  // fp8 matrices that AddWeight gets, and their inputs, in int8 (groups of 128).
  bool int8_dense = false;
};

}  // namespace fathom
