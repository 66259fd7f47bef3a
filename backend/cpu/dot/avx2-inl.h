// What AVX2 and AVX-VNNI share: 8 rows to a panel.
#pragma once

#include <immintrin.h>

#include "backend/cpu/dot/byte_kernels-inl.h"

namespace fathom::cpu {
namespace {

struct Avx2Base {
  using V = __m256i;
  using F = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kTokens = 2;

  static V Zero() { return _mm256_setzero_si256(); }
  static V Load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static void Store(void* p, V v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
  static F LoadF(const float* p) { return _mm256_loadu_ps(p); }
  static void StoreF(float* p, F v) { _mm256_storeu_ps(p, v); }
  static void Prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
  static V Broadcast(const void* p) {
    int32_t word;
    __builtin_memcpy(&word, p, sizeof(word));
    return _mm256_set1_epi32(word);
  }
  static F BroadcastF(const void* p) {
    float value;
    __builtin_memcpy(&value, p, sizeof(value));
    return _mm256_set1_ps(value);
  }
  static V Shift8(V v) { return _mm256_slli_epi32(v, 8); }
  static V Add(V a, V b) { return _mm256_add_epi32(a, b); }
  static F ToFloat(V v) { return _mm256_cvtepi32_ps(v); }
  static F Mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F MulAdd(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }

  static V LookupLow(V v) {
    const V table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    return _mm256_shuffle_epi8(table, _mm256_and_si256(v, _mm256_set1_epi8(15)));
  }
  static V LookupHigh(V v) { return LookupLow(_mm256_srli_epi16(v, 4)); }

  // 8 x 8 words of 32 bits.
  static void Transpose(V* v) {
    V t[8];
    for (int i = 0; i < 8; i += 4) {
      const V a = _mm256_unpacklo_epi32(v[i], v[i + 1]);
      const V b = _mm256_unpackhi_epi32(v[i], v[i + 1]);
      const V c = _mm256_unpacklo_epi32(v[i + 2], v[i + 3]);
      const V d = _mm256_unpackhi_epi32(v[i + 2], v[i + 3]);
      t[i] = _mm256_unpacklo_epi64(a, c);
      t[i + 1] = _mm256_unpackhi_epi64(a, c);
      t[i + 2] = _mm256_unpacklo_epi64(b, d);
      t[i + 3] = _mm256_unpackhi_epi64(b, d);
    }
    for (int j = 0; j < 4; ++j) {
      v[j] = _mm256_permute2x128_si256(t[j], t[4 + j], 0x20);
      v[4 + j] = _mm256_permute2x128_si256(t[j], t[4 + j], 0x31);
    }
  }

  static void PackScales(const uint8_t* scales, int64_t stride, int num_rows, float* out) {
    PackScalesScalar<kLanes>(scales, stride, num_rows, out);
  }
};

}  // namespace
}  // namespace fathom::cpu
