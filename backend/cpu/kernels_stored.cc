// Products of stored rows with few inputs; those of kernels_panels.cc have the same bits.
#include <algorithm>
#include <cstring>

#include "backend/cpu/dot/fp8_rows.h"
#include "backend/cpu/kernels.h"
#include "base/check.h"
#include "base/formats.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/kernels_stored.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "backend/cpu/decode-inl.h"
#include "backend/cpu/dot-inl.h"
#include "backend/cpu/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace fathom::cpu::HWY_NAMESPACE {

// The next two vectors of row `r`, from column k on.
struct Fp8Rows {
  const uint8_t* codes[4];
  const uint8_t* scales[4];
  VF factor[4];
  int64_t ahead;

  HWY_INLINE void Block(int64_t k) {
    for (int r = 0; r < 4; ++r) {
      float scale = 0.0f;
      CombinedScale(scales[r][k / 128], 8, &scale);
      factor[r] = hn::Set(df, scale);
    }
  }
  HWY_INLINE void Load(int r, int64_t k, VF* low, VF* high) const {
    const hn::Repartition<int16_t, DF> d16;
    const hn::Rebind<int8_t, decltype(d16)> d8;
    const hn::Half<decltype(d16)> d16_half;
    const hn::Rebind<hwy::float16_t, DF> df16;
    // See DecodeE4m3.
    const auto c = hn::LoadU(d8, reinterpret_cast<const int8_t*>(codes[r] + k));
    const auto bits = hn::And(hn::ShiftLeft<7>(hn::PromoteTo(d16, c)),
                              hn::Set(d16, static_cast<int16_t>(0xBFFF)));
    *low = hn::Mul(hn::PromoteTo(df, hn::BitCast(df16, hn::LowerHalf(d16_half, bits))), factor[r]);
    *high = hn::Mul(hn::PromoteTo(df, hn::BitCast(df16, hn::UpperHalf(d16_half, bits))), factor[r]);
    if (k % 64 == 0) hwy::Prefetch(codes[r] + k + ahead);
  }
  HWY_INLINE VF LoadRest(int, int64_t, int64_t) const { return hn::Zero(df); }
};

struct Bf16Rows {
  const uint16_t* bits[4];
  int64_t ahead;

  HWY_INLINE void Block(int64_t) {}
  HWY_INLINE void Load(int r, int64_t k, VF* low, VF* high) const {
    const hn::RebindToUnsigned<DF> du32;
    const hn::Rebind<uint16_t, DF> du16;
    const uint16_t* p = bits[r] + k;
    *low = hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(du32, hn::LoadU(du16, p))));
    *high = hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(du32, hn::LoadU(du16, p + kLanes))));
    if (k % 32 == 0) hwy::Prefetch(p + ahead);
  }
  HWY_INLINE VF LoadRest(int r, int64_t k, int64_t n) const {
    alignas(64) float rest[kLanes] = {};
    for (int64_t i = 0; i < n; ++i) rest[i] = Bf16ToFloat(bits[r][k + i]);
    return hn::Load(df, rest);
  }
};

struct FloatRows {
  const float* values[4];
  int64_t ahead;

  HWY_INLINE void Block(int64_t) {}
  HWY_INLINE void Load(int r, int64_t k, VF* low, VF* high) const {
    *low = hn::LoadU(df, values[r] + k);
    *high = hn::LoadU(df, values[r] + k + kLanes);
    if (k % 16 == 0) hwy::Prefetch(values[r] + k + ahead);
  }
  HWY_INLINE VF LoadRest(int r, int64_t k, int64_t n) const {
    if (n == kLanes) return hn::LoadU(df, values[r] + k);
    return LoadTail(values[r] + k, n);
  }
};

// Sums of four rows and X inputs to their places.
template <int X>
HWY_INLINE void StoreSums(const VF (*sum)[X], float* out, int64_t out_stride) {
  HWY_UNROLL(4) for (int i = 0; i < X; ++i) {
    hn::StoreU(SumLanes4(sum[0][i], sum[1][i], sum[2][i], sum[3][i]), D4(), out + i * out_stride);
  }
}

// Four rows times X inputs.
template <int X, typename Rows>
HWY_INLINE void DirectTile(Rows rows, const float* const* x, int64_t cols, float* out,
                           int64_t out_stride) {
  VF sum[4][X];
  HWY_UNROLL(4) for (int r = 0; r < 4; ++r) {
    HWY_UNROLL(4) for (int i = 0; i < X; ++i) sum[r][i] = hn::Zero(df);
  }
  int64_t k = 0;
  while (k + 2 * kLanes <= cols) {
    rows.Block(k);
    const int64_t end = std::min(cols - 2 * kLanes + 1, k + 128);
    for (; k < end; k += 2 * kLanes) {
      VF x0[X], x1[X];
      HWY_UNROLL(4) for (int i = 0; i < X; ++i) {
        x0[i] = hn::LoadU(df, x[i] + k);
        x1[i] = hn::LoadU(df, x[i] + k + kLanes);
      }
      HWY_UNROLL(4) for (int r = 0; r < 4; ++r) {
        VF low, high;
        rows.Load(r, k, &low, &high);
        HWY_UNROLL(4) for (int i = 0; i < X; ++i) {
          sum[r][i] = hn::MulAdd(low, x0[i], sum[r][i]);
          sum[r][i] = hn::MulAdd(high, x1[i], sum[r][i]);
        }
      }
    }
  }
  while (k < cols) {
    const int64_t n = std::min<int64_t>(kLanes, cols - k);
    for (int i = 0; i < X; ++i) {
      const VF xs = n == kLanes ? hn::LoadU(df, x[i] + k) : LoadTail(x[i] + k, n);
      for (int r = 0; r < 4; ++r) {
        sum[r][i] = hn::MulAdd(rows.LoadRest(r, k, n), xs, sum[r][i]);
      }
    }
    k += n;
  }
  StoreSums<X>(sum, out, out_stride);
}

template <typename Rows>
HWY_INLINE void DirectTiles(const Rows& rows, const float* const* x, int num_x, int64_t cols,
                            float* out, int64_t out_stride) {
  int i = 0;
  // 16 accumulators need the 32 registers of AVX-512.
  if constexpr (kLanes == 16) {
    for (; i + 4 <= num_x; i += 4) {
      DirectTile<4>(rows, x + i, cols, out + i * out_stride, out_stride);
    }
  }
  for (; i + 2 <= num_x; i += 2) {
    DirectTile<2>(rows, x + i, cols, out + i * out_stride, out_stride);
  }
  if (i < num_x) DirectTile<1>(rows, x + i, cols, out + i * out_stride, out_stride);
}

// Whether fp8 rows have ordinary scales and no NaN.
HWY_INLINE bool OrdinaryFp8(const uint8_t* codes, const uint8_t* scales, int64_t cols) {
  float scale = 0.0f;
  for (int64_t b = 0; b < cols / 128; ++b) {
    if (!CombinedScale(scales[b], 8, &scale)) return false;
  }
  return !HasE4m3Nan(codes, cols);
}

HWY_INLINE bool DirectTilesFp8(const Fp8Rows& rows, const float* const* x, int num_x, int64_t cols,
                               float* out, int64_t out_stride) {
  for (int r = 0; r < 4; ++r) {
    if (!OrdinaryFp8(rows.codes[r], rows.scales[r], cols)) return false;
  }
  DirectTiles(rows, x, num_x, cols, out, out_stride);
  return true;
}

#if HWY_MAX_BYTES >= 64
// Up to 16 fp8 rows of one block row; false where they need the other way.
HWY_INLINE bool DotFp8Rows(const WeightView& weight, int row, int num_rows, const float* const* x,
                           int num_x, float* out, int64_t out_stride) {
  const Fp8RowsFunction dot = ChosenFp8Rows();
  const int64_t cols = weight.cols;
  if (dot == nullptr || row / 128 != (row + num_rows - 1) / 128) return false;
  const uint8_t* scales = weight.scale + row / 128 * (cols / 128);
  // Four rows at a time, quarters of the 16 apart: a processor reads ahead best where it goes
  // through pages one line after the other, and so most of the rows have pages of their own.
  for (int q = 0; q < 4 && q < num_rows; ++q) {
    const uint8_t* rows[4];
    for (int r = 0; r < 4; ++r) {
      rows[r] = static_cast<const uint8_t*>(weight.data) +
                (row + std::min(q + 4 * r, num_rows - 1)) * cols;
    }
    alignas(64) float sums[kFp8RowsInputs][4][kLanes];
    for (int i = 0; i < num_x; i += kFp8RowsInputs) {
      const int count = std::min(kFp8RowsInputs, num_x - i);
      if (!dot(rows, scales, cols, x + i, count, /*ahead=*/16 * cols, sums[0][0])) return false;
      for (int t = 0; t < count; ++t) {
        alignas(16) float four[4];
        hn::Store(SumLanes4(hn::Load(df, sums[t][0]), hn::Load(df, sums[t][1]),
                            hn::Load(df, sums[t][2]), hn::Load(df, sums[t][3])),
                  D4(), four);
        for (int r = 0; r < 4; ++r) out[(i + t) * out_stride + q + 4 * r] = four[r];
      }
    }
  }
  return true;
}
#endif

void DotStored(const WeightView& weight, int row, int num_rows, const float* const* x, int num_x,
               float* scratch, float* out, int64_t out_stride) {
  const int64_t cols = weight.cols;
#if HWY_MAX_BYTES >= 64
  if (weight.dtype == DType::kF8E4M3 &&
      DotFp8Rows(weight, row, num_rows, x, num_x, out, out_stride)) {
    return;
  }
#endif
  for (int begin = 0; begin < num_rows; begin += 4, out += 4) {
    // Missing rows repeat the last one.
    int64_t at[4];
    for (int r = 0; r < 4; ++r) at[r] = row + std::min(begin + r, num_rows - 1);
    const int64_t ahead = 4 * cols;  // behind the last row too, where the next call begins
    if (weight.dtype == DType::kF8E4M3) {
      Fp8Rows rows;
      rows.ahead = ahead;
      for (int r = 0; r < 4; ++r) {
        rows.codes[r] = static_cast<const uint8_t*>(weight.data) + at[r] * cols;
        rows.scales[r] = weight.scale + at[r] / 128 * (cols / 128);
      }
      if (DirectTilesFp8(rows, x, num_x, cols, out, out_stride)) continue;
    } else if (weight.dtype == DType::kBF16) {
      Bf16Rows rows;
      rows.ahead = ahead;
      for (int r = 0; r < 4; ++r) {
        rows.bits[r] = static_cast<const uint16_t*>(weight.data) + at[r] * cols;
      }
      DirectTiles(rows, x, num_x, cols, out, out_stride);
      continue;
    }
    FloatRows rows;
    rows.ahead = 0;
    for (int r = 0; r < 4; ++r) {
      if (weight.dtype == DType::kF32) {
        rows.values[r] = static_cast<const float*>(weight.data) + at[r] * cols;
        rows.ahead = ahead;
      } else {
        DecodeRows(weight, static_cast<int>(at[r]), 1, scratch + r * cols);
        rows.values[r] = scratch + r * cols;
      }
    }
    DirectTiles(rows, x, num_x, cols, out, out_stride);
  }
}

}  // namespace fathom::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::cpu {

HWY_EXPORT(DotStored);

void DotStored(const WeightView& weight, int row, int num_rows, const float* const* x, int num_x,
               float* scratch, float* out, int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(DotStored)
  (weight, row, num_rows, x, num_x, scratch, out, out_stride);
}

}  // namespace fathom::cpu
#endif  // HWY_ONCE
