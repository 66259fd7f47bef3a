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
  static void Prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
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

}  // namespace

const ByteKernels kByteKernelsAvx512Vnni = MakeByteKernels<Avx512Vnni>();

}  // namespace fathom::cpu
