#include <cmath>
#include <span>

#include "backend/cpu/dot/isa.h"
#include "backend/cpu/kernels.h"
#include "base/check.h"
#include "base/formats.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/kernels_rows.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "backend/cpu/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace fathom::cpu::HWY_NAMESPACE {

HWY_INLINE float RoundIf(bool round, float x) { return round ? RoundToBf16(x) : x; }
HWY_INLINE VF RoundIf(bool round, VF x) { return round ? Bf16Round(x) : x; }

// Adds the lanes of v in double to two running sums.
HWY_INLINE void AddWide(VF v, V64* lower, V64* upper) {
  *lower = hn::Add(*lower, hn::PromoteTo(d64, hn::LowerHalf(dhalf, v)));
  *upper = hn::Add(*upper, hn::PromoteTo(d64, hn::UpperHalf(dhalf, v)));
}

float InverseRms(std::span<const float> x, float eps) {
  V64 lower = hn::Zero(d64);
  V64 upper = hn::Zero(d64);
  ForVectors(static_cast<int64_t>(x.size()), [&](int64_t i, auto load, auto) HWY_ATTR {
    // The product of two floats is exact in double.
    const VF v = load(x.data() + i);
    const V64 low = hn::PromoteTo(d64, hn::LowerHalf(dhalf, v));
    const V64 high = hn::PromoteTo(d64, hn::UpperHalf(dhalf, v));
    lower = hn::MulAdd(low, low, lower);
    upper = hn::MulAdd(high, high, upper);
  });
  const double sum = hn::GetLane(hn::SumOfLanes(d64, hn::Add(lower, upper)));
  const auto mean = static_cast<float>(sum / static_cast<double>(x.size()));
  return 1.0f / std::sqrt(mean + eps);
}

void ScaleRow(std::span<const float> x, const float* weight, float inverse, bool round,
              float* out) {
  const VF factor = hn::Set(df, inverse);
  ForVectors(static_cast<int64_t>(x.size()), [&](int64_t i, auto load, auto store) HWY_ATTR {
    const VF scaled = hn::Mul(load(x.data() + i), factor);
    store(RoundIf(round, hn::Mul(load(weight + i), scaled)), out + i);
  });
}

void MixCopies(const float* copies, std::span<const float> pre, std::span<float> y, bool round) {
  const auto width = static_cast<int64_t>(y.size());
  ForVectors(width, [&](int64_t i, auto load, auto store) HWY_ATTR {
    VF sum = hn::Zero(df);
    for (size_t c = 0; c < pre.size(); ++c) {
      // Two roundings, like the contract's formula in plain fp32: not a fused multiply-add.
      const VF copy = load(copies + static_cast<int64_t>(c) * width + i);
      sum = hn::Add(sum, hn::Mul(hn::Set(df, pre[c]), copy));
    }
    store(RoundIf(round, sum), y.data() + i);
  });
}

void RopeRow(std::span<float> x, std::span<const float> cos_sin, float sign, bool round) {
  const auto pairs = static_cast<int64_t>(cos_sin.size() / 2);
  float* rotated = x.data() + x.size() - cos_sin.size();
  const VF signs = hn::Set(df, sign);
  int64_t k = 0;
  for (; k + kLanes <= pairs; k += kLanes) {
    VF c, s, even, odd;
    hn::LoadInterleaved2(df, cos_sin.data() + 2 * k, c, s);
    hn::LoadInterleaved2(df, rotated + 2 * k, even, odd);
    s = hn::Mul(s, signs);
    const VF first = hn::Sub(hn::Mul(even, c), hn::Mul(odd, s));
    const VF second = hn::Add(hn::Mul(even, s), hn::Mul(odd, c));
    hn::StoreInterleaved2(RoundIf(round, first), RoundIf(round, second), df, rotated + 2 * k);
  }
  for (; k < pairs; ++k) {
    const auto at = static_cast<size_t>(2 * k);
    const float c = cos_sin[at];
    const float s = sign * cos_sin[at + 1];
    const float even = rotated[at];
    const float odd = rotated[at + 1];
    rotated[at] = RoundIf(round, even * c - odd * s);
    rotated[at + 1] = RoundIf(round, even * s + odd * c);
  }
}

void QueryNorm(std::span<float> q, float eps, bool round) {
  V64 lower = hn::Zero(d64);
  V64 upper = hn::Zero(d64);
  ForVectors(static_cast<int64_t>(q.size()), [&](int64_t i, auto load, auto) HWY_ATTR {
    const VF v = load(q.data() + i);
    AddWide(RoundIf(round, hn::Mul(v, v)), &lower, &upper);
  });
  const double sum = hn::GetLane(hn::SumOfLanes(d64, hn::Add(lower, upper)));
  const float mean = RoundIf(round, static_cast<float>(sum / static_cast<double>(q.size())));
  const float inverse = RoundIf(round, 1.0f / std::sqrt(RoundIf(round, mean + eps)));
  const VF factor = hn::Set(df, inverse);
  ForVectors(static_cast<int64_t>(q.size()), [&](int64_t i, auto load, auto store) HWY_ATTR {
    store(RoundIf(round, hn::Mul(load(q.data() + i), factor)), q.data() + i);
  });
}

int VectorBits() { return 32 * kLanes; }

}  // namespace fathom::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::cpu {

HWY_EXPORT(InverseRms);
HWY_EXPORT(ScaleRow);
HWY_EXPORT(MixCopies);
HWY_EXPORT(RopeRow);
HWY_EXPORT(QueryNorm);
HWY_EXPORT(VectorBits);

float InverseRms(std::span<const float> x, float eps) {
  return HWY_DYNAMIC_DISPATCH(InverseRms)(x, eps);
}
void ScaleRow(std::span<const float> x, const float* weight, float inverse, bool round,
              float* out) {
  HWY_DYNAMIC_DISPATCH(ScaleRow)(x, weight, inverse, round, out);
}
void MixCopies(const float* copies, std::span<const float> pre, std::span<float> y, bool round) {
  HWY_DYNAMIC_DISPATCH(MixCopies)(copies, pre, y, round);
}
void RopeRow(std::span<float> x, std::span<const float> cos_sin, float sign, bool round) {
  HWY_DYNAMIC_DISPATCH(RopeRow)(x, cos_sin, sign, round);
}
void QueryNorm(std::span<float> q, float eps, bool round) {
  HWY_DYNAMIC_DISPATCH(QueryNorm)(q, eps, round);
}
VectorUnit ChosenVectorUnit() { return {IsaName(ChosenIsa()), HWY_DYNAMIC_DISPATCH(VectorBits)()}; }

}  // namespace fathom::cpu
#endif  // HWY_ONCE
