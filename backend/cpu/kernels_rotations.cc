// Small linear maps of rows: the Hadamard rotation and the mixing of hyper-connections.
#include <algorithm>
#include <cmath>
#include <span>

#include "backend/cpu/kernels.h"
#include "base/check.h"
#include "base/formats.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/kernels_rotations.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "backend/cpu/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace fathom::cpu::HWY_NAMESPACE {

inline constexpr int kWide = kLanes / 2;

HWY_INLINE hn::Vec<DHalf> RoundIf(bool round, hn::Vec<DHalf> x) {
  if (!round) return x;
  const hn::RebindToUnsigned<DHalf> du;
  const auto u = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(du, 1u));
  const auto sum = hn::Add(hn::Add(u, hn::Set(du, 0x7FFFu)), odd);
  const auto rounded = hn::BitCast(dhalf, hn::And(sum, hn::Set(du, 0xFFFF0000u)));
  return hn::IfThenElse(hn::IsNaN(x), hn::BitCast(dhalf, hn::Set(du, 0x7FC00000u)), rounded);
}

// The butterflies of lanes that are `Half` apart: a + b where lane & Half is 0, else a - b, where b
// is the upper one.
template <int Half>
HWY_INLINE V64 LaneButterfly(V64 v) {
  const hn::RebindToUnsigned<D64> du;
  constexpr uint64_t kMinus = 1ull << 63;
  alignas(64) static constexpr uint64_t kSigns[8] = {0,
                                                     (1 & Half) != 0 ? kMinus : 0,
                                                     (2 & Half) != 0 ? kMinus : 0,
                                                     (3 & Half) != 0 ? kMinus : 0,
                                                     (4 & Half) != 0 ? kMinus : 0,
                                                     (5 & Half) != 0 ? kMinus : 0,
                                                     (6 & Half) != 0 ? kMinus : 0,
                                                     (7 & Half) != 0 ? kMinus : 0};
  V64 swapped = v;
  if constexpr (Half == 1) {
    swapped = hn::Shuffle01(v);
#if HWY_MAX_BYTES >= 32
  } else if constexpr (Half == 2) {
    swapped = hn::SwapAdjacentBlocks(v);
#endif
#if HWY_MAX_BYTES >= 64
  } else {
    swapped = hn::ConcatLowerUpper(d64, v, v);
#endif
  }
  return hn::Add(swapped, hn::Xor(v, hn::BitCast(d64, hn::Load(du, kSigns))));
}

void HadamardRow(std::span<float> x, bool round) {
  FATHOM_CHECK(x.size() <= kMaxHadamard, "Hadamard size");
  alignas(64) double v[kMaxHadamard];
  const auto n = static_cast<int>(x.size());
  const double scale = 1.0 / std::sqrt(static_cast<double>(n));
  if (n < kWide) {
    for (int i = 0; i < n; ++i) v[i] = x[static_cast<size_t>(i)];
    for (int half = 1; half < n; half *= 2) {
      for (int i = 0; i < n; i += 2 * half) {
        for (int j = i; j < i + half; ++j) {
          const double a = v[j];
          const double b = v[j + half];
          v[j] = a + b;
          v[j + half] = a - b;
        }
      }
    }
    for (int i = 0; i < n; ++i) {
      const auto y = static_cast<float>(v[i] * scale);
      x[static_cast<size_t>(i)] = round ? RoundToBf16(y) : y;
    }
    return;
  }
  for (int i = 0; i < n; i += kWide) {
    V64 a = hn::PromoteTo(d64, hn::LoadU(dhalf, x.data() + i));
    a = LaneButterfly<1>(a);
    if constexpr (kWide > 2) a = LaneButterfly<2>(a);
    if constexpr (kWide > 4) a = LaneButterfly<4>(a);
    hn::Store(a, d64, v + i);
  }
  int half = kWide;
  // Two stages at once, half as many loads and stores.
  for (; 4 * half <= n; half *= 4) {
    for (int i = 0; i < n; i += 4 * half) {
      for (int j = i; j < i + half; j += kWide) {
        const V64 a = hn::Load(d64, v + j);
        const V64 b = hn::Load(d64, v + j + half);
        const V64 c = hn::Load(d64, v + j + 2 * half);
        const V64 d = hn::Load(d64, v + j + 3 * half);
        const V64 ab = hn::Add(a, b), a_b = hn::Sub(a, b);
        const V64 cd = hn::Add(c, d), c_d = hn::Sub(c, d);
        hn::Store(hn::Add(ab, cd), d64, v + j);
        hn::Store(hn::Add(a_b, c_d), d64, v + j + half);
        hn::Store(hn::Sub(ab, cd), d64, v + j + 2 * half);
        hn::Store(hn::Sub(a_b, c_d), d64, v + j + 3 * half);
      }
    }
  }
  for (; 2 * half <= n; half *= 2) {
    for (int i = 0; i < n; i += 2 * half) {
      for (int j = i; j < i + half; j += kWide) {
        const V64 a = hn::Load(d64, v + j);
        const V64 b = hn::Load(d64, v + j + half);
        hn::Store(hn::Add(a, b), d64, v + j);
        hn::Store(hn::Sub(a, b), d64, v + j + half);
      }
    }
  }
  for (int i = 0; i < n; i += kWide) {
    const V64 y = hn::Mul(hn::Load(d64, v + i), hn::Set(d64, scale));
    hn::StoreU(RoundIf(round, hn::DemoteTo(dhalf, y)), dhalf, x.data() + i);
  }
}

// The first vectors of a row of Copies copies; how many channels that is.
template <int Copies>
HWY_INLINE int64_t MixVectors(float* copies, std::span<const float> out, const float* post,
                              const float* comb, bool round) {
  const auto width = static_cast<int64_t>(out.size());
  // In registers: the compiler cannot know that `copies` is no part of them.
  V64 weights[Copies][Copies];
  hn::Vec<DHalf> posts[Copies];
  HWY_UNROLL(4) for (int k = 0; k < Copies; ++k) {
    posts[k] = hn::Set(dhalf, post[k]);
    HWY_UNROLL(4) for (int j = 0; j < Copies; ++j) {
      weights[j][k] = hn::Set(d64, static_cast<double>(comb[j * Copies + k]));
    }
  }
  int64_t i = 0;
  for (; i + kWide <= width; i += kWide) {
    V64 before[Copies];
    HWY_UNROLL(4) for (int j = 0; j < Copies; ++j) {
      before[j] = hn::PromoteTo(d64, hn::LoadU(dhalf, copies + j * width + i));
    }
    const auto o = hn::LoadU(dhalf, out.data() + i);
    HWY_UNROLL(4) for (int k = 0; k < Copies; ++k) {
      V64 mixed = hn::Mul(weights[0][k], before[0]);
      HWY_UNROLL(4) for (int j = 1; j < Copies; ++j) {
        mixed = hn::MulAdd(weights[j][k], before[j], mixed);
      }
      const V64 added = hn::PromoteTo(d64, hn::Mul(posts[k], o));
      const auto sum = hn::DemoteTo(dhalf, hn::Add(added, mixed));
      hn::StoreU(RoundIf(round, sum), dhalf, copies + k * width + i);
    }
  }
  return i;
}

void HcPostRow(float* copies, int hc, std::span<const float> out, const float* post,
               const float* comb, bool round) {
  constexpr int kMaxCopies = 8;
  FATHOM_DCHECK(hc <= kMaxCopies, "hc_mult");
  const auto width = static_cast<int64_t>(out.size());
  int64_t i = hc == 4 ? MixVectors<4>(copies, out, post, comb, round) : 0;
  for (; i < width; ++i) {
    double before[kMaxCopies];
    for (int j = 0; j < hc; ++j) before[j] = copies[j * width + i];
    for (int k = 0; k < hc; ++k) {
      double mixed = 0.0;
      for (int j = 0; j < hc; ++j) mixed += static_cast<double>(comb[j * hc + k]) * before[j];
      const float added = post[k] * out[static_cast<size_t>(i)];
      const auto sum = static_cast<float>(added + mixed);
      copies[k * width + i] = round ? RoundToBf16(sum) : sum;
    }
  }
}

// r[0..3] become their columns.
HWY_INLINE void Transpose4(hn::Vec<D4>* r) {
  const D4 d4;
  const hn::Repartition<uint64_t, D4> d2;
  const auto a = hn::BitCast(d2, hn::InterleaveLower(d4, r[0], r[1]));
  const auto b = hn::BitCast(d2, hn::InterleaveLower(d4, r[2], r[3]));
  const auto c = hn::BitCast(d2, hn::InterleaveUpper(d4, r[0], r[1]));
  const auto d = hn::BitCast(d2, hn::InterleaveUpper(d4, r[2], r[3]));
  r[0] = hn::BitCast(d4, hn::InterleaveLower(d2, a, b));
  r[1] = hn::BitCast(d4, hn::InterleaveUpper(d2, a, b));
  r[2] = hn::BitCast(d4, hn::InterleaveLower(d2, c, d));
  r[3] = hn::BitCast(d4, hn::InterleaveUpper(d2, c, d));
}

template <int Matrices>
HWY_INLINE void Sinkhorn4Some(float* const* comb, int iterations, float eps) {
  const D4 d4;
  const auto epsilon = hn::Set(d4, eps);
  hn::Vec<D4> r[Matrices][4];
  // Divides every vector by the sum of the four: a column step as rows stand, a row step as columns
  // do.
  const auto divide = [&] HWY_ATTR {
    HWY_UNROLL(4) for (int m = 0; m < Matrices; ++m) {
      auto sum = hn::Add(hn::Add(hn::Add(r[m][0], r[m][1]), r[m][2]), r[m][3]);
      sum = hn::Add(sum, epsilon);
      HWY_UNROLL(4) for (int i = 0; i < 4; ++i) r[m][i] = hn::Div(r[m][i], sum);
    }
  };
  const auto transpose = [&] HWY_ATTR {
    HWY_UNROLL(4) for (int m = 0; m < Matrices; ++m) Transpose4(r[m]);
  };
  HWY_UNROLL(4) for (int m = 0; m < Matrices; ++m) {
    HWY_UNROLL(4) for (int j = 0; j < 4; ++j) r[m][j] = hn::LoadU(d4, comb[m] + 4 * j);
  }
  divide();
  for (int i = 1; i < iterations; ++i) {
    transpose();
    divide();
    transpose();
    divide();
  }
  HWY_UNROLL(4) for (int m = 0; m < Matrices; ++m) {
    HWY_UNROLL(4) for (int j = 0; j < 4; ++j) hn::StoreU(r[m][j], d4, comb[m] + 4 * j);
  }
}

void Sinkhorn4(float* const* comb, int num, int iterations, float eps) {
  // A matrix is one chain of dependent steps; several are worked on at once.
  int m = 0;
  for (; m + 4 <= num; m += 4) Sinkhorn4Some<4>(comb + m, iterations, eps);
  for (; m < num; ++m) Sinkhorn4Some<1>(comb + m, iterations, eps);
}

}  // namespace fathom::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::cpu {

HWY_EXPORT(HadamardRow);
HWY_EXPORT(HcPostRow);
HWY_EXPORT(Sinkhorn4);

void HadamardRow(std::span<float> x, bool round) { HWY_DYNAMIC_DISPATCH(HadamardRow)(x, round); }
void HcPostRow(float* copies, int hc, std::span<const float> out, const float* post,
               const float* comb, bool round) {
  HWY_DYNAMIC_DISPATCH(HcPostRow)(copies, hc, out, post, comb, round);
}
void Sinkhorn4(float* const* comb, int num, int iterations, float eps) {
  HWY_DYNAMIC_DISPATCH(Sinkhorn4)(comb, num, iterations, eps);
}

}  // namespace fathom::cpu
#endif  // HWY_ONCE
