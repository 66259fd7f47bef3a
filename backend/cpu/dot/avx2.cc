// AVX2 and FMA.
#include "backend/cpu/dot/avx2-inl.h"

namespace fathom::cpu {
namespace {

struct Avx2 : Avx2Base {
  // vpmaddubsw saturates sums of two products at 16 bits. FP4 codes are at most 24, so theirs are
  // at most 24 * 127 * 2; int8 codes need their bits taken in two parts.
  static V Dot(V acc, V a, V b) {
    const V ones = _mm256_set1_epi16(1);
    const V low = _mm256_and_si256(a, _mm256_set1_epi8(0x7F));
    const V high = _mm256_and_si256(_mm256_srli_epi16(a, 7), _mm256_set1_epi8(1));
    const V sums = _mm256_madd_epi16(_mm256_maddubs_epi16(low, b), ones);
    const V tops = _mm256_madd_epi16(_mm256_maddubs_epi16(high, b), ones);
    return _mm256_add_epi32(acc, _mm256_add_epi32(sums, _mm256_slli_epi32(tops, 7)));
  }
};

// FP4 codes have no bit 7.
struct Avx2Fp4 : Avx2 {
  static V Dot(V acc, V a, V b) {
    const V sums = _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1));
    return _mm256_add_epi32(acc, sums);
  }
};

}  // namespace

constinit const ByteKernels kByteKernelsAvx2 = {8, &PackFp4<Avx2>,        nullptr,
                                                0, &MultiplyFp4<Avx2Fp4>, &MultiplyInt8<Avx2>};

}  // namespace fathom::cpu
