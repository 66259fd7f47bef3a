// Exponentials and logarithms, in double and rounded once: so that a value that is stored in a few
// bits, or compared, is the reference's. (An error of two units in the last place of a double moves
// the rounded float with a chance of 2^-27.)
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <span>

#include "backend/cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/kernels_exp.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
#include "backend/cpu/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace fathom::cpu::HWY_NAMESPACE {

// float(f(x)) of a vector of floats, f in double.
template <typename F>
HWY_INLINE VF InDouble(VF x, const F& f) {
  const auto lower = f(hn::PromoteTo(d64, hn::LowerHalf(dhalf, x)));
  const auto upper = f(hn::PromoteTo(d64, hn::UpperHalf(dhalf, x)));
  return hn::Combine(df, hn::DemoteTo(dhalf, upper), hn::DemoteTo(dhalf, lower));
}

void PoolItems(std::span<const PoolItem> items, std::span<float> out) {
  // Channels that are pooled together, so that the exponentials stay in the L1 cache.
  constexpr int kChannels = 64;
  alignas(64) float p[kMaxPoolItems][kChannels];
  alignas(64) float k[kChannels];
  alignas(64) float max[kChannels], den[kChannels], sum[kChannels];
  const auto load = [&](const std::byte* row, int64_t begin, int64_t count, float* to) HWY_ATTR {
    std::memcpy(to, row + begin * static_cast<int64_t>(sizeof(float)),
                static_cast<size_t>(count) * sizeof(float));
  };
  std::memset(p, 0, items.size() * sizeof(p[0]));  // channels behind the last are computed too
  std::memset(k, 0, sizeof(k));
  const auto width = static_cast<int64_t>(out.size());
  for (int64_t begin = 0; begin < width; begin += kChannels) {
    const int64_t count = std::min<int64_t>(kChannels, width - begin);
    for (int c = 0; c < kChannels; c += kLanes) {
      hn::Store(hn::Set(df, -std::numeric_limits<float>::infinity()), df, max + c);
      hn::Store(hn::Zero(df), df, den + c);
      hn::Store(hn::Zero(df), df, sum + c);
    }
    for (size_t n = 0; n < items.size(); ++n) {
      load(items[n].score, begin, count, p[n]);
      if (const float* ape = items[n].ape; ape != nullptr) {
        ForVectors(count, [&](int64_t c, auto load_some, auto) HWY_ATTR {
          hn::Store(hn::Add(hn::Load(df, p[n] + c), load_some(ape + begin + c)), df, p[n] + c);
        });
      }
      for (int c = 0; c < kChannels; c += kLanes) {
        hn::Store(hn::Max(hn::Load(df, p[n] + c), hn::Load(df, max + c)), df, max + c);
      }
    }
    for (size_t n = 0; n < items.size(); ++n) {
      for (int c = 0; c < kChannels; c += kLanes) {
        const VF below = hn::Sub(hn::Load(df, p[n] + c), hn::Load(df, max + c));
        const VF e = InDouble(below, [](V64 x) HWY_ATTR { return hn::Exp(d64, x); });
        hn::Store(e, df, p[n] + c);
        hn::Store(hn::Add(hn::Load(df, den + c), e), df, den + c);
      }
    }
    for (size_t n = 0; n < items.size(); ++n) {
      load(items[n].k, begin, count, k);
      for (int c = 0; c < kChannels; c += kLanes) {
        const VF share = hn::Div(hn::Load(df, p[n] + c), hn::Load(df, den + c));
        // Product and sum rounded each, as a plain fp32 loop does.
        const VF product = hn::Mul(hn::Load(df, k + c), share);
        hn::Store(hn::Add(hn::Load(df, sum + c), product), df, sum + c);
      }
    }
    std::memcpy(out.data() + begin, sum, static_cast<size_t>(count) * sizeof(float));
  }
}

void SqrtSoftplus(std::span<float> x) {
  ForVectors(static_cast<int64_t>(x.size()), [&](int64_t i, auto load, auto store) HWY_ATTR {
    const VF y = InDouble(load(x.data() + i), [](V64 v) HWY_ATTR {
      const V64 small = hn::Exp(d64, hn::Neg(hn::Abs(v)));
      return hn::Add(hn::Max(v, hn::Zero(d64)), hn::Log1p(d64, small));
    });
    store(hn::Sqrt(y), x.data() + i);
  });
}

}  // namespace fathom::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::cpu {

HWY_EXPORT(PoolItems);
HWY_EXPORT(SqrtSoftplus);

void PoolItems(std::span<const PoolItem> items, std::span<float> out) {
  HWY_DYNAMIC_DISPATCH(PoolItems)(items, out);
}
void SqrtSoftplus(std::span<float> x) { HWY_DYNAMIC_DISPATCH(SqrtSoftplus)(x); }

}  // namespace fathom::cpu
#endif  // HWY_ONCE
