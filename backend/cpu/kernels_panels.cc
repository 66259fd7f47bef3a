// Products of stored rows with few inputs, and of decoded panels with many: the same bits.
#include <algorithm>
#include <cstring>

#include "backend/cpu/kernels.h"
#include "base/check.h"
#include "base/formats.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/kernels_panels.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "backend/cpu/decode-inl.h"
#include "backend/cpu/dot-inl.h"
#include "backend/cpu/simd-inl.h"
#include "backend/cpu/transpose-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace fathom::cpu::HWY_NAMESPACE {

// ---- Few inputs: rows are decoded in registers

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
    const hn::Half<decltype(d16)> dhalf;
    const hn::Rebind<hwy::float16_t, DF> df16;
    // See DecodeE4m3.
    const auto c = hn::LoadU(d8, reinterpret_cast<const int8_t*>(codes[r] + k));
    const auto bits = hn::And(hn::ShiftLeft<7>(hn::PromoteTo(d16, c)),
                              hn::Set(d16, static_cast<int16_t>(0xBFFF)));
    *low = hn::Mul(hn::PromoteTo(df, hn::BitCast(df16, hn::LowerHalf(dhalf, bits))), factor[r]);
    *high = hn::Mul(hn::PromoteTo(df, hn::BitCast(df16, hn::UpperHalf(dhalf, bits))), factor[r]);
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
      for (int r = 0; r < 4; ++r) sum[r][i] = hn::MulAdd(rows.LoadRest(r, k, n), xs, sum[r][i]);
    }
    k += n;
  }
  HWY_UNROLL(4) for (int i = 0; i < X; ++i) {
    hn::StoreU(SumLanes4(sum[0][i], sum[1][i], sum[2][i], sum[3][i]), D4(), out + i * out_stride);
  }
}

template <typename Rows>
HWY_INLINE void DirectTiles(const Rows& rows, const float* const* x, int num_x, int64_t cols,
                            float* out, int64_t out_stride) {
  int i = 0;
  // Four accumulators of four rows need the 32 registers of AVX-512.
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

void DotStored(const WeightView& weight, int row, int num_rows, const float* const* x, int num_x,
               float* scratch, float* out, int64_t out_stride) {
  const int64_t cols = weight.cols;
  for (int begin = 0; begin < num_rows; begin += 4, out += 4) {
    // Missing rows repeat the last one.
    int64_t at[4];
    for (int r = 0; r < 4; ++r) at[r] = row + std::min(begin + r, num_rows - 1);
    const int64_t ahead = begin + 8 <= num_rows ? 4 * cols : 0;
    if (weight.dtype == DType::kF8E4M3) {
      Fp8Rows rows;
      rows.ahead = ahead;
      bool ordinary = true;
      for (int r = 0; r < 4; ++r) {
        rows.codes[r] = static_cast<const uint8_t*>(weight.data) + at[r] * cols;
        rows.scales[r] = weight.scale + at[r] / 128 * (cols / 128);
        ordinary = ordinary && OrdinaryFp8(rows.codes[r], rows.scales[r], cols);
      }
      if (ordinary) {
        DirectTiles(rows, x, num_x, cols, out, out_stride);
        continue;
      }
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

// ---- Many inputs: decoded panels

// Sums across lanes halve them, so that lanes l and l + L/2 come first: that is the order of the
// reversed bits.
HWY_INLINE int Reversed(int n) {
  int l = 0;
  for (int bit = 1; bit < kLanes; bit *= 2) l = 2 * l + ((n & bit) != 0 ? 1 : 0);
  return l;
}

HWY_INLINE int64_t Steps(int64_t cols) { return (cols + kLanes - 1) / kLanes; }

// Columns [k, k + kLanes) of kLanes rows, as columns: into the panel of two vectors.
HWY_INLINE void StoreColumns(const VF* v, int64_t step, int64_t steps, float* out) {
  for (int l = 0; l < kLanes; ++l) {
    hn::StoreU(v[l], df, out + (Reversed(l) * steps + step) * 2 * kLanes);
  }
}

#if HWY_MAX_BYTES >= 64
// 16 rows of 64 fp8 codes at a time; false where a code or scale is not ordinary.
HWY_INLINE bool PackFp8(const uint8_t* const* rows, uint8_t scale_byte, int64_t k, int64_t steps,
                        float* out) {
  // An e4m3 code moved to the place of a binary32's exponent and mantissa is the value times
  // 2^-120.
  const int exponent = scale_byte + 120;
  if (exponent > 254) return false;
  const __m512i largest = _mm512_set1_epi8(0x7F);
  __mmask64 nan = 0;
  VF v[16];
  for (int r = 0; r < 16; ++r) {
    const __m512i codes = _mm512_loadu_si512(rows[r] + k);
    nan |= _mm512_cmpeq_epi8_mask(_mm512_and_si512(codes, largest), largest);
    v[r] = VF{_mm512_castsi512_ps(codes)};
  }
  if (nan != 0) return false;
  TransposeSquare(v);
  const __m512 factor = _mm512_castsi512_ps(_mm512_set1_epi32(exponent << 23));
  const __m512i mask = _mm512_set1_epi32(static_cast<int>(0x87F00000u));
  const auto store = [&](int column, __m512i code) HWY_ATTR {
    const __m512i bits = _mm512_and_si512(_mm512_srai_epi32(code, 4), mask);
    const int64_t at = Reversed(column % 16) * steps + (k + column) / 16;
    _mm512_storeu_ps(out + at * 32, _mm512_mul_ps(_mm512_castsi512_ps(bits), factor));
  };
  for (int j = 0; j < 16; ++j) {
    const __m512i codes = _mm512_castps_si512(v[j].raw);
    store(4 * j, _mm512_slli_epi32(codes, 24));
    store(4 * j + 1, _mm512_slli_epi32(codes, 16));
    store(4 * j + 2, _mm512_slli_epi32(codes, 8));
    store(4 * j + 3, codes);
  }
  return true;
}
#endif

void PackPanel(const WeightView& weight, int row, int num_rows, float* scratch, float* out) {
  const int64_t cols = weight.cols;
  const int64_t steps = Steps(cols);
  const auto row_at = [&](int r) { return row + std::min(r, num_rows - 1); };
  int64_t done = 0;
#if HWY_MAX_BYTES >= 64
  if (weight.dtype == DType::kF8E4M3 && row / 128 == row_at(15) / 128) {
    const uint8_t* rows[16];
    for (int r = 0; r < 16; ++r) {
      rows[r] = static_cast<const uint8_t*>(weight.data) + row_at(r) * cols;
    }
    const uint8_t* scales = weight.scale + row / 128 * (cols / 128);
    while (done < cols && PackFp8(rows, scales[done / 128], done, steps, out)) done += 64;
  } else if (weight.dtype == DType::kBF16) {
    for (; done + 32 <= cols; done += 32) {
      VF v[16];
      for (int r = 0; r < 16; ++r) {
        const auto* bits = static_cast<const uint16_t*>(weight.data) + row_at(r) * cols + done;
        v[r] = VF{_mm512_castsi512_ps(_mm512_loadu_si512(bits))};
      }
      TransposeSquare(v);
      const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
      for (int j = 0; j < 16; ++j) {
        const __m512i pair = _mm512_castps_si512(v[j].raw);
        const int64_t step = done / 16 + j / 8;
        float* even = out + (Reversed(2 * j % 16) * steps + step) * 32;
        float* odd = out + (Reversed(2 * j % 16 + 1) * steps + step) * 32;
        _mm512_storeu_si512(even, _mm512_slli_epi32(pair, 16));
        _mm512_storeu_si512(odd, _mm512_and_si512(pair, upper));
      }
    }
  }
#endif
  if (done == cols) return;
  // Whatever else: rows decoded one by one.
  for (int r = 0; r < kLanes; ++r) DecodeRows(weight, row_at(r), 1, scratch + r * cols);
  for (int64_t k = done / kLanes * kLanes; k < cols; k += kLanes) {
    VF v[kLanes];
    for (int r = 0; r < kLanes; ++r) {
      const float* p = scratch + r * cols + k;
      v[r] = k + kLanes <= cols ? hn::LoadU(df, p) : LoadTail(p, cols - k);
    }
    TransposeSquare(v);
    StoreColumns(v, k / kLanes, steps, out);
  }
}

void PermuteInput(std::span<const float> x, float* out) {
  const auto cols = static_cast<int64_t>(x.size());
  const int64_t steps = Steps(cols);
  int64_t k = 0;
  for (; k + kLanes * kLanes <= cols; k += kLanes * kLanes) {
    VF v[kLanes];
    for (int i = 0; i < kLanes; ++i) v[i] = hn::LoadU(df, x.data() + k + i * kLanes);
    TransposeSquare(v);
    for (int l = 0; l < kLanes; ++l) {
      hn::StoreU(v[l], df, out + Reversed(l) * steps + k / kLanes);
    }
  }
  for (; k < steps * kLanes; ++k) {
    const auto l = static_cast<int>(k % kLanes);
    out[Reversed(l) * steps + k / kLanes] = k < cols ? x[static_cast<size_t>(k)] : 0.0f;
  }
}

template <int X>
HWY_INLINE void PanelTile(const float* panel, int64_t cols, const float* const* x, float* out,
                          int64_t out_stride) {
  const int64_t steps = Steps(cols);
  constexpr int kLevels = 5;
  alignas(64) float pending[kLevels][2 * X * kLanes];
  int depth = 0;
  for (int n = 0; n < kLanes; ++n) {
    VF sum[2][X];
    HWY_UNROLL(16) for (int i = 0; i < X; ++i) sum[0][i] = sum[1][i] = hn::Zero(df);
    const float* w = panel + n * steps * 2 * kLanes;
    const int64_t base = n * steps;
    for (int64_t s = 0; s < steps; ++s, w += 2 * kLanes) {
      const VF a = hn::LoadU(df, w);
      const VF b = hn::LoadU(df, w + kLanes);
      HWY_UNROLL(16) for (int i = 0; i < X; ++i) {
        const VF value = hn::Set(df, x[i][base + s]);
        sum[0][i] = hn::MulAdd(a, value, sum[0][i]);
        sum[1][i] = hn::MulAdd(b, value, sum[1][i]);
      }
    }
    // Lane n is done; pairs of lanes, of pairs, ... that are complete are added.
    for (int m = n; (m & 1) != 0; m >>= 1) {
      --depth;
      HWY_UNROLL(16) for (int i = 0; i < X; ++i) {
        sum[0][i] = hn::Add(hn::Load(df, pending[depth] + 2 * i * kLanes), sum[0][i]);
        sum[1][i] = hn::Add(hn::Load(df, pending[depth] + (2 * i + 1) * kLanes), sum[1][i]);
      }
    }
    HWY_UNROLL(16) for (int i = 0; i < X; ++i) {
      hn::Store(sum[0][i], df, pending[depth] + 2 * i * kLanes);
      hn::Store(sum[1][i], df, pending[depth] + (2 * i + 1) * kLanes);
    }
    ++depth;
  }
  for (int i = 0; i < X; ++i) {
    std::memcpy(out + i * out_stride, pending[0] + 2 * i * kLanes, 2 * kLanes * sizeof(float));
  }
}

template <int X>
HWY_INLINE void PanelTiles(const float* panel, int64_t cols, const float* const* x, int num_x,
                           float* out, int64_t out_stride) {
  int i = 0;
  for (; i + X <= num_x; i += X) {
    PanelTile<X>(panel, cols, x + i, out + i * out_stride, out_stride);
  }
  if constexpr (X > 1) {
    if (i < num_x) {
      PanelTiles<X / 2>(panel, cols, x + i, num_x - i, out + i * out_stride, out_stride);
    }
  }
}

void DotPanel(const float* panel, int64_t cols, const float* const* x, int num_x, float* out,
              int64_t out_stride) {
  // Two accumulators per input, beside two vectors of weights and one of an input.
  PanelTiles<kLanes == 16 ? 12 : 6>(panel, cols, x, num_x, out, out_stride);
}

int PanelLanes() { return kLanes; }

}  // namespace fathom::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::cpu {

HWY_EXPORT(DotStored);
HWY_EXPORT(PackPanel);
HWY_EXPORT(PermuteInput);
HWY_EXPORT(DotPanel);
HWY_EXPORT(PanelLanes);

void DotStored(const WeightView& weight, int row, int num_rows, const float* const* x, int num_x,
               float* scratch, float* out, int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(DotStored)
  (weight, row, num_rows, x, num_x, scratch, out, out_stride);
}
void PackPanel(const WeightView& weight, int row, int num_rows, float* scratch, float* out) {
  HWY_DYNAMIC_DISPATCH(PackPanel)(weight, row, num_rows, scratch, out);
}
void PermuteInput(std::span<const float> x, float* out) {
  HWY_DYNAMIC_DISPATCH(PermuteInput)(x, out);
}
void DotPanel(const float* panel, int64_t cols, const float* const* x, int num_x, float* out,
              int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(DotPanel)(panel, cols, x, num_x, out, out_stride);
}
int PanelLanes() { return HWY_DYNAMIC_DISPATCH(PanelLanes)(); }

}  // namespace fathom::cpu
#endif  // HWY_ONCE
