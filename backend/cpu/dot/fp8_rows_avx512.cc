// AVX-512 F, BW and VBMI.
#include <immintrin.h>

#include "backend/cpu/dot/fp8_rows.h"

namespace fathom::cpu {
namespace {

template <int kX>
inline bool FourRows(const uint8_t* const* rows, int64_t cols, const float* const* x, int64_t ahead,
                     float* sums) {
  __m512 sum[4][kX];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
#pragma GCC unroll 4
    for (int i = 0; i < kX; ++i) sum[r][i] = _mm512_setzero_ps();
  }
  // Column c of 32 in the upper byte of word 2c, column 16 + c in that of word 2c + 1: words become
  // two vectors of floats in the order of columns.
  alignas(64) uint8_t order[2][64];
  for (int c = 0; c < 16; ++c) {
    for (int half = 0; half < 2; ++half) {
      order[half][4 * c] = order[half][4 * c + 1] = static_cast<uint8_t>(32 * half + c);
      order[half][4 * c + 2] = order[half][4 * c + 3] = static_cast<uint8_t>(32 * half + 16 + c);
    }
  }
  const __m512i orders[2] = {_mm512_load_si512(order[0]), _mm512_load_si512(order[1])};
  const __m512i magnitude = _mm512_set1_epi8(0x7F);
  const __m512i code_bits = _mm512_set1_epi16(static_cast<short>(0x87F0));
  const __m512i exponent = _mm512_set1_epi16(0x3800);
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
  __mmask64 nan = 0;
  for (int64_t k = 0; k < cols; k += 64) {
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      // In the order of addresses: with short rows the hardware gives up on four streams in a page.
      _mm_prefetch(reinterpret_cast<const char*>(rows[0] + ahead + 4 * k + 64 * r), _MM_HINT_T1);
      const __m512i codes = _mm512_loadu_si512(rows[r] + k);
      const __m512i a = _mm512_and_si512(codes, magnitude);
      // Zeros, subnormals and NaN are no exponent and mantissa that only need to be moved.
      const __mmask64 special =
          _mm512_cmpgt_epu8_mask(_mm512_sub_epi8(a, _mm512_set1_epi8(8)), _mm512_set1_epi8(0x76));
      if (__builtin_expect(special == 0, 1)) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          const __m512i moved = _mm512_srai_epi16(_mm512_permutexvar_epi8(orders[half], codes), 4);
          // (moved & code_bits) | exponent
          const __m512i words = _mm512_ternarylogic_epi32(moved, code_bits, exponent, 0xEA);
          const __m512 low = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
          const __m512 high = _mm512_castsi512_ps(_mm512_and_si512(words, upper));
#pragma GCC unroll 4
          for (int i = 0; i < kX; ++i) {
            const float* at = x[i] + k + 32 * half;
            sum[r][i] = _mm512_fmadd_ps(low, _mm512_loadu_ps(at), sum[r][i]);
            sum[r][i] = _mm512_fmadd_ps(high, _mm512_loadu_ps(at + 16), sum[r][i]);
          }
        }
      } else {
        nan |= _mm512_cmpeq_epi8_mask(a, magnitude);
        // As binary16, which has room for every code: also its value / 256.
        for (int v = 0; v < 4; ++v) {
          const __m256i wide = _mm256_cvtepi8_epi16(
              _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[r] + k + 16 * v)));
          const __m512 w = _mm512_cvtph_ps(_mm256_and_si256(
              _mm256_slli_epi16(wide, 7), _mm256_set1_epi16(static_cast<short>(0xBFFF))));
#pragma GCC unroll 4
          for (int i = 0; i < kX; ++i) {
            sum[r][i] = _mm512_fmadd_ps(w, _mm512_loadu_ps(x[i] + k + 16 * v), sum[r][i]);
          }
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
#pragma GCC unroll 4
    for (int i = 0; i < kX; ++i) _mm512_storeu_ps(sums + (4 * i + r) * 16, sum[r][i]);
  }
  return nan == 0;
}

}  // namespace

bool Fp8RowsAvx512(const uint8_t* const* rows, int64_t cols, const float* const* x, int num_x,
                   int64_t ahead, float* sums) {
  switch (num_x) {
    case 1:
      return FourRows<1>(rows, cols, x, ahead, sums);
    case 2:
      return FourRows<2>(rows, cols, x, ahead, sums);
    case 3:
      return FourRows<3>(rows, cols, x, ahead, sums);
    default:
      return FourRows<4>(rows, cols, x, ahead, sums);
  }
}

}  // namespace fathom::cpu
