#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/kernels.h"
#include "backend/page_codec.h"
#include "base/formats.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/kernels_attention.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
#include "backend/cpu/decode-inl.h"
#include "backend/cpu/dot-inl.h"
#include "backend/cpu/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace fathom::cpu::HWY_NAMESPACE {

// Heads whose scores of one tile are in work together.
constexpr int kHeadGroup = 16;

// `n` bf16 values that need not stand at an even address.
HWY_INLINE void DecodeBf16Bytes(const uint8_t* in, int n, float* out) {
  uint16_t bits[64];
  for (int i = 0; i < n; i += 64) {
    const int count = std::min(64, n - i);
    std::memcpy(bits, in + 2 * i, static_cast<size_t>(count) * sizeof(uint16_t));
    DecodeBf16(bits, count, out + i);
  }
}

void DecodeEntry(const PageFormat& format, EntryRef entry, float* out) {
  const std::byte* in = entry.page + format.value_bytes() * entry.row;
  const auto* scales = reinterpret_cast<const uint8_t*>(entry.page + format.scale_offset() +
                                                        format.scale_bytes() * entry.row);
  const auto* codes = reinterpret_cast<const uint8_t*>(in);
  switch (format.encoding) {
    case EntryEncoding::kF32:
      std::memcpy(out, in, static_cast<size_t>(format.dim) * sizeof(float));
      return;
    case EntryEncoding::kE4m3Rope: {
      const int nope = format.dim - format.rope_dim;
      const bool has_nan = HasE4m3Nan(codes, nope);
      for (int i = 0; i < nope; i += 64) {
        DecodeE4m3(codes + i, 64, scales[i / 64], has_nan, out + i);
      }
      DecodeBf16Bytes(codes + nope, format.rope_dim, out + nope);
      return;
    }
    case EntryEncoding::kE2m1:
      for (int i = 0; i < format.dim; i += 32) DecodeE2m1(codes + i / 2, scales[i / 32], out + i);
      return;
    case EntryEncoding::kBf16Rope:
    case EntryEncoding::kBf16:
      DecodeBf16Bytes(codes, format.dim, out);
      return;
    case EntryEncoding::kE4m3Scaled: {
      if (format.dim % 64 != 0) {
        LoadEntry(format, entry, {out, static_cast<size_t>(format.dim)});
        return;
      }
      // The scale is a normal power of two, so its exponent bits are a ue8m0 byte.
      uint32_t bits = 0;
      std::memcpy(&bits, scales, sizeof(bits));
      const bool has_nan = HasE4m3Nan(codes, format.dim);
      for (int i = 0; i < format.dim; i += 64) {
        DecodeE4m3(codes + i, 64, static_cast<uint8_t>(bits >> 23), has_nan, out + i);
      }
      return;
    }
  }
}

// z[h][n] = x_h . rows_n for up to kHeadGroup inputs.
HWY_INLINE void TileDots(const float* x, int num_x, int dim, const float* rows, int num,
                         float (*z)[kTile]) {
  const float* pointers[kHeadGroup];
  for (int h = 0; h < num_x; ++h) pointers[h] = x + int64_t{h} * dim;
  for (int n = 0; n < num; n += kRowBlock) {
    DotRows(rows + int64_t{n} * dim, std::min(kRowBlock, num - n), dim, pointers, num_x, z[0] + n,
            kTile);
  }
}

// Turns the scores of one head into probabilities against the new maximum; returns what older sums
// are multiplied with.
HWY_INLINE float Softmax(float* z, int num, float scale, float* max, float* den) {
  std::fill(z + num, z + kTile, -std::numeric_limits<float>::infinity());
  const VF scales = hn::Set(df, scale);
  VF largest = hn::Set(df, *max);
  for (int n = 0; n < kTile; n += kLanes) {
    // Behind the last entry the product is -inf (or NaN for a scale of 0, which Max passes over).
    const VF scaled = hn::Mul(hn::LoadU(df, z + n), scales);
    hn::StoreU(scaled, df, z + n);
    largest = hn::Max(scaled, largest);
  }
  const float new_max = hn::GetLane(hn::MaxOfLanes(df, largest));
  const float factor = new_max == *max ? 1.0f : std::exp(*max - new_max);
  VF sum = hn::Zero(df);
  for (int n = 0; n < kTile; n += kLanes) {
    const VF p = hn::Exp(df, hn::Sub(hn::LoadU(df, z + n), hn::Set(df, new_max)));
    hn::StoreU(p, df, z + n);
    sum = hn::Add(sum, p);
  }
  *den = *den * factor + hn::GetLane(hn::SumOfLanes(df, sum));
  *max = new_max;
  return factor;
}

// out[h][c] = out[h][c] * factor[h] + sum over n ascending of p[h][n] * kv[n][c], for Heads heads
// and Vectors vectors of channels from c on.
template <int Heads, int Vectors>
HWY_INLINE void WeightedSum(const float (*p)[kTile], const float* factor, int dim, const float* kv,
                            int num, float* out) {
  VF sum[Heads][Vectors];
  HWY_UNROLL(4) for (int h = 0; h < Heads; ++h) {
    HWY_UNROLL(4) for (int v = 0; v < Vectors; ++v) {
      const VF before = hn::LoadU(df, out + int64_t{h} * dim + v * kLanes);
      sum[h][v] = hn::Mul(before, hn::Set(df, factor[h]));
    }
  }
  for (int n = 0; n < num; ++n) {
    VF values[Vectors];
    HWY_UNROLL(4) for (int v = 0; v < Vectors; ++v) {
      values[v] = hn::LoadU(df, kv + int64_t{n} * dim + v * kLanes);
    }
    HWY_UNROLL(4) for (int h = 0; h < Heads; ++h) {
      const VF weight = hn::Set(df, p[h][n]);
      HWY_UNROLL(4) for (int v = 0; v < Vectors; ++v) {
        sum[h][v] = hn::MulAdd(weight, values[v], sum[h][v]);
      }
    }
  }
  HWY_UNROLL(4) for (int h = 0; h < Heads; ++h) {
    HWY_UNROLL(4) for (int v = 0; v < Vectors; ++v) {
      hn::StoreU(sum[h][v], df, out + int64_t{h} * dim + v * kLanes);
    }
  }
}

template <int Heads>
HWY_INLINE void WeightedSums(const float (*p)[kTile], const float* factor, int dim, const float* kv,
                             int num, float* out) {
  // 4 heads x 4 vectors need the 32 registers of AVX-512.
  constexpr int kVectors = kLanes == 16 ? 4 : 2;
  int c = 0;
  for (; c + kVectors * kLanes <= dim; c += kVectors * kLanes) {
    WeightedSum<Heads, kVectors>(p, factor, dim, kv + c, num, out + c);
  }
  for (; c + kLanes <= dim; c += kLanes) {
    WeightedSum<Heads, 1>(p, factor, dim, kv + c, num, out + c);
  }
  for (; c < dim; ++c) {
    for (int h = 0; h < Heads; ++h) {
      float sum = out[int64_t{h} * dim + c] * factor[h];
      for (int n = 0; n < num; ++n) sum += p[h][n] * kv[int64_t{n} * dim + c];
      out[int64_t{h} * dim + c] = sum;
    }
  }
}

void AttendTile(const float* q, int num_heads, int dim, const float* kv, int num, float scale,
                float* max, float* den, float* out) {
  alignas(64) float p[kHeadGroup][kTile];
  float factor[kHeadGroup];
  for (int begin = 0; begin < num_heads; begin += kHeadGroup) {
    const int heads = std::min(kHeadGroup, num_heads - begin);
    TileDots(q + int64_t{begin} * dim, heads, dim, kv, num, p);
    for (int h = 0; h < heads; ++h) {
      factor[h] = Softmax(p[h], num, scale, max + begin + h, den + begin + h);
    }
    int h = 0;
    for (; h + 4 <= heads; h += 4) {
      WeightedSums<4>(p + h, factor + h, dim, kv, num, out + int64_t{begin + h} * dim);
    }
    for (; h < heads; ++h) {
      WeightedSums<1>(p + h, factor + h, dim, kv, num, out + int64_t{begin + h} * dim);
    }
  }
}

void FinishAttention(int num_heads, int dim, const float* max, const float* den, const float* sink,
                     bool round, float* out) {
  for (int h = 0; h < num_heads; ++h, out += dim) {
    const VF divisor = hn::Set(df, den[h] + std::exp(sink[h] - max[h]));
    ForVectors(dim, [&](int64_t i, auto load, auto store) HWY_ATTR {
      const VF o = hn::Div(load(out + i), divisor);
      store(round ? Bf16Round(o) : o, out + i);
    });
  }
}

}  // namespace fathom::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::cpu {

HWY_EXPORT(DecodeEntry);
HWY_EXPORT(AttendTile);
HWY_EXPORT(FinishAttention);

void DecodeEntry(const PageFormat& format, EntryRef entry, float* out) {
  HWY_DYNAMIC_DISPATCH(DecodeEntry)(format, entry, out);
}
void AttendTile(const float* q, int num_heads, int dim, const float* kv, int num, float scale,
                float* max, float* den, float* out) {
  HWY_DYNAMIC_DISPATCH(AttendTile)(q, num_heads, dim, kv, num, scale, max, den, out);
}
void FinishAttention(int num_heads, int dim, const float* max, const float* den, const float* sink,
                     bool round, float* out) {
  HWY_DYNAMIC_DISPATCH(FinishAttention)(num_heads, dim, max, den, sink, round, out);
}

}  // namespace fathom::cpu
#endif  // HWY_ONCE
