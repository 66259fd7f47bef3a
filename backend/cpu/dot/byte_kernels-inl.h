// The byte kernels for one instruction set, described by a trait class `S`.
//
// Included once by each translation unit of this folder, which is compiled with flags of its own.
// Everything here has internal linkage, and nothing here or in those files uses templates of the
// standard library: the linker keeps one copy of those, which may be the one with instructions that
// this machine has not got.
//
// S has V (a vector of int32), F (of float), kLanes, kTokens (inputs that fit in registers beside
// two panels) and the functions used below.
#pragma once

#include <cstdint>

#include "backend/cpu/dot/byte_kernels.h"

namespace fathom::cpu {
namespace {

// 2^(byte - 127) / 2, the value of an e2m1 code being half of its integer.
inline float HalfScale(uint8_t byte) {
  union {
    uint32_t bits;
    float value;
  } u;
  // 2^-128 for byte 0, 2^-127 for byte 1: subnormal. 255 has no value.
  u.bits = byte == 255 ? 0x7FC00000u : byte < 2 ? 0x00200000u << byte : (byte - 1u) << 23;
  return u.value;
}

template <typename S>
void PackFp4(const uint8_t* packed, const uint8_t* scales, int64_t cols, int num_rows,
             int64_t begin, int64_t count, int64_t ahead, uint8_t* out, float* out_scales) {
  using V = typename S::V;
  constexpr int kL = S::kLanes;
  const int64_t row_bytes = cols / 2;
  const uint8_t* rows[kL];
  for (int r = 0; r < kL; ++r) {
    rows[r] = packed + (r < num_rows ? r : num_rows - 1) * row_bytes + begin / 2;
  }
  for (int64_t c = 0; c < count / 2; c += 4 * kL, out += 8 * kL * kL) {
    V v[kL];
    for (int r = 0; r < kL; ++r) v[r] = S::Load(rows[r] + c);
    // As many bytes as were read, but in the order of addresses, which memory likes better.
    constexpr int kStep = 4 * kL * kL;
    for (int line = 0; line < kStep; line += 64) {
      S::Prefetch(packed + ahead + (begin / 2 + c) * kL + line);
    }
    S::Transpose(v);
    for (int k = 0; k < kL; ++k) {
      S::Store(out + 8 * kL * k, S::LookupLow(v[k]));
      S::Store(out + 8 * kL * k + 4 * kL, S::LookupHigh(v[k]));
    }
  }
  const int64_t scale_bytes = cols / kFp4Group;
  const int64_t first = begin / kFp4Group;
  const int64_t groups = count / kFp4Group;
  // Four groups at a time are four bytes of every row.
  for (int64_t g = 0; g < groups; g += 4) {
    S::PackScales(scales + first + g, scale_bytes, num_rows, out_scales + g * kL);
  }
}

// What all traits can do for PackScales: four bytes of each row, one by one.
template <int kL>
inline void PackScalesScalar(const uint8_t* scales, int64_t stride, int num_rows, float* out) {
  for (int r = 0; r < kL; ++r) {
    const uint8_t* row = scales + (r < num_rows ? r : num_rows - 1) * stride;
    for (int g = 0; g < 4; ++g) out[g * kL + r] = HalfScale(row[g]);
  }
}

template <typename S, int kPieces, bool kDigits, int kT>
inline void MultiplyTile(const PanelPair& w, const ByteInputs& x, int64_t first_group,
                         int64_t groups, float* sums, int64_t stride) {
  using V = typename S::V;
  using F = typename S::F;
  constexpr int kL = S::kLanes;
  constexpr int kGroup = 4 * kPieces;
  const int8_t* slots[kT];
  F total[2][kT];
  for (int t = 0; t < kT; ++t) {
    slots[t] = static_cast<const int8_t*>(x.slots[t]);
    total[0][t] = S::LoadF(sums + t * stride);
    total[1][t] = S::LoadF(sums + t * stride + kL);
  }
  // Where the parts of a slot begin; see ByteInputs.
  const int64_t group_words = x.cols / kFp4Group * 4;
  const int64_t bias_at = 3 * x.cols;
  const int64_t scale_at = bias_at + 2 * group_words;
  const int64_t flags_at = bias_at + 3 * group_words;
  // The inputs that come next, where there are any, are on their way meanwhile.
  const void* const* next = x.slots + (x.n >= 2 * kT ? kT : 0);
  const uint8_t* w0 = w.codes[0];
  const uint8_t* w1 = w.codes[1];
  for (int64_t g = 0; g < groups; ++g, w0 += kGroup * kL, w1 += kGroup * kL) {
    const int64_t at = first_group + g;
    if (kT > 1 && at % 2 == 0) {
      for (int t = 0; t < kT; ++t) {
        const int8_t* p = static_cast<const int8_t*>(next[t]) + at * kGroup;
        S::Prefetch(p);
        if (kDigits) S::Prefetch(p + x.cols);
      }
    }
    V acc[2][kT];
    for (int t = 0; t < kT; ++t) {
      // Sums of two digits are shifted first.
      acc[0][t] = acc[1][t] = kDigits ? S::Zero() : S::Broadcast(slots[t] + bias_at + 4 * at);
    }
    const auto add = [&](int64_t offset) __attribute__((always_inline)) {
      for (int k = 0; k < kPieces; ++k) {
        const V a = S::Load(w0 + 4 * kL * k);
        const V b = S::Load(w1 + 4 * kL * k);
        for (int t = 0; t < kT; ++t) {
          const V piece = S::Broadcast(slots[t] + offset + 4 * k);
          acc[0][t] = S::Dot(acc[0][t], a, piece);
          acc[1][t] = S::Dot(acc[1][t], b, piece);
        }
      }
    };
    add(at * kGroup);
    if constexpr (kDigits) {
      for (int t = 0; t < kT; ++t) {
        acc[0][t] = S::Shift8(acc[0][t]);
        acc[1][t] = S::Shift8(acc[1][t]);
      }
      // Or the compiler keeps the weights of the first pass, on the stack.
      asm volatile("" ::: "memory");
      add(x.cols + at * kGroup);
    }
    const F scale0 = S::LoadF(w.scales[0] + g * kL);
    const F scale1 = S::LoadF(w.scales[1] + g * kL);
    unsigned thirds = 0;
    for (int t = 0; t < kT; ++t) {
      if (kDigits) {
        const V bias = S::Broadcast(slots[t] + bias_at + 4 * at);
        acc[0][t] = S::Add(acc[0][t], bias);
        acc[1][t] = S::Add(acc[1][t], bias);
      }
      const F scale = S::BroadcastF(slots[t] + scale_at + 4 * at);
      total[0][t] = S::MulAdd(S::Mul(S::ToFloat(acc[0][t]), scale0), scale, total[0][t]);
      total[1][t] = S::MulAdd(S::Mul(S::ToFloat(acc[1][t]), scale1), scale, total[1][t]);
      if (kDigits) thirds |= static_cast<unsigned>(slots[t][flags_at + at]) << t;
    }
    if (!kDigits || thirds == 0) continue;
      // Unrolled: an index that is not constant would put all totals into memory.
#pragma GCC unroll 16
    for (int t = 0; t < kT; ++t) {
      if ((thirds >> t & 1u) == 0) continue;
      const V bias = S::Broadcast(slots[t] + bias_at + group_words + 4 * at);
      V rest[2] = {bias, bias};
      for (int k = 0; k < kPieces; ++k) {
        const V piece = S::Broadcast(slots[t] + 2 * x.cols + at * kGroup + 4 * k);
        rest[0] = S::Dot(rest[0], S::Load(w0 + 4 * kL * k), piece);
        rest[1] = S::Dot(rest[1], S::Load(w1 + 4 * kL * k), piece);
      }
      float eighth;
      __builtin_memcpy(&eighth, slots[t] + scale_at + 4 * at, sizeof(eighth));
      eighth *= 0.125f;
      const F scale = S::BroadcastF(&eighth);
      total[0][t] = S::MulAdd(S::Mul(S::ToFloat(rest[0]), scale0), scale, total[0][t]);
      total[1][t] = S::MulAdd(S::Mul(S::ToFloat(rest[1]), scale1), scale, total[1][t]);
    }
  }
  for (int t = 0; t < kT; ++t) {
    S::StoreF(sums + t * stride, total[0][t]);
    S::StoreF(sums + t * stride + kL, total[1][t]);
  }
}

template <typename S, int kPieces, bool kDigits, int kT = S::kTokens>
inline void MultiplyTiles(const PanelPair& w, ByteInputs x, int64_t first_group, int64_t groups,
                          float* sums, int64_t stride) {
  for (; x.n >= kT; x.n -= kT, x.slots += kT, sums += kT * stride) {
    MultiplyTile<S, kPieces, kDigits, kT>(w, x, first_group, groups, sums, stride);
  }
  if constexpr (kT > 1) {
    if (x.n > 0) {
      MultiplyTiles<S, kPieces, kDigits, kT - 1>(w, x, first_group, groups, sums, stride);
    }
  }
}

template <typename S>
void MultiplyFp4(const PanelPair& w, const ByteInputs& x, int64_t first_group, int64_t groups,
                 float* sums, int64_t stride) {
  if (x.digits) {
    MultiplyTiles<S, kFp4Group / 4, true>(w, x, first_group, groups, sums, stride);
  } else {
    MultiplyTiles<S, kFp4Group / 4, false>(w, x, first_group, groups, sums, stride);
  }
}

template <typename S>
void MultiplyInt8(const PanelPair& w, const ByteInputs& x, int64_t first_group, int64_t groups,
                  float* sums, int64_t stride) {
  MultiplyTiles<S, kInt8Group / 4, false>(w, x, first_group, groups, sums, stride);
}

template <typename S>
constexpr ByteKernels MakeByteKernels() {
  return {S::kLanes, &PackFp4<S>, nullptr, 0, &MultiplyFp4<S>, &MultiplyInt8<S>};
}

}  // namespace
}  // namespace fathom::cpu
