// Square blocks of floats, rows to columns; compiled once per instruction set.

// Include guard that is reset for every target (see hwy/foreach_target.h).
#if defined(FATHOM_BACKEND_CPU_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FATHOM_BACKEND_CPU_TRANSPOSE_INL_H_
#undef FATHOM_BACKEND_CPU_TRANSPOSE_INL_H_
#else
#define FATHOM_BACKEND_CPU_TRANSPOSE_INL_H_
#endif

#include "backend/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom::cpu::HWY_NAMESPACE {

// kLanes vectors: v[r] lane c becomes v[c] lane r.
HWY_INLINE void TransposeSquare(VF* v) {
  VF t[kLanes];
  // 4 x 4 within blocks of 128 bits.
  HWY_UNROLL(4) for (int i = 0; i < kLanes; i += 4) {
    const auto a = hn::BitCast(d64, hn::InterleaveLower(df, v[i], v[i + 1]));
    const auto b = hn::BitCast(d64, hn::InterleaveUpper(df, v[i], v[i + 1]));
    const auto c = hn::BitCast(d64, hn::InterleaveLower(df, v[i + 2], v[i + 3]));
    const auto d = hn::BitCast(d64, hn::InterleaveUpper(df, v[i + 2], v[i + 3]));
    t[i] = hn::BitCast(df, hn::InterleaveLower(d64, a, c));
    t[i + 1] = hn::BitCast(df, hn::InterleaveUpper(d64, a, c));
    t[i + 2] = hn::BitCast(df, hn::InterleaveLower(d64, b, d));
    t[i + 3] = hn::BitCast(df, hn::InterleaveUpper(d64, b, d));
  }
#if HWY_MAX_BYTES >= 64
  // t[4i + j] has column 4b + j of rows 4i .. 4i + 3 in its block b. Highway 1.0.3 has no shuffle
  // of blocks from two vectors.
  HWY_UNROLL(4) for (int j = 0; j < 4; ++j) {
    const __m512 a = _mm512_shuffle_f32x4(t[j].raw, t[4 + j].raw, 0x88);
    const __m512 b = _mm512_shuffle_f32x4(t[j].raw, t[4 + j].raw, 0xDD);
    const __m512 c = _mm512_shuffle_f32x4(t[8 + j].raw, t[12 + j].raw, 0x88);
    const __m512 d = _mm512_shuffle_f32x4(t[8 + j].raw, t[12 + j].raw, 0xDD);
    v[j] = VF{_mm512_shuffle_f32x4(a, c, 0x88)};
    v[4 + j] = VF{_mm512_shuffle_f32x4(b, d, 0x88)};
    v[8 + j] = VF{_mm512_shuffle_f32x4(a, c, 0xDD)};
    v[12 + j] = VF{_mm512_shuffle_f32x4(b, d, 0xDD)};
  }
#elif HWY_MAX_BYTES == 32
  HWY_UNROLL(4) for (int j = 0; j < 4; ++j) {
    v[j] = hn::ConcatLowerLower(df, t[4 + j], t[j]);
    v[4 + j] = hn::ConcatUpperUpper(df, t[4 + j], t[j]);
  }
#else
  HWY_UNROLL(4) for (int j = 0; j < 4; ++j) v[j] = t[j];
#endif
}

}  // namespace fathom::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
