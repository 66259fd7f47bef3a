// AVX-512 F, BW, DQ, VL and VNNI: 16 rows to a panel.
#include <immintrin.h>

#include "backend/cpu/dot/byte_kernels-inl.h"

namespace fathom::cpu {
namespace {

struct Avx512Vnni {
  using V = __m512i;
  using F = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kTokens = 6;

  static V Zero() { return _mm512_setzero_si512(); }
  static V Load(const void* p) { return _mm512_loadu_si512(p); }
  static void Store(void* p, V v) { _mm512_storeu_si512(p, v); }
  static F LoadF(const float* p) { return _mm512_loadu_ps(p); }
  static void StoreF(float* p, F v) { _mm512_storeu_ps(p, v); }
  static void Prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
  static V Broadcast(const void* p) {
    int32_t word;
    __builtin_memcpy(&word, p, sizeof(word));
    return _mm512_set1_epi32(word);
  }
  static F BroadcastF(const void* p) {
    float value;
    __builtin_memcpy(&value, p, sizeof(value));
    return _mm512_set1_ps(value);
  }
  // acc + the four products of unsigned a and signed b in each lane.
  static V Dot(V acc, V a, V b) { return _mm512_dpbusd_epi32(acc, a, b); }
  static V Shift8(V v) { return _mm512_slli_epi32(v, 8); }
  static V Add(V a, V b) { return _mm512_add_epi32(a, b); }
  static F ToFloat(V v) { return _mm512_cvtepi32_ps(v); }
  static F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F MulAdd(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }

  // 2 * value + 12 of the codes in the low, or the high four bits of each byte.
  static V Table() {
    return _mm512_broadcast_i32x4(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  }
  static V LookupLow(V v) {
    return _mm512_shuffle_epi8(Table(), _mm512_and_si512(v, _mm512_set1_epi8(15)));
  }
  static V LookupHigh(V v) { return LookupLow(_mm512_srli_epi16(v, 4)); }

  // 16 x 16 words of 32 bits.
  static void Transpose(V* v) {
    V t[16];
    for (int i = 0; i < 16; i += 4) {
      const V a = _mm512_unpacklo_epi32(v[i], v[i + 1]);
      const V b = _mm512_unpackhi_epi32(v[i], v[i + 1]);
      const V c = _mm512_unpacklo_epi32(v[i + 2], v[i + 3]);
      const V d = _mm512_unpackhi_epi32(v[i + 2], v[i + 3]);
      t[i] = _mm512_unpacklo_epi64(a, c);
      t[i + 1] = _mm512_unpackhi_epi64(a, c);
      t[i + 2] = _mm512_unpacklo_epi64(b, d);
      t[i + 3] = _mm512_unpackhi_epi64(b, d);
    }
    // t[4i + j] has column 4b + j of rows 4i .. 4i + 3 in its block b.
    for (int j = 0; j < 4; ++j) {
      const V a = _mm512_shuffle_i32x4(t[j], t[4 + j], 0x88);
      const V b = _mm512_shuffle_i32x4(t[j], t[4 + j], 0xDD);
      const V c = _mm512_shuffle_i32x4(t[8 + j], t[12 + j], 0x88);
      const V d = _mm512_shuffle_i32x4(t[8 + j], t[12 + j], 0xDD);
      v[j] = _mm512_shuffle_i32x4(a, c, 0x88);
      v[4 + j] = _mm512_shuffle_i32x4(b, d, 0x88);
      v[8 + j] = _mm512_shuffle_i32x4(a, c, 0xDD);
      v[12 + j] = _mm512_shuffle_i32x4(b, d, 0xDD);
    }
  }

  // Four scale bytes of each row to four vectors of floats.
  static void PackScales(const uint8_t* scales, int64_t stride, int num_rows, float* out) {
    const __m512i rows = _mm512_mullo_epi32(
        _mm512_min_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                         _mm512_set1_epi32(num_rows - 1)),
        _mm512_set1_epi32(static_cast<int>(stride)));
    const __m512i bytes = _mm512_i32gather_epi32(rows, scales, 1);
    // Bytes 0, 1 and 255 have no exponent field of their own.
    const __m512i shifted = _mm512_sub_epi8(bytes, _mm512_set1_epi8(2));
    if (_mm512_cmpgt_epu8_mask(shifted, _mm512_set1_epi8(static_cast<char>(252))) != 0) {
      PackScalesScalar<kLanes>(scales, stride, num_rows, out);
      return;
    }
    const __m512i halved = _mm512_sub_epi8(bytes, _mm512_set1_epi8(1));
    const __m512i mask = _mm512_set1_epi32(0x7F800000);
    Store(out, _mm512_and_si512(_mm512_slli_epi32(halved, 23), mask));
    Store(out + kLanes, _mm512_and_si512(_mm512_slli_epi32(halved, 15), mask));
    Store(out + 2 * kLanes, _mm512_and_si512(_mm512_slli_epi32(halved, 7), mask));
    Store(out + 3 * kLanes, _mm512_and_si512(_mm512_srli_epi32(halved, 1), mask));
  }
};

// ---- A few inputs: rows are multiplied as they are stored

// 64 bytes of FP4 codes are 128 columns of a row, the low halves the even ones. A vector of sums
// has four partial sums of each of the four groups; those of 16 rows are added up and turned so
// that lanes are rows, as a panel's are.
//
// Memory decides the order: a processor reads ahead where lines of a page come one after the
// other, so four rows are gone through at a time, quarters of the block apart: rows of 1 KB or
// more are then in pages of their own. Their sums wait in the L1 cache for those of the others.

constexpr int64_t kChunk = 2048;  // columns gone through with four rows
constexpr int kMaxDirect = 4;     // inputs

// Digits of 128 columns as rows have them.
struct RowDigits {
  __m512i even, odd;

  RowDigits() = default;
  explicit RowDigits(const int8_t* digits) {
    const __m512i low = _mm512_loadu_si512(digits);
    const __m512i high = _mm512_loadu_si512(digits + 64);
    const __m512i pick =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    even = _mm512_permutex2var_epi32(low, pick, high);
    odd = _mm512_permutex2var_epi32(low, _mm512_or_si512(pick, _mm512_set1_epi32(1)), high);
  }
};

// In each block: the sums of the four lanes of a, b, c and d.
inline __m512i SumBlocks(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
}

// Sums of `first`, or of 256 `first` + `second`, and four rows at byte `at` of each, for kX inputs:
// row i of group j in word i of block j of out[input].
template <bool kTwo, int kX>
inline void QuadSums(const uint8_t* const* rows, int64_t at, const RowDigits* first,
                     const RowDigits* second, __m512i* out) {
  __m512i sum[kX][4];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    const __m512i codes = _mm512_loadu_si512(rows[r] + at);
    const __m512i even = Avx512Vnni::LookupLow(codes);
    const __m512i odd = Avx512Vnni::LookupHigh(codes);
#pragma GCC unroll 4
    for (int t = 0; t < kX; ++t) {
      __m512i acc = _mm512_dpbusd_epi32(_mm512_setzero_si512(), even, first[t].even);
      acc = _mm512_dpbusd_epi32(acc, odd, first[t].odd);
      if constexpr (kTwo) {
        acc = _mm512_dpbusd_epi32(_mm512_slli_epi32(acc, 8), even, second[t].even);
        acc = _mm512_dpbusd_epi32(acc, odd, second[t].odd);
      }
      sum[t][r] = acc;
    }
  }
#pragma GCC unroll 4
  for (int t = 0; t < kX; ++t) out[t] = SumBlocks(sum[t][0], sum[t][1], sum[t][2], sum[t][3]);
}

// Four quads' sums, quad q having rows q, q + 4, q + 8 and q + 12, to a vector of rows per group.
inline void TurnQuads(const __m512i* quads, __m512i* groups) {
  const __m512i a = _mm512_shuffle_i32x4(quads[0], quads[1], 0x88);
  const __m512i b = _mm512_shuffle_i32x4(quads[0], quads[1], 0xDD);
  const __m512i c = _mm512_shuffle_i32x4(quads[2], quads[3], 0x88);
  const __m512i d = _mm512_shuffle_i32x4(quads[2], quads[3], 0xDD);
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  groups[0] = _mm512_permutexvar_epi32(order, _mm512_shuffle_i32x4(a, c, 0x88));
  groups[1] = _mm512_permutexvar_epi32(order, _mm512_shuffle_i32x4(b, d, 0x88));
  groups[2] = _mm512_permutexvar_epi32(order, _mm512_shuffle_i32x4(a, c, 0xDD));
  groups[3] = _mm512_permutexvar_epi32(order, _mm512_shuffle_i32x4(b, d, 0xDD));
}

// total + the four groups from `group` on, of one input.
template <bool kDigits>
inline __m512 AddGroups(const ByteSlot& x, int64_t group, const uint8_t* const (*rows)[4],
                        const __m512i* quads, const float* scale, __m512 total) {
  using S = Avx512Vnni;
  __m512i dots[4], rest[4];
  TurnQuads(quads, dots);
  uint32_t thirds = 0;
  if constexpr (kDigits) {
    __builtin_memcpy(&thirds, x.has_third + group, sizeof(thirds));
    if (__builtin_expect(thirds != 0, 0)) {
      const RowDigits third(x.third + group * kFp4Group);
      __m512i small[4];
      for (int q = 0; q < 4; ++q) {
        QuadSums<false, 1>(rows[q], group * kFp4Group / 2, &third, &third, &small[q]);
      }
      TurnQuads(small, rest);
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512 weights = _mm512_load_ps(scale + 16 * j);
    const __m512i dot = _mm512_add_epi32(dots[j], _mm512_set1_epi32(x.bias[group + j]));
    total = S::MulAdd(S::Mul(S::ToFloat(dot), weights), _mm512_set1_ps(x.scale[group + j]), total);
    if (!kDigits || (thirds >> (8 * j) & 0xFF) == 0) continue;
    const __m512i small = _mm512_add_epi32(rest[j], _mm512_set1_epi32(x.third_bias[group + j]));
    total = S::MulAdd(S::Mul(S::ToFloat(small), weights),
                      _mm512_set1_ps(x.scale[group + j] * 0.125f), total);
  }
  return total;
}

template <bool kDigits, int kX>
inline void MultiplyRows(const uint8_t* packed, const uint8_t* scales, int num_rows, int64_t ahead,
                         const ByteInputs& x, float* sums, int64_t stride) {
  const int64_t row_bytes = x.cols / 2;
  ByteSlot slots[kX];
  __m512 total[kX];
#pragma GCC unroll 4
  for (int t = 0; t < kX; ++t) {
    slots[t] = SlotAt(const_cast<void*>(x.slots[t]), x.cols);
    total[t] = _mm512_setzero_ps();
  }
  const uint8_t* rows[4][4];
  for (int r = 0; r < 16; ++r) {
    rows[r % 4][r / 4] = packed + (r < num_rows ? r : num_rows - 1) * row_bytes;
  }
  __m512i quads[kX][kChunk / 128][4];
  for (int64_t begin = 0; begin < x.cols; begin += kChunk) {
    const int64_t end = begin + kChunk < x.cols ? begin + kChunk : x.cols;
    for (int q = 0; q < 4; ++q) {
      for (int64_t c = begin; c < end; c += 128) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          Avx512Vnni::Prefetch(packed + ahead + (q + 4 * i) * row_bytes + c / 2);
        }
        RowDigits first[kX];
        RowDigits second[kX];
#pragma GCC unroll 4
        for (int t = 0; t < kX; ++t) {
          first[t] = RowDigits(slots[t].first + c);
          if constexpr (kDigits) second[t] = RowDigits(slots[t].second + c);
        }
        __m512i four[kX];
        QuadSums<kDigits, kX>(rows[q], c / 2, first, second, four);
#pragma GCC unroll 4
        for (int t = 0; t < kX; ++t) quads[t][(c - begin) / 128][q] = four[t];
      }
    }
    for (int64_t c = begin; c < end; c += 128) {
      alignas(64) float scale[4 * 16];
      Avx512Vnni::PackScales(scales + c / kFp4Group, x.cols / kFp4Group, num_rows, scale);
#pragma GCC unroll 4
      for (int t = 0; t < kX; ++t) {
        total[t] = AddGroups<kDigits>(slots[t], c / kFp4Group, rows, quads[t][(c - begin) / 128],
                                      scale, total[t]);
      }
    }
  }
#pragma GCC unroll 4
  for (int t = 0; t < kX; ++t) _mm512_storeu_ps(sums + t * stride, total[t]);
}

template <bool kDigits>
inline void MultiplySomeRows(const uint8_t* packed, const uint8_t* scales, int num_rows,
                             int64_t ahead, const ByteInputs& x, float* sums, int64_t stride) {
  switch (x.n) {
    case 1:
      return MultiplyRows<kDigits, 1>(packed, scales, num_rows, ahead, x, sums, stride);
    case 2:
      return MultiplyRows<kDigits, 2>(packed, scales, num_rows, ahead, x, sums, stride);
    case 3:
      return MultiplyRows<kDigits, 3>(packed, scales, num_rows, ahead, x, sums, stride);
    default:
      return MultiplyRows<kDigits, 4>(packed, scales, num_rows, ahead, x, sums, stride);
  }
}

void MultiplyFp4Rows(const uint8_t* packed, const uint8_t* scales, int num_rows, int64_t ahead,
                     const ByteInputs& x, float* sums, int64_t stride) {
  if (x.digits) {
    MultiplySomeRows<true>(packed, scales, num_rows, ahead, x, sums, stride);
  } else {
    MultiplySomeRows<false>(packed, scales, num_rows, ahead, x, sums, stride);
  }
}

}  // namespace

constinit const ByteKernels kByteKernelsAvx512Vnni = {
    16,         &PackFp4<Avx512Vnni>,     &MultiplyFp4Rows,
    kMaxDirect, &MultiplyFp4<Avx512Vnni>, &MultiplyInt8<Avx512Vnni>};

}  // namespace fathom::cpu
