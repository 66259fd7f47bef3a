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
    for (int r = 0; r < kL; ++r) {
      v[r] = S::Load(rows[r] + c);
      S::Prefetch(rows[r] + c + ahead);
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
inline void MultiplyTile(const PanelPair& w, const ByteRow* x, int64_t first_group, int64_t groups,
                         float* sums, int64_t stride) {
  using V = typename S::V;
  using F = typename S::F;
  constexpr int kL = S::kLanes;
  constexpr int kGroup = 4 * kPieces;
  F total[2][kT];
  for (int t = 0; t < kT; ++t) {
    total[0][t] = S::LoadF(sums + t * stride);
    total[1][t] = S::LoadF(sums + t * stride + kL);
  }
  const uint8_t* w0 = w.codes[0];
  const uint8_t* w1 = w.codes[1];
  for (int64_t g = 0; g < groups; ++g, w0 += kGroup * kL, w1 += kGroup * kL) {
    const int64_t at = first_group + g;
    V acc[2][kT];
    for (int t = 0; t < kT; ++t) acc[0][t] = acc[1][t] = S::Zero();
    const auto add = [&](auto digits) __attribute__((always_inline)) {
      for (int k = 0; k < kPieces; ++k) {
        const V a = S::Load(w0 + 4 * kL * k);
        const V b = S::Load(w1 + 4 * kL * k);
        for (int t = 0; t < kT; ++t) {
          const V piece = S::Broadcast(digits(t) + at * kGroup + 4 * k);
          acc[0][t] = S::Dot(acc[0][t], a, piece);
          acc[1][t] = S::Dot(acc[1][t], b, piece);
        }
      }
    };
    add([&](int t) __attribute__((always_inline)) { return x[t].first; });
    if constexpr (kDigits) {
      for (int t = 0; t < kT; ++t) {
        acc[0][t] = S::Shift8(acc[0][t]);
        acc[1][t] = S::Shift8(acc[1][t]);
      }
      add([&](int t) __attribute__((always_inline)) { return x[t].second; });
    }
    const F scale0 = S::LoadF(w.scales[0] + g * kL);
    const F scale1 = S::LoadF(w.scales[1] + g * kL);
    for (int t = 0; t < kT; ++t) {
      const V bias = S::Broadcast(x[t].bias + at);
      const F scale = S::BroadcastF(x[t].scale + at);
      total[0][t] =
          S::MulAdd(S::Mul(S::ToFloat(S::Add(acc[0][t], bias)), scale0), scale, total[0][t]);
      total[1][t] =
          S::MulAdd(S::Mul(S::ToFloat(S::Add(acc[1][t], bias)), scale1), scale, total[1][t]);
    }
    if constexpr (kDigits) {
      for (int t = 0; t < kT; ++t) {
        if (x[t].has_third[at] == 0) continue;
        V rest[2] = {S::Broadcast(x[t].third_bias + at), S::Broadcast(x[t].third_bias + at)};
        for (int k = 0; k < kPieces; ++k) {
          const V piece = S::Broadcast(x[t].third + at * kGroup + 4 * k);
          rest[0] = S::Dot(rest[0], S::Load(w0 + 4 * kL * k), piece);
          rest[1] = S::Dot(rest[1], S::Load(w1 + 4 * kL * k), piece);
        }
        const float eighth = x[t].scale[at] * 0.125f;
        const F scale = S::BroadcastF(&eighth);
        total[0][t] = S::MulAdd(S::Mul(S::ToFloat(rest[0]), scale0), scale, total[0][t]);
        total[1][t] = S::MulAdd(S::Mul(S::ToFloat(rest[1]), scale1), scale, total[1][t]);
      }
    }
  }
  for (int t = 0; t < kT; ++t) {
    S::StoreF(sums + t * stride, total[0][t]);
    S::StoreF(sums + t * stride + kL, total[1][t]);
  }
}

template <typename S, int kPieces, bool kDigits, int kT = S::kTokens>
inline void MultiplyTiles(const PanelPair& w, const ByteRow* x, int num_x, int64_t first_group,
                          int64_t groups, float* sums, int64_t stride) {
  int i = 0;
  for (; i + kT <= num_x; i += kT) {
    MultiplyTile<S, kPieces, kDigits, kT>(w, x + i, first_group, groups, sums + i * stride, stride);
  }
  if constexpr (kT > 1) {
    if (i < num_x) {
      MultiplyTiles<S, kPieces, kDigits, kT - 1>(w, x + i, num_x - i, first_group, groups,
                                                 sums + i * stride, stride);
    }
  }
}

template <typename S>
void MultiplyFp4(const PanelPair& w, const ByteRow* x, int num_x, int64_t first_group,
                 int64_t groups, float* sums, int64_t stride) {
  if (num_x == 0) return;
  if (x[0].second != nullptr) {
    MultiplyTiles<S, kFp4Group / 4, true>(w, x, num_x, first_group, groups, sums, stride);
  } else {
    MultiplyTiles<S, kFp4Group / 4, false>(w, x, num_x, first_group, groups, sums, stride);
  }
}

template <typename S>
void MultiplyInt8(const PanelPair& w, const ByteRow* x, int num_x, int64_t first_group,
                  int64_t groups, float* sums, int64_t stride) {
  MultiplyTiles<S, kInt8Group / 4, false>(w, x, num_x, first_group, groups, sums, stride);
}

template <typename S>
constexpr ByteKernels MakeByteKernels() {
  return {S::kLanes, &PackFp4<S>, &MultiplyFp4<S>, &MultiplyInt8<S>};
}

}  // namespace
}  // namespace fathom::cpu
