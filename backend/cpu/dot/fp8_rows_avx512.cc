// AVX-512 F, BW and VBMI.
#include <immintrin.h>

#include "backend/cpu/dot/fp8_rows.h"

namespace fathom::cpu {
namespace {

constexpr int kPass = 4;         // inputs that are multiplied as codes are decoded
constexpr int64_t kBlock = 512;  // columns of decoded weights that stay in the L1 cache

// Byte scales for which all codes but zeros are normal numbers, and so are their products with 2^8.
constexpr bool InRange(uint8_t scale) { return scale >= 10 && scale <= 238; }

// Decodes 64 codes at a time.
class Decoder {
 public:
  Decoder() {
    // Column c of 32 in the upper byte of word 2c, column 16 + c in that of word 2c + 1: words
    // become two vectors of floats in the order of columns.
    alignas(64) uint8_t order[2][64];
    for (int c = 0; c < 16; ++c) {
      for (int half = 0; half < 2; ++half) {
        order[half][4 * c] = order[half][4 * c + 1] = static_cast<uint8_t>(32 * half + c);
        order[half][4 * c + 2] = order[half][4 * c + 3] = static_cast<uint8_t>(32 * half + 16 + c);
      }
    }
    orders_[0] = _mm512_load_si512(order[0]);
    orders_[1] = _mm512_load_si512(order[1]);
  }

  void SetScale(uint8_t scale) {
    // Exponents of e4m3 have a bias of 7, those of bfloat16 and of scales one of 127.
    exponent_ = _mm512_set1_epi16(static_cast<short>((scale - 7) << 7));
    scale_ = scale;
  }

  // Four vectors of weights. Collects NaN codes.
  [[gnu::always_inline]] void Decode(const uint8_t* codes, __m512* w) {
    const __m512i all = _mm512_loadu_si512(codes);
    const __m512i a = _mm512_and_si512(all, _mm512_set1_epi8(0x7F));
    // Zeros, subnormals and NaN are no exponent and mantissa that only need to be moved.
    const __mmask64 special =
        _mm512_cmpgt_epu8_mask(_mm512_sub_epi8(a, _mm512_set1_epi8(8)), _mm512_set1_epi8(0x76));
    if (__builtin_expect(special == 0, 1)) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const __m512i moved = _mm512_srai_epi16(_mm512_permutexvar_epi8(orders_[half], all), 4);
        const __m512i words = _mm512_add_epi16(
            _mm512_and_si512(moved, _mm512_set1_epi16(static_cast<short>(0x87F0))), exponent_);
        w[2 * half] = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
        w[2 * half + 1] = _mm512_castsi512_ps(
            _mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
      }
    } else {
      nan_ |= _mm512_cmpeq_epi8_mask(a, _mm512_set1_epi8(0x7F));
      // As binary16, which has room for every code: its value / 256.
      const __m512 factor = _mm512_castsi512_ps(_mm512_set1_epi32((scale_ + 8) << 23));
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        const __m256i wide =
            _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + 16 * v)));
        const __m256i half = _mm256_and_si256(_mm256_slli_epi16(wide, 7),
                                              _mm256_set1_epi16(static_cast<short>(0xBFFF)));
        w[v] = _mm512_mul_ps(_mm512_cvtph_ps(half), factor);
      }
    }
  }
  [[nodiscard]] bool found_nan() const { return nan_ != 0; }

 private:
  __m512i orders_[2];
  __m512i exponent_ = _mm512_setzero_si512();
  int scale_ = 0;
  __mmask64 nan_ = 0;
};

template <int kX>
using Sums = __m512[4][kX];

template <int kX>
inline void LoadSums(const float* from, Sums<kX>& sum) {
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
#pragma GCC unroll 4
    for (int i = 0; i < kX; ++i) sum[r][i] = _mm512_loadu_ps(from + (4 * i + r) * 16);
  }
}

template <int kX>
inline void StoreSums(const Sums<kX>& sum, float* to) {
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
#pragma GCC unroll 4
    for (int i = 0; i < kX; ++i) _mm512_storeu_ps(to + (4 * i + r) * 16, sum[r][i]);
  }
}

// Columns [begin, end) of four rows; the weights are kept in `kept`, [4][kBlock], where asked for.
template <int kX, bool kKeep>
inline void DecodeAndMultiply(Decoder& decoder, const uint8_t* const* rows, const uint8_t* scales,
                              int64_t begin, int64_t end, const float* const* x, int64_t ahead,
                              float* kept, float* sums) {
  Sums<kX> sum;
  LoadSums<kX>(sums, sum);
  for (int64_t block = begin; block < end; block += 128) {
    decoder.SetScale(scales[block / 128]);
    for (int64_t k = block; k < block + 128; k += 64) {
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        _mm_prefetch(reinterpret_cast<const char*>(rows[r] + ahead + k), _MM_HINT_T1);
        __m512 w[4];
        decoder.Decode(rows[r] + k, w);
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) {
          if constexpr (kKeep) _mm512_store_ps(kept + r * kBlock + k - begin + 16 * v, w[v]);
#pragma GCC unroll 4
          for (int i = 0; i < kX; ++i) {
            sum[r][i] = _mm512_fmadd_ps(w[v], _mm512_loadu_ps(x[i] + k + 16 * v), sum[r][i]);
          }
        }
      }
    }
  }
  StoreSums<kX>(sum, sums);
}

// The same columns for other inputs.
template <int kX>
inline void MultiplyKept(const float* kept, int64_t begin, int64_t end, const float* const* x,
                         float* sums) {
  Sums<kX> sum;
  LoadSums<kX>(sums, sum);
  for (int64_t k = begin; k < end; k += 16) {
    __m512 w[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) w[r] = _mm512_load_ps(kept + r * kBlock + k - begin);
#pragma GCC unroll 4
    for (int i = 0; i < kX; ++i) {
      const __m512 input = _mm512_loadu_ps(x[i] + k);
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) sum[r][i] = _mm512_fmadd_ps(w[r], input, sum[r][i]);
    }
  }
  StoreSums<kX>(sum, sums);
}

inline void MultiplyKeptBy(int num_x, const float* kept, int64_t begin, int64_t end,
                           const float* const* x, float* sums) {
  switch (num_x) {
    case 1:
      return MultiplyKept<1>(kept, begin, end, x, sums);
    case 2:
      return MultiplyKept<2>(kept, begin, end, x, sums);
    case 3:
      return MultiplyKept<3>(kept, begin, end, x, sums);
    default:
      return MultiplyKept<4>(kept, begin, end, x, sums);
  }
}

template <int kX>
inline bool FourRows(const uint8_t* const* rows, const uint8_t* scales, int64_t cols,
                     const float* const* x, int num_x, int64_t ahead, float* sums) {
  for (int64_t b = 0; b < cols / 128; ++b) {
    if (!InRange(scales[b])) return false;
  }
  for (int i = 0; i < 4 * num_x; ++i) _mm512_storeu_ps(sums + 16 * i, _mm512_setzero_ps());
  Decoder decoder;
  if (num_x <= kX) {
    DecodeAndMultiply<kX, false>(decoder, rows, scales, 0, cols, x, ahead, nullptr, sums);
    return !decoder.found_nan();
  }
  alignas(64) float kept[4 * kBlock];
  for (int64_t begin = 0; begin < cols; begin += kBlock) {
    const int64_t end = begin + kBlock < cols ? begin + kBlock : cols;
    DecodeAndMultiply<kX, true>(decoder, rows, scales, begin, end, x, ahead, kept, sums);
    MultiplyKeptBy(num_x - kX, kept, begin, end, x + kX, sums + 4 * kX * 16);
  }
  return !decoder.found_nan();
}

}  // namespace

bool Fp8RowsAvx512(const uint8_t* const* rows, const uint8_t* scales, int64_t cols,
                   const float* const* x, int num_x, int64_t ahead, float* sums) {
  switch (num_x) {
    case 1:
      return FourRows<1>(rows, scales, cols, x, num_x, ahead, sums);
    case 2:
      return FourRows<2>(rows, scales, cols, x, num_x, ahead, sums);
    case 3:
      return FourRows<3>(rows, scales, cols, x, num_x, ahead, sums);
    default:
      return FourRows<kPass>(rows, scales, cols, x, num_x, ahead, sums);
  }
}

}  // namespace fathom::cpu
