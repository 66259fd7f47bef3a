#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "backend/cpu/kernels.h"
#include "base/formats.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/kernels_index.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "backend/cpu/simd-inl.h"
#include "backend/cpu/quantise-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace fathom::cpu::HWY_NAMESPACE {

void Fp4Row(std::span<const float> x, const ByteSlot& out) {
  const hn::RebindToSigned<DF> d32;
  const hn::Rebind<int8_t, DF> d8;
  const hn::Full128<int8_t> block;
  // As panels have the columns: of eight first the even ones.
  alignas(16) static constexpr int8_t kOrder[16] = {0, 2,  4,  6,  1, 3,  5,  7,
                                                    8, 10, 12, 14, 9, 11, 13, 15};
  const auto order = hn::Load(block, kOrder);
  alignas(64) int8_t bytes[kFp4Group];
  for (size_t begin = 0; begin < x.size(); begin += kFp4Group) {
    const float* in = x.data() + begin;
    const uint32_t amax = LargestMagnitude(in, kFp4Group);
    const bool finite = amax < 0x7F800000u;
    const int e =
        finite ? CeilLog2(std::max(std::bit_cast<float>(amax), kE2m1AmaxFloor) * (1.0f / kE2m1Max))
               : 0;
    const VF inverse = hn::Set(df, std::ldexp(1.0f, -e));
    auto sums = hn::Zero(d32);
    for (int i = 0; i < kFp4Group; i += kLanes) {
      const VF value = finite ? hn::LoadU(df, in + i) : hn::Zero(df);
      const VF rounded = RoundToE2m1(value, inverse);
      const auto twice = hn::NearestInt(hn::Add(rounded, rounded));
      sums = hn::Add(sums, twice);
      hn::StoreU(hn::DemoteTo(d8, twice), d8, bytes + i);
    }
    for (int i = 0; i < kFp4Group; i += 16) {
      hn::StoreU(hn::TableLookupBytes(hn::Load(block, bytes + i), order), block,
                 out.first + begin + static_cast<size_t>(i));
    }
    const size_t group = begin / kFp4Group;
    out.bias[group] = -kFp4Offset * hn::GetLane(hn::SumOfLanes(d32, sums));
    out.scale[group] = finite ? std::ldexp(0.5f, e) : std::numeric_limits<float>::quiet_NaN();
  }
}

// before + weight * max(dot, 0), product and sum rounded each, as a plain fp32 loop does.
HWY_INLINE VF AddWeighted(VF before, VF weight, VF dot) {
  const VF relu = hn::IfThenElseZero(hn::Gt(dot, hn::Zero(df)), dot);
  return hn::Add(before, hn::Mul(weight, relu));
}

void WeightedRelu(const float* dots, int64_t stride, const float* weights, int num_heads, int num,
                  float* scores) {
  alignas(64) float sums[2 * kMaxLanes];
  for (int n = 0; n < num; n += 2 * kLanes) {
    VF first = hn::Zero(df);
    VF second = hn::Zero(df);
    for (int h = 0; h < num_heads; ++h) {
      const VF weight = hn::Set(df, weights[h]);
      first = AddWeighted(first, weight, hn::LoadU(df, dots + h * stride + n));
      second = AddWeighted(second, weight, hn::LoadU(df, dots + h * stride + n + kLanes));
    }
    hn::Store(first, df, sums + n);
    hn::Store(second, df, sums + n + kLanes);
  }
  std::memcpy(scores, sums, static_cast<size_t>(num) * sizeof(float));
}

void TransposeKeys(const float* keys, int num, int dim, float* out) {
  const D4 d4;
  int c = 0;
  for (; c + 4 <= dim; c += 4) {
    for (int j = 0; j < num; j += 4) {
      // Behind the last key it is repeated.
      const auto row = [&](int i) HWY_ATTR {
        return hn::LoadU(d4, keys + int64_t{std::min(j + i, num - 1)} * dim + c);
      };
      const hn::Repartition<uint64_t, D4> d2;
      const auto r0 = row(0), r1 = row(1), r2 = row(2), r3 = row(3);
      const auto a = hn::BitCast(d2, hn::InterleaveLower(d4, r0, r1));
      const auto b = hn::BitCast(d2, hn::InterleaveLower(d4, r2, r3));
      const auto e = hn::BitCast(d2, hn::InterleaveUpper(d4, r0, r1));
      const auto f = hn::BitCast(d2, hn::InterleaveUpper(d4, r2, r3));
      float* to = out + int64_t{c} * kTile + j;
      hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, a, b)), d4, to);
      hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, a, b)), d4, to + kTile);
      hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, e, f)), d4, to + 2 * kTile);
      hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, e, f)), d4, to + 3 * kTile);
    }
  }
  for (; c < dim; ++c) {
    for (int j = 0; j < num; ++j) out[int64_t{c} * kTile + j] = keys[int64_t{j} * dim + c];
  }
}

// sums[h][j] = q_h . key_j for Heads heads and two vectors of keys.
template <int Heads>
HWY_INLINE void GroupedDots(const float* q, int dim, const float* keys, float* sums) {
  VF total[Heads][2];
  HWY_UNROLL(4) for (int h = 0; h < Heads; ++h) total[h][0] = total[h][1] = hn::Zero(df);
  for (int begin = 0; begin < dim; begin += kFp4Group) {
    VF sum[Heads][2];
    HWY_UNROLL(4) for (int h = 0; h < Heads; ++h) sum[h][0] = sum[h][1] = hn::Zero(df);
    const int end = std::min(begin + kFp4Group, dim);
    for (int c = begin; c < end; ++c) {
      const VF first = hn::LoadU(df, keys + int64_t{c} * kTile);
      const VF second = hn::LoadU(df, keys + int64_t{c} * kTile + kLanes);
      HWY_UNROLL(4) for (int h = 0; h < Heads; ++h) {
        const VF value = hn::Set(df, q[int64_t{h} * dim + c]);
        sum[h][0] = hn::MulAdd(value, first, sum[h][0]);
        sum[h][1] = hn::MulAdd(value, second, sum[h][1]);
      }
    }
    HWY_UNROLL(4) for (int h = 0; h < Heads; ++h) {
      total[h][0] = hn::Add(total[h][0], sum[h][0]);
      total[h][1] = hn::Add(total[h][1], sum[h][1]);
    }
  }
  HWY_UNROLL(4) for (int h = 0; h < Heads; ++h) {
    hn::StoreU(total[h][0], df, sums + h * 2 * kLanes);
    hn::StoreU(total[h][1], df, sums + h * 2 * kLanes + kLanes);
  }
}

void IndexScores(const float* q, const float* weights, int num_heads, int dim, const float* keys,
                 int num, float* scores) {
  constexpr int kHeads = kLanes == 16 ? 4 : 2;
  alignas(64) float sums[kHeads * 2 * kLanes];
  alignas(64) float total[kTile];
  for (int n = 0; n < num; n += 2 * kLanes) {
    VF first = hn::Zero(df);
    VF second = hn::Zero(df);
    const auto add = [&](int head, int count) HWY_ATTR {
      for (int h = 0; h < count; ++h) {
        const VF weight = hn::Set(df, weights[head + h]);
        first = AddWeighted(first, weight, hn::Load(df, sums + h * 2 * kLanes));
        second = AddWeighted(second, weight, hn::Load(df, sums + h * 2 * kLanes + kLanes));
      }
    };
    int h = 0;
    for (; h + kHeads <= num_heads; h += kHeads) {
      GroupedDots<kHeads>(q + int64_t{h} * dim, dim, keys + n, sums);
      add(h, kHeads);
    }
    for (; h < num_heads; ++h) {
      GroupedDots<1>(q + int64_t{h} * dim, dim, keys + n, sums);
      add(h, 1);
    }
    hn::Store(first, df, total + n);
    hn::Store(second, df, total + n + kLanes);
  }
  std::memcpy(scores, total, static_cast<size_t>(num) * sizeof(float));
}

}  // namespace fathom::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::cpu {

HWY_EXPORT(Fp4Row);
HWY_EXPORT(WeightedRelu);
HWY_EXPORT(TransposeKeys);
HWY_EXPORT(IndexScores);

void Fp4Row(std::span<const float> x, const ByteSlot& out) { HWY_DYNAMIC_DISPATCH(Fp4Row)(x, out); }
void WeightedRelu(const float* dots, int64_t stride, const float* weights, int num_heads, int num,
                  float* scores) {
  HWY_DYNAMIC_DISPATCH(WeightedRelu)(dots, stride, weights, num_heads, num, scores);
}
void TransposeKeys(const float* keys, int num, int dim, float* out) {
  HWY_DYNAMIC_DISPATCH(TransposeKeys)(keys, num, dim, out);
}
void IndexScores(const float* q, const float* weights, int num_heads, int dim, const float* keys,
                 int num, float* scores) {
  HWY_DYNAMIC_DISPATCH(IndexScores)(q, weights, num_heads, dim, keys, num, scores);
}

}  // namespace fathom::cpu
#endif  // HWY_ONCE
