#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "backend/cpu/kernels.h"
#include "base/formats.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/kernels_inputs.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
#include "backend/cpu/simd-inl.h"
#include "backend/cpu/quantise-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace fathom::cpu::HWY_NAMESPACE {

using D32 = hn::RebindToSigned<DF>;
using D8 = hn::Rebind<int8_t, DF>;
inline constexpr D32 d32;
inline constexpr D8 d8;

// 32 bytes in the order of FP4 panels: of eight columns first the even ones.
HWY_INLINE void StorePairs(const int8_t* bytes, int8_t* out) {
  const hn::Full128<int8_t> block;
  alignas(16) static constexpr int8_t kOrder[16] = {0, 2,  4,  6,  1, 3,  5,  7,
                                                    8, 10, 12, 14, 9, 11, 13, 15};
  const auto order = hn::Load(block, kOrder);
  for (int i = 0; i < kFp4Group; i += 16) {
    hn::StoreU(hn::TableLookupBytes(hn::LoadU(block, bytes + i), order), block, out + i);
  }
}

HWY_INLINE int32_t SumLanes(hn::Vec<D32> v) { return hn::GetLane(hn::SumOfLanes(d32, v)); }

void SplitE4m3Row(std::span<const float> x, const ByteSlot& out) {
  constexpr int kGroup = 128;
  alignas(64) int8_t first[kFp4Group], second[kFp4Group], third[kFp4Group];
  for (size_t begin = 0; begin < x.size(); begin += kGroup) {
    const float* in = x.data() + begin;
    const uint32_t amax = LargestMagnitude(in, kGroup);
    const bool finite = amax < 0x7F800000u;
    const int e =
        finite ? CeilLog2(std::max(std::bit_cast<float>(amax), kE4m3AmaxFloor) * (1.0f / kE4m3Max))
               : 0;
    const VF inverse = hn::Set(df, std::ldexp(1.0f, -e));
    // Infinities and NaN: the whole group is NaN, as it is for the official quantiser.
    const float scale = finite ? std::ldexp(1.0f, e - 6) : std::numeric_limits<float>::quiet_NaN();
    for (int sub = 0; sub < kGroup; sub += kFp4Group) {
      auto firsts = hn::Zero(d32), seconds = firsts, thirds = firsts;
      for (int i = 0; i < kFp4Group; i += kLanes) {
        const VF value = finite ? hn::LoadU(df, in + sub + i) : hn::Zero(df);
        // In units of 2^-9 every code is an integer: 8 * (256 * first + second) + third.
        const auto m = hn::NearestInt(hn::Mul(RoundToE4m3(value, inverse), hn::Set(df, 512.0f)));
        const auto u = hn::ShiftRight<3>(m);
        const auto low = hn::And(m, hn::Set(d32, 7));
        const auto mid = hn::ShiftRight<24>(hn::ShiftLeft<24>(u));
        const auto high = hn::ShiftRight<8>(hn::Sub(u, mid));
        firsts = hn::Add(firsts, high);
        seconds = hn::Add(seconds, mid);
        thirds = hn::Add(thirds, low);
        hn::StoreU(hn::DemoteTo(d8, high), d8, first + i);
        hn::StoreU(hn::DemoteTo(d8, mid), d8, second + i);
        hn::StoreU(hn::DemoteTo(d8, low), d8, third + i);
      }
      const size_t at = begin + static_cast<size_t>(sub);
      const size_t group = at / kFp4Group;
      StorePairs(first, out.first + at);
      StorePairs(second, out.second + at);
      StorePairs(third, out.third + at);
      const int32_t rest = SumLanes(thirds);  // of numbers that are not negative
      out.bias[group] = -kFp4Offset * (256 * SumLanes(firsts) + SumLanes(seconds));
      out.third_bias[group] = -kFp4Offset * rest;
      out.has_third[group] = rest != 0 ? 1 : 0;
      out.scale[group] = scale;
    }
  }
}

void Int8Row(std::span<const float> x, int group, const ByteSlot& out) {
  alignas(64) int8_t bytes[kFp4Group];
  const int offset = group == kFp4Group ? kFp4Offset : kInt8Offset;
  for (size_t begin = 0; begin < x.size(); begin += static_cast<size_t>(group)) {
    const float* in = x.data() + begin;
    const uint32_t bits = LargestMagnitude(in, group);
    const bool finite = bits < 0x7F800000u;
    // The floor keeps the inverse finite.
    const float amax = finite ? std::max(std::bit_cast<float>(bits), 1e-30f) : 1.0f;
    const VF inverse = hn::Set(df, 127.0f / amax);
    auto sums = hn::Zero(d32);
    for (int sub = 0; sub < group; sub += kFp4Group) {
      for (int i = 0; i < kFp4Group; i += kLanes) {
        const VF value = finite ? hn::LoadU(df, in + sub + i) : hn::Zero(df);
        const auto q = hn::NearestInt(hn::Mul(value, inverse));
        sums = hn::Add(sums, q);
        hn::StoreU(hn::DemoteTo(d8, q), d8, bytes + i);
      }
      int8_t* to = out.first + begin + static_cast<size_t>(sub);
      if (group == kFp4Group) {
        StorePairs(bytes, to);
      } else {
        std::memcpy(to, bytes, sizeof(bytes));
      }
    }
    const size_t at = begin / static_cast<size_t>(group);
    out.bias[at] = -offset * SumLanes(sums);
    out.scale[at] = finite ? amax / 127.0f : std::numeric_limits<float>::quiet_NaN();
  }
}

void SwigluRow(const float* gate, const float* up, int n, float limit, float weight, bool round,
               float* out) {
  const VF one = hn::Set(df, 1.0f);
  const VF factor = hn::Set(df, weight);
  ForVectors(n, [&](int64_t i, auto load, auto store) HWY_ATTR {
    VF g = load(gate + i);
    VF u = load(up + i);
    if (round) {
      g = Bf16Round(g);
      u = Bf16Round(u);
    }
    if (limit > 0.0f) {
      // NaN stays NaN: as the first operand it would be replaced.
      g = hn::Min(hn::Set(df, limit), g);
      u = hn::Max(hn::Set(df, -limit), hn::Min(hn::Set(df, limit), u));
    }
    const VF silu = hn::Div(g, hn::Add(one, hn::Exp(df, hn::Neg(g))));
    const VF product = hn::Mul(hn::Mul(silu, u), factor);
    store(round ? Bf16Round(product) : product, out + i);
  });
}

void AddRow(std::span<const float> x, float* out) {
  ForVectors(static_cast<int64_t>(x.size()), [&](int64_t i, auto load, auto store) HWY_ATTR {
    store(hn::Add(load(out + i), load(x.data() + i)), out + i);
  });
}

}  // namespace fathom::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::cpu {

HWY_EXPORT(SplitE4m3Row);
HWY_EXPORT(Int8Row);
HWY_EXPORT(SwigluRow);
HWY_EXPORT(AddRow);

void SplitE4m3Row(std::span<const float> x, const ByteSlot& out) {
  HWY_DYNAMIC_DISPATCH(SplitE4m3Row)(x, out);
}
void Int8Row(std::span<const float> x, int group, const ByteSlot& out) {
  HWY_DYNAMIC_DISPATCH(Int8Row)(x, group, out);
}

void SwigluRow(const float* gate, const float* up, int n, float limit, float weight, bool round,
               float* out) {
  HWY_DYNAMIC_DISPATCH(SwigluRow)(gate, up, n, limit, weight, round, out);
}

void AddRow(std::span<const float> x, float* out) { HWY_DYNAMIC_DISPATCH(AddRow)(x, out); }

}  // namespace fathom::cpu
#endif  // HWY_ONCE
