// Dot products of a block of rows with several inputs.

// Include guard that is reset for every target (see hwy/foreach_target.h).
#if defined(FATHOM_BACKEND_CPU_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FATHOM_BACKEND_CPU_DOT_INL_H_
#undef FATHOM_BACKEND_CPU_DOT_INL_H_
#else
#define FATHOM_BACKEND_CPU_DOT_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "backend/cpu/kernels.h"
#include "backend/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom::cpu::HWY_NAMESPACE {

// 4 * Fours rows times X inputs in registers. The shape of the tile decides speed only: each pair
// of row and input has one accumulator and adds its products in ascending order.
template <int Fours, int X>
HWY_INLINE void DotTile(const float* const* w, const float* const* x, int64_t cols, float* out,
                        int64_t out_stride) {
  constexpr int kRows = 4 * Fours;
  VF sum[kRows][X];
  HWY_UNROLL(8) for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(4) for (int i = 0; i < X; ++i) sum[r][i] = hn::Zero(df);
  }
  int64_t k = 0;
  for (; k + kLanes <= cols; k += kLanes) {
    VF xs[X];
    HWY_UNROLL(4) for (int i = 0; i < X; ++i) xs[i] = hn::LoadU(df, x[i] + k);
    HWY_UNROLL(8) for (int r = 0; r < kRows; ++r) {
      const VF weights = hn::LoadU(df, w[r] + k);
      HWY_UNROLL(4) for (int i = 0; i < X; ++i) sum[r][i] = hn::MulAdd(weights, xs[i], sum[r][i]);
    }
  }
  if (k < cols) {
    for (int r = 0; r < kRows; ++r) {
      const VF weights = LoadTail(w[r] + k, cols - k);
      for (int i = 0; i < X; ++i) {
        sum[r][i] = hn::MulAdd(weights, LoadTail(x[i] + k, cols - k), sum[r][i]);
      }
    }
  }
  HWY_UNROLL(4) for (int i = 0; i < X; ++i) {
    HWY_UNROLL(2) for (int f = 0; f < Fours; ++f) {
      const auto four =
          SumLanes4(sum[4 * f][i], sum[4 * f + 1][i], sum[4 * f + 2][i], sum[4 * f + 3][i]);
      hn::StoreU(four, D4(), out + i * out_stride + 4 * f);
    }
  }
}

// See kernels.h.
HWY_INLINE void DotRows(const float* w, int num_rows, int64_t cols, const float* const* x,
                        int num_x, float* out, int64_t out_stride) {
  const float* rows[kRowBlock];
  // Missing rows repeat the last one.
  for (int r = 0; r < kRowBlock; ++r) rows[r] = w + std::min(r, num_rows - 1) * cols;
  int i = 0;
  // 16 accumulators need the 32 registers of AVX-512.
  if constexpr (kLanes == 16) {
    for (; i + 4 <= num_x; i += 4) {
      for (int r = 0; r < num_rows; r += 4) {
        DotTile<1, 4>(rows + r, x + i, cols, out + i * out_stride + r, out_stride);
      }
    }
  }
  for (; i + 2 <= num_x; i += 2) {
    for (int r = 0; r < num_rows; r += 4) {
      DotTile<1, 2>(rows + r, x + i, cols, out + i * out_stride + r, out_stride);
    }
  }
  if (i == num_x) return;
  // One input alone: more rows at once, so that enough sums are in flight.
  int r = 0;
  for (; r + 8 <= num_rows; r += 8) {
    DotTile<2, 1>(rows + r, x + i, cols, out + i * out_stride + r, out_stride);
  }
  for (; r < num_rows; r += 4) {
    DotTile<1, 1>(rows + r, x + i, cols, out + i * out_stride + r, out_stride);
  }
}

}  // namespace fathom::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
