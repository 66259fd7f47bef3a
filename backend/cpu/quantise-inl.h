// Rounding a group of inputs to a small format; shared by kernels_matmul.cc and kernels_inputs.cc.

// Include guard that is reset for every target (see hwy/foreach_target.h).
#if defined(FATHOM_BACKEND_CPU_QUANTISE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FATHOM_BACKEND_CPU_QUANTISE_INL_H_
#undef FATHOM_BACKEND_CPU_QUANTISE_INL_H_
#else
#define FATHOM_BACKEND_CPU_QUANTISE_INL_H_
#endif

#include <cmath>
#include <cstdint>

#include "backend/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom::cpu::HWY_NAMESPACE {

// Bits of the largest magnitude of `n` floats. Magnitudes compare as integers, and NaN is the
// largest.
HWY_INLINE uint32_t LargestMagnitude(const float* x, int n) {
  const hn::RebindToUnsigned<DF> du;
  auto largest = hn::Zero(du);
  for (int i = 0; i < n; i += kLanes) {
    const auto u = hn::BitCast(du, hn::LoadU(df, x + i));
    largest = hn::Max(largest, hn::And(u, hn::Set(du, 0x7FFFFFFFu)));
  }
  return hn::GetLane(hn::MaxOfLanes(du, largest));
}
// From here on a group needs a scale beyond the normal range, or holds infinities or NaN: scalar.
constexpr uint32_t kHuge = 0x7F000000u;

// Nearest value with `Bits` mantissa bits, ties to even: of `a`, not negative, from 1.0 * the
// smallest normal on; below that in steps of the subnormals, where adding and taking away `magic`
// does it.
template <int Bits>
HWY_INLINE VF RoundMagnitude(VF a, VF smallest_normal, VF magic) {
  const hn::RebindToUnsigned<DF> du;
  constexpr int kDropped = 23 - Bits;
  const auto u = hn::BitCast(du, a);
  const auto odd = hn::And(hn::ShiftRight<kDropped>(u), hn::Set(du, 1u));
  const auto sum = hn::Add(hn::Add(u, hn::Set(du, (1u << (kDropped - 1)) - 1)), odd);
  const VF normal = hn::BitCast(df, hn::And(sum, hn::Set(du, ~((1u << kDropped) - 1))));
  const VF subnormal = hn::Sub(hn::Add(a, magic), magic);
  return hn::IfThenElse(hn::Lt(a, smallest_normal), subnormal, normal);
}

// The code's value of x * inverse, with `Bits` mantissa bits.
template <int Bits>
HWY_INLINE VF RoundToGrid(VF x, VF inverse, float smallest_normal, float magic, float max_value) {
  const hn::RebindToUnsigned<DF> du;
  const VF sign_mask = hn::BitCast(df, hn::Set(du, 0x80000000u));
  const VF y = hn::Mul(x, inverse);
  const VF rounded = RoundMagnitude<Bits>(hn::AndNot(sign_mask, y), hn::Set(df, smallest_normal),
                                          hn::Set(df, magic));
  return hn::Or(hn::Min(rounded, hn::Set(df, max_value)), hn::And(y, sign_mask));
}

// e4m3: steps of 2^-9 below 2^-6, which 2^14 has as its own.
HWY_INLINE VF RoundToE4m3(VF x, VF inverse) {
  return RoundToGrid<3>(x, inverse, 0x1p-6f, 0x1p14f, kE4m3Max);
}
// e2m1: steps of 0.5 below 1, which 2^22 has as its own.
HWY_INLINE VF RoundToE2m1(VF x, VF inverse) {
  return RoundToGrid<1>(x, inverse, 1.0f, 0x1p22f, kE2m1Max);
}

}  // namespace fathom::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
