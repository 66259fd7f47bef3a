// The instructions of ../../../../wgmma.cuh: each done when it returns.
#pragma once

#include <cstdint>

#include "backend/cuda/mma.cuh"

namespace fathom::cuda {

inline constexpr int kGroupWarps = 4;

template <int kTiles>
void MmaWide(float (*acc)[4], const uint32_t* a, const void* b) {
  const auto* words = static_cast<const uint32_t*>(b);
  const int lane = emulation::Here().lane;
  for (int t = 0; t < kTiles; ++t) {
    const int word = t * 32 + lane;  // input 8 t + lane / 4, columns 2 (lane % 4) and the next one
    MmaBf16(acc[t], a[0], a[1], a[2], a[3], words[word], words[kTiles * 32 + word]);
  }
}

inline void WideBegin() {}
inline void WideCommit() {}
template <int kPending>
void WideWait() {}
inline void ShowInputs() {}

}  // namespace fathom::cuda
