// The instructions of ../../../../mma.cuh in plain arithmetic: sums in double, rounded once.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/formats.h"

namespace fathom::cuda {

inline float LowBf16(uint32_t pair) { return Bf16ToFloat(static_cast<uint16_t>(pair & 0xFFFFu)); }
inline float HighBf16(uint32_t pair) { return Bf16ToFloat(static_cast<uint16_t>(pair >> 16)); }

inline void MmaBf16(float* acc, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                    uint32_t b1) {
  uint32_t a[32][4];
  uint32_t b[32][2];
  const uint32_t own_a[4] = {a0, a1, a2, a3};
  emulation::Exchange(own_a, sizeof own_a);
  for (int l = 0; l < 32; ++l) std::memcpy(a[l], emulation::Given(l), sizeof a[l]);
  const uint32_t own_b[2] = {b0, b1};
  emulation::Exchange(own_b, sizeof own_b);
  for (int l = 0; l < 32; ++l) std::memcpy(b[l], emulation::Given(l), sizeof b[l]);
  const int g = emulation::Here().lane / 4;
  const int q = emulation::Here().lane % 4;
  for (int i = 0; i < 4; ++i) {
    const int half = i / 2;  // row g or g + 8
    const int column = 2 * q + i % 2;
    double sum = 0.0;
    for (int pair = 0; pair < 8; ++pair) {  // columns 2 pair, 2 pair + 1 of a
      const uint32_t x = a[g * 4 + pair % 4][pair / 4 * 2 + half];
      const uint32_t y = b[column * 4 + pair % 4][pair / 4];
      sum += static_cast<double>(LowBf16(x)) * static_cast<double>(LowBf16(y)) +
             static_cast<double>(HighBf16(x)) * static_cast<double>(HighBf16(y));
    }
    acc[i] = static_cast<float>(static_cast<double>(acc[i]) + sum);
  }
}

inline uint32_t MulBf16x2(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>(FloatToBf16(LowBf16(a) * LowBf16(b))) |
         static_cast<uint32_t>(FloatToBf16(HighBf16(a) * HighBf16(b))) << 16;
}

// 16 bytes that the GPU would read at once.
inline void CheckAligned(const void* p) {
  if (reinterpret_cast<uintptr_t>(p) % 16 == 0) return;
  std::fprintf(stderr, "CUDA emulation: 16 bytes at %p\n", p);
  std::abort();
}

inline void LoadTransposed(uint32_t* out, const void* row) {
  CheckAligned(row);
  emulation::Exchange(&row, sizeof row);
  const int g = emulation::Here().lane / 4;
  const int q = emulation::Here().lane % 4;
  for (int m = 0; m < 4; ++m) {
    out[m] = 0;
    for (int i = 0; i < 2; ++i) {
      const uint16_t* values;
      std::memcpy(&values, emulation::Given(8 * m + 2 * q + i), sizeof values);
      out[m] |= static_cast<uint32_t>(values[g]) << 16 * i;
    }
  }
}

inline void CopyAsync16(void* shared, const void* from, bool valid) {
  CheckAligned(shared);
  if (valid) {
    CheckAligned(from);
    std::memcpy(shared, from, 16);
  } else {
    std::memset(shared, 0, 16);
  }
}
inline void CommitCopies() {}
template <int kPending>
void WaitForCopies() {}

}  // namespace fathom::cuda
