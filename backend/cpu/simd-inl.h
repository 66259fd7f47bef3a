// Vector helpers shared by the kernels; compiled once per instruction set.

// Include guard that is reset for every target (see hwy/foreach_target.h).
#if defined(FATHOM_BACKEND_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FATHOM_BACKEND_CPU_SIMD_INL_H_
#undef FATHOM_BACKEND_CPU_SIMD_INL_H_
#else
#define FATHOM_BACKEND_CPU_SIMD_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fathom::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
using D4 = hn::FixedTag<float, 4>;
using D64 = hn::ScalableTag<double>;
using V64 = hn::Vec<D64>;
using DHalf = hn::Rebind<float, D64>;  // as many floats as a vector holds doubles
inline constexpr DF df;
inline constexpr D64 d64;
inline constexpr DHalf dhalf;
// Compile-time on the targets we build for (x86: 4, 8 or 16).
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));

// The first `n` < kLanes floats, zeros behind them. A masked load would read past the end of the
// array on instruction sets without masks.
HWY_INLINE VF LoadTail(const float* p, int64_t n) {
  alignas(64) float tail[kLanes] = {};
  std::memcpy(tail, p, static_cast<size_t>(n) * sizeof(float));
  return hn::Load(df, tail);
}
HWY_INLINE void StoreTail(VF v, float* p, int64_t n) {
  alignas(64) float tail[kLanes];
  hn::Store(v, df, tail);
  std::memcpy(p, tail, static_cast<size_t>(n) * sizeof(float));
}

// Calls body(offset, load, store) for whole vectors and for the rest, where load(p) and store(v, p)
// touch no more than `n` floats.
template <typename Body>
HWY_INLINE void ForVectors(int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    body(
        i, [](const float* p) HWY_ATTR { return hn::LoadU(df, p); },
        [](VF v, float* p) HWY_ATTR { hn::StoreU(v, df, p); });
  }
  if (i < n) {
    const int64_t rest = n - i;
    body(
        i, [rest](const float* p) HWY_ATTR { return LoadTail(p, rest); },
        [rest](VF v, float* p) HWY_ATTR { StoreTail(v, p, rest); });
  }
}

// Nearest bf16 value, ties to even, NaN to the one that FloatToBf16 makes.
HWY_INLINE VF Bf16Round(VF x) {
  const hn::RebindToUnsigned<DF> du;
  const auto u = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(du, 1u));
  const auto sum = hn::Add(hn::Add(u, hn::Set(du, 0x7FFFu)), odd);
  const auto rounded = hn::BitCast(df, hn::And(sum, hn::Set(du, 0xFFFF0000u)));
  const auto nan = hn::BitCast(df, hn::Set(du, 0x7FC00000u));
  return hn::IfThenElse(hn::IsNaN(x), nan, rounded);
}

// The sums of the lanes of a, b, c and d. Every sum adds lane l and l + L/2, then l + L/4, ... so
// it does not depend on its place among the four.
HWY_INLINE hn::Vec<D4> SumLanes4(VF a, VF b, VF c, VF d) {
  const D4 d4;
#if HWY_MAX_BYTES >= 64
  const auto halves = [](VF lo, VF hi) HWY_ATTR {
    return hn::Add(hn::ConcatLowerLower(df, hi, lo), hn::ConcatUpperUpper(df, hi, lo));
  };
  VF ab = halves(a, b);
  VF cd = halves(c, d);
  ab = hn::Add(ab, hn::SwapAdjacentBlocks(ab));
  cd = hn::Add(cd, hn::SwapAdjacentBlocks(cd));
  VF v = hn::OddEvenBlocks(cd, ab);  // blocks of a, c, b, d
  v = hn::Add(v, hn::Shuffle1032(v));
  v = hn::Add(v, hn::Shuffle2301(v));
  alignas(64) static constexpr int32_t kOrder[16] = {0, 8, 4, 12, 0, 0, 0, 0,
                                                     0, 0, 0, 0,  0, 0, 0, 0};
  v = hn::TableLookupLanes(v, hn::SetTableIndices(df, kOrder));
  return hn::LowerHalf(d4, hn::LowerHalf(hn::Half<DF>(), v));
#elif HWY_MAX_BYTES == 32
  const auto halves = [](VF lo, VF hi) HWY_ATTR {
    VF v = hn::Add(hn::ConcatLowerLower(df, hi, lo), hn::ConcatUpperUpper(df, hi, lo));
    v = hn::Add(v, hn::Shuffle1032(v));
    return hn::Add(v, hn::Shuffle2301(v));
  };
  const VF v = hn::InterleaveLower(df, halves(a, b), halves(c, d));  // a, c, .. | b, d, ..
  alignas(32) static constexpr int32_t kOrder[8] = {0, 4, 1, 5, 0, 0, 0, 0};
  return hn::LowerHalf(d4, hn::TableLookupLanes(v, hn::SetTableIndices(df, kOrder)));
#else
  const auto sum = [](VF v) HWY_ATTR {
    v = hn::Add(v, hn::Shuffle1032(v));
    return hn::Add(v, hn::Shuffle2301(v));
  };
  const VF ab = hn::InterleaveLower(df, sum(a), sum(b));
  const VF cd = hn::InterleaveLower(df, sum(c), sum(d));
  return hn::ConcatLowerLower(d4, cd, ab);
#endif
}

}  // namespace fathom::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
