#include <algorithm>
#include <bit>
#include <span>

#include "backend/cpu/topk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/kernels_topk.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "backend/cpu/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace fathom::cpu::HWY_NAMESPACE {

using DU = hn::RebindToUnsigned<DF>;
using VU = hn::Vec<DU>;

// Larger for larger scores; +0 and -0 are one.
HWY_INLINE VU Keys(const float* scores) {
  const hn::RebindToSigned<DF> di;
  const DU du;
  const VF v = hn::Add(hn::LoadU(df, scores), hn::Zero(df));
  const VU negative = hn::BitCast(du, hn::ShiftRight<31>(hn::BitCast(di, v)));
  return hn::Xor(hn::BitCast(du, v), hn::Or(negative, hn::Set(du, 0x80000000u)));
}
// `n` < kLanes of them; the lanes behind hold keys of zeros.
HWY_INLINE VU KeysTail(const float* scores, int64_t n) {
  alignas(64) float tail[kLanes];
  hn::Store(LoadTail(scores, n), df, tail);
  return Keys(tail);
}

int64_t GroupMaxima(std::span<const float> scores, int64_t group, uint32_t* keys) {
  const DU du;
  const auto n = static_cast<int64_t>(scores.size());
  const float* p = scores.data();
  int64_t count = 0;
  int64_t i = 0;
  for (; i + group * kLanes <= n; count += kLanes) {
    VU max = Keys(p + i);
    for (int64_t end = i + group * kLanes; i < end; i += kLanes) max = hn::Max(max, Keys(p + i));
    hn::StoreU(max, du, keys + count);
  }
  // What is left are groups of one.
  for (; i + kLanes <= n; i += kLanes, count += kLanes) {
    hn::StoreU(Keys(p + i), du, keys + count);
  }
  if (i < n) {
    alignas(64) uint32_t tail[kLanes];
    hn::Store(KeysTail(p + i, n - i), du, tail);
    std::copy_n(tail, n - i, keys + count);
    count += n - i;
  }
  return count;
}

KthKey KthLargest(uint32_t* keys, int64_t n, int64_t k) {
  const DU du;
  constexpr int kManyBits = 11;
  constexpr int kFewBits = 8;  // a short list is not worth clearing and searching many bins
  constexpr int64_t kFewKeys = 2048;
  uint32_t bins[1 << kManyBits];
  alignas(64) uint32_t at[kLanes];
  for (;;) {
    VU smallest = hn::Set(du, 0xFFFFFFFFu);
    VU largest = hn::Zero(du);
    uint32_t min = 0xFFFFFFFFu;
    uint32_t max = 0;
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      const VU v = hn::LoadU(du, keys + i);
      smallest = hn::Min(smallest, v);
      largest = hn::Max(largest, v);
    }
    for (; i < n; ++i) {
      min = std::min(min, keys[i]);
      max = std::max(max, keys[i]);
    }
    min = std::min(min, hn::GetLane(hn::MinOfLanes(du, smallest)));
    max = std::max(max, hn::GetLane(hn::MaxOfLanes(du, largest)));
    if (min == max) return {min, k};

    const int bits = n < kFewKeys ? kFewBits : kManyBits;
    const int shift = std::max(0, static_cast<int>(std::bit_width(max - min)) - bits);
    std::fill_n(bins, 1 << bits, 0u);
    const VU from = hn::Set(du, min);
    for (i = 0; i + kLanes <= n; i += kLanes) {
      hn::Store(hn::ShiftRightSame(hn::Sub(hn::LoadU(du, keys + i), from), shift), du, at);
      for (int lane = 0; lane < kLanes; ++lane) ++bins[at[lane]];
    }
    for (; i < n; ++i) ++bins[(keys[i] - min) >> shift];
    uint32_t bin = (max - min) >> shift;
    for (; bins[bin] < k; --bin) k -= bins[bin];
    if (shift == 0) return {min + bin, k};

    // Go on with the keys of this bin. They move down, onto keys that were read before.
    const VU chosen_bin = hn::Set(du, bin);
    int64_t count = 0;
    for (i = 0; i + kLanes <= n; i += kLanes) {
      const VU v = hn::LoadU(du, keys + i);
      const auto chosen = hn::Eq(hn::ShiftRightSame(hn::Sub(v, from), shift), chosen_bin);
      count += static_cast<int64_t>(hn::CompressStore(v, chosen, du, keys + count));
    }
    for (; i < n; ++i) {
      if ((keys[i] - min) >> shift == bin) keys[count++] = keys[i];
    }
    n = count;
  }
}

int64_t CollectAtLeast(std::span<const float> scores, uint32_t least, int32_t first_index,
                       int32_t* out) {
  const DU du;
  const hn::RebindToSigned<DF> di;
  const auto n = static_cast<int64_t>(scores.size());
  const VU bound = hn::Set(du, least);
  auto index = hn::Add(hn::Iota(di, 0), hn::Set(di, first_index));
  int64_t count = 0;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto chosen = hn::Not(hn::Lt(Keys(scores.data() + i), bound));
    const auto of_index = hn::RebindMask(di, chosen);
    // Few are chosen of a long row.
    if (!hn::AllFalse(du, chosen)) {
      count += static_cast<int64_t>(hn::CompressStore(index, of_index, di, out + count));
    }
    index = hn::Add(index, hn::Set(di, kLanes));
  }
  if (i < n) {
    const auto valid = hn::FirstN(du, static_cast<size_t>(n - i));
    const auto chosen = hn::And(valid, hn::Not(hn::Lt(KeysTail(scores.data() + i, n - i), bound)));
    count +=
        static_cast<int64_t>(hn::CompressStore(index, hn::RebindMask(di, chosen), di, out + count));
  }
  return count;
}

}  // namespace fathom::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::cpu {

HWY_EXPORT(GroupMaxima);
HWY_EXPORT(KthLargest);
HWY_EXPORT(CollectAtLeast);

int64_t GroupMaxima(std::span<const float> scores, int64_t group, uint32_t* keys) {
  return HWY_DYNAMIC_DISPATCH(GroupMaxima)(scores, group, keys);
}
KthKey KthLargest(uint32_t* keys, int64_t n, int64_t k) {
  return HWY_DYNAMIC_DISPATCH(KthLargest)(keys, n, k);
}
int64_t CollectAtLeast(std::span<const float> scores, uint32_t least, int32_t first_index,
                       int32_t* out) {
  return HWY_DYNAMIC_DISPATCH(CollectAtLeast)(scores, least, first_index, out);
}

}  // namespace fathom::cpu
#endif  // HWY_ONCE
