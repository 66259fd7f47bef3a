// Products of decoded panels with many inputs; those of kernels_stored.cc have the same bits.
#include <algorithm>
#include <cstring>

#include "backend/cpu/kernels.h"
#include "base/check.h"
#include "base/formats.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/kernels_panels.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "backend/cpu/decode-inl.h"
#include "backend/cpu/dot-inl.h"
#include "backend/cpu/simd-inl.h"
#include "backend/cpu/transpose-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace fathom::cpu::HWY_NAMESPACE {

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

HWY_EXPORT(PackPanel);
HWY_EXPORT(PermuteInput);
HWY_EXPORT(DotPanel);
HWY_EXPORT(PanelLanes);

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
