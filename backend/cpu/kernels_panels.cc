// Products of stored rows with few inputs, and of decoded panels with many: the same bits.
#include <algorithm>
#include <cstring>

#include "backend/cpu/dot/fp8_rows.h"
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

// Whether all values of an fp8 code with this scale, 2^-9 of it the smallest, are normal binary32
// numbers: then only its exponent needs to be moved, by `scale_byte` - 127 + 120.
HWY_INLINE bool OrdinaryScale(uint8_t scale_byte) {
  return scale_byte >= 9 + 1 && scale_byte <= 127 - 120 + 254 - 15;
}

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

// Inputs times the scales of a block row and 256: for Fp8RowsFunction. False where a scale, or a
// product, is not an ordinary one.
HWY_INLINE bool ScaleInputs(const uint8_t* scales, const float* const* x, int num_x, int64_t cols,
                            float* out) {
  const hn::RebindToUnsigned<DF> du;
  auto largest = hn::Zero(du);
  auto least = hn::Set(du, 0xFFFFFFFFu);
  for (int64_t begin = 0; begin < cols; begin += 128) {
    float scale = 0.0f;
    const uint8_t byte = scales[begin / 128];
    if (!OrdinaryScale(byte) || !CombinedScale(byte, 8, &scale)) return false;
    const VF factor = hn::Set(df, scale);
    for (int i = 0; i < num_x; ++i) {
      for (int64_t k = begin; k < begin + 128; k += kLanes) {
        const VF scaled = hn::Mul(hn::LoadU(df, x[i] + k), factor);
        hn::StoreU(scaled, df, out + i * cols + k);
        const auto u = hn::And(hn::BitCast(du, scaled), hn::Set(du, 0x7FFFFFFFu));
        largest = hn::Max(largest, u);
        // Zero counts as the largest of all.
        least = hn::Min(least, hn::Sub(u, hn::Set(du, 1u)));
      }
    }
  }
  return hn::GetLane(hn::MaxOfLanes(du, largest)) < 0x7F800000u &&
         hn::GetLane(hn::MinOfLanes(du, least)) >= 0x00800000u - 1u;
}

#if HWY_MAX_BYTES >= 64
// Up to 16 fp8 rows of one block row; false where they need the other way.
HWY_INLINE bool DotFp8Rows(const WeightView& weight, int row, int num_rows, const float* const* x,
                           int num_x, float* scratch, float* out, int64_t out_stride) {
  constexpr int kInputs = 4;
  const Fp8RowsFunction dot = ChosenFp8Rows();
  const int64_t cols = weight.cols;
  if (dot == nullptr || row / 128 != (row + num_rows - 1) / 128) return false;
  for (int i = 0; i < num_x; i += kInputs) {
    const int count = std::min(kInputs, num_x - i);
    if (!ScaleInputs(weight.scale + row / 128 * (cols / 128), x + i, count, cols, scratch)) {
      return false;
    }
    const float* inputs[kInputs];
    for (int t = 0; t < count; ++t) inputs[t] = scratch + t * cols;
    for (int begin = 0; begin < num_rows; begin += 4) {
      const uint8_t* rows[4];
      for (int r = 0; r < 4; ++r) {
        rows[r] = static_cast<const uint8_t*>(weight.data) +
                  (row + std::min(begin + r, num_rows - 1)) * cols;
      }
      alignas(64) float sums[kInputs][4][kLanes];
      if (!dot(rows, cols, inputs, count, 4 * cols, sums[0][0])) return false;
      for (int t = 0; t < count; ++t) {
        const auto four = SumLanes4(hn::Load(df, sums[t][0]), hn::Load(df, sums[t][1]),
                                    hn::Load(df, sums[t][2]), hn::Load(df, sums[t][3]));
        hn::StoreU(four, D4(), out + (i + t) * out_stride + begin);
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
      DotFp8Rows(weight, row, num_rows, x, num_x, scratch, out, out_stride)) {
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

// ---- Many inputs: decoded panels

// Sums across lanes halve them, so that lanes l and l + L/2 come first: that is the order of the
// reversed bits.
constexpr int Reversed(int n) {
  int l = 0;
  for (int bit = 1; bit < kLanes; bit *= 2) l = 2 * l + ((n & bit) != 0 ? 1 : 0);
  return l;
}

HWY_INLINE int64_t Steps(int64_t cols) { return (cols + kLanes - 1) / kLanes; }

// Where the columns of sum n, step s begin in a panel. One step more than needed lies between sums:
// packing writes to all of them in turn, and a power of two apart they would share one place in the
// L1 cache.
HWY_INLINE int64_t PanelAt(int n, int64_t step, int64_t steps) {
  return (n * (steps + 1) + step) * 2 * kLanes;
}

// Columns [k, k + kLanes) of kLanes rows, as columns: into the panel of two vectors.
HWY_INLINE void StoreColumns(const VF* v, int64_t step, int64_t steps, float* out) {
  for (int l = 0; l < kLanes; ++l) {
    hn::StoreU(v[l], df, out + PanelAt(Reversed(l), step, steps));
  }
}

#if HWY_MAX_BYTES >= 64
// 16 rows of 64 fp8 codes at a time; false where a code or scale is not ordinary.
HWY_INLINE bool PackFp8(const uint8_t* const* rows, uint8_t scale_byte, int64_t k, int64_t steps,
                        float* out) {
  if (!OrdinaryScale(scale_byte)) return false;
  const int exponent = scale_byte - 127 + 120;
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
  const __m512i offset = _mm512_set1_epi32(exponent << 23);
  const __m512i mask = _mm512_set1_epi32(static_cast<int>(0x87F00000u));
  const auto store = [&](int column, __m512i code) HWY_ATTR {
    const __m512i bits = _mm512_and_si512(_mm512_srai_epi32(code, 4), mask);
    const int64_t at = PanelAt(Reversed(column % 16), (k + column) / 16, steps);
    _mm512_storeu_si512(out + at, _mm512_add_epi32(bits, offset));
  };
  // Zeros and subnormal codes, rare in trained weights: m * 2^-9.
  const __m512 step = _mm512_castsi512_ps(_mm512_set1_epi32((scale_byte - 9) << 23));
  const auto store_any = [&](int column, __m512i code) HWY_ATTR {
    const __m512i bits = _mm512_and_si512(_mm512_srai_epi32(code, 4), mask);
    const __mmask16 small = _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x07800000));
    const __m512i sign = _mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0x80000000u)));
    const __m512i m = _mm512_and_si512(_mm512_srli_epi32(bits, 20), _mm512_set1_epi32(7));
    const __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(m), step);
    const __m512i normal = _mm512_add_epi32(bits, offset);
    const int64_t at = PanelAt(Reversed(column % 16), (k + column) / 16, steps);
    _mm512_storeu_si512(out + at,
                        _mm512_mask_or_epi32(normal, small, _mm512_castps_si512(value), sign));
  };
  for (int j = 0; j < 16; ++j) {
    const __m512i codes = _mm512_castps_si512(v[j].raw);
    if (_mm512_testn_epi8_mask(codes, _mm512_set1_epi8(0x78)) == 0) {
      store(4 * j, _mm512_slli_epi32(codes, 24));
      store(4 * j + 1, _mm512_slli_epi32(codes, 16));
      store(4 * j + 2, _mm512_slli_epi32(codes, 8));
      store(4 * j + 3, codes);
    } else {
      store_any(4 * j, _mm512_slli_epi32(codes, 24));
      store_any(4 * j + 1, _mm512_slli_epi32(codes, 16));
      store_any(4 * j + 2, _mm512_slli_epi32(codes, 8));
      store_any(4 * j + 3, codes);
    }
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
        float* even = out + PanelAt(Reversed(2 * j % 16), step, steps);
        float* odd = out + PanelAt(Reversed(2 * j % 16 + 1), step, steps);
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
    const float* w = panel + PanelAt(n, 0, steps);
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

// Two accumulators per input, beside two vectors of weights and one of an input.
constexpr int kTileInputs = kLanes == 16 ? 12 : 6;

// A tile of `count` in 1 .. X inputs.
template <int X>
HWY_INLINE void PanelTileOf(int count, const float* panel, int64_t cols, const float* const* x,
                            float* out, int64_t out_stride) {
  if constexpr (X > 1) {
    if (count < X) return PanelTileOf<X - 1>(count, panel, cols, x, out, out_stride);
  }
  PanelTile<X>(panel, cols, x, out, out_stride);
}

void DotPanel(const float* panel, int64_t cols, const float* const* x, int num_x, float* out,
              int64_t out_stride) {
  // As few tiles as possible, of equal size: small ones wait for their own sums.
  for (int tiles = (num_x + kTileInputs - 1) / kTileInputs; tiles > 0; --tiles) {
    const int count = (num_x + tiles - 1) / tiles;
    PanelTileOf<kTileInputs>(count, panel, cols, x, out, out_stride);
    num_x -= count;
    x += count;
    out += count * out_stride;
  }
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
int64_t PanelSize(int64_t cols) {
  const int64_t lanes = PanelLanes();
  return 2 * lanes * lanes * ((cols + lanes - 1) / lanes + 1);
}

}  // namespace fathom::cpu
#endif  // HWY_ONCE
