// From stored codes to floats, exactly.

// Include guard that is reset for every target (see hwy/foreach_target.h).
#if defined(FATHOM_BACKEND_CPU_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FATHOM_BACKEND_CPU_DECODE_INL_H_
#undef FATHOM_BACKEND_CPU_DECODE_INL_H_
#else
#define FATHOM_BACKEND_CPU_DECODE_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "base/formats.h"

#include "backend/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom::cpu::HWY_NAMESPACE {

// Whether NaN codes are among `n` e4m3 codes, n a multiple of 64.
HWY_INLINE bool HasE4m3Nan(const uint8_t* codes, int64_t n) {
  const hn::ScalableTag<uint8_t> d8;
  const auto nan = hn::Set(d8, static_cast<uint8_t>(0x7F));
  auto largest = hn::Zero(d8);
  for (int64_t i = 0; i < n; i += static_cast<int64_t>(hn::Lanes(d8))) {
    largest = hn::Max(largest, hn::And(hn::LoadU(d8, codes + i), nan));
  }
  return !hn::AllFalse(d8, hn::Eq(largest, nan));
}

// 2^(byte - 127 + shift), exact; false where that, times the largest code, is no finite float. Such
// scales make no sense but come from a file, so they take the scalar route.
HWY_INLINE bool CombinedScale(uint8_t byte, int shift, float* out) {
  const int exponent = byte + shift;
  if (exponent > 246) return false;
  const auto bits = static_cast<uint32_t>(exponent) << 23;
  std::memcpy(out, &bits, sizeof(bits));
  return true;
}

// Whether all values of an fp8 code with this scale, 2^-9 of it the smallest, are normal binary32
// numbers: then only its exponent needs to be moved, by `scale_byte` - 127 + 120.
HWY_INLINE bool OrdinaryScale(uint8_t scale_byte) {
  return scale_byte >= 9 + 1 && scale_byte <= 127 - 120 + 254 - 15;
}

// `n` codes of one scale, n a multiple of 64. The caller has looked for NaN codes.
HWY_INLINE void DecodeE4m3(const uint8_t* codes, int n, uint8_t scale_byte, bool has_nan,
                           float* out) {
  float scale = 0.0f;
  if (!CombinedScale(scale_byte, 8, &scale) || has_nan) {
    for (int i = 0; i < n; ++i) out[i] = E4m3ToFloat(codes[i]) * Ue8m0ToFloat(scale_byte);
    return;
  }
  const hn::Repartition<int16_t, DF> d16;
  const hn::Rebind<int8_t, decltype(d16)> d8;
  const hn::Half<decltype(d16)> d16_half;
  const hn::Rebind<hwy::float16_t, DF> df16;
  const VF factor = hn::Set(df, scale);
  const auto mask = hn::Set(d16, static_cast<int16_t>(0xBFFF));
  for (int i = 0; i < n; i += 2 * kLanes) {
    // An e4m3 code is a binary16 with a shorter exponent and mantissa, subnormals included: moved
    // to the place of those it is the value times 2^-8. Sign extension leaves a copy of the sign in
    // bit 14, the highest exponent bit.
    const auto c = hn::LoadU(d8, reinterpret_cast<const int8_t*>(codes + i));
    const auto bits = hn::And(hn::ShiftLeft<7>(hn::PromoteTo(d16, c)), mask);
    const auto lower = hn::PromoteTo(df, hn::BitCast(df16, hn::LowerHalf(d16_half, bits)));
    const auto upper = hn::PromoteTo(df, hn::BitCast(df16, hn::UpperHalf(d16_half, bits)));
    hn::StoreU(hn::Mul(lower, factor), df, out + i);
    hn::StoreU(hn::Mul(upper, factor), df, out + i + kLanes);
  }
}

#if HWY_MAX_BYTES >= 64

// All ue8m0 values, so that a scale is broadcast from memory.
struct ScaleTable {
  constexpr ScaleTable() {
    for (int byte = 0; byte < 256; ++byte) values[byte] = Ue8m0ToFloat(static_cast<uint8_t>(byte));
  }
  float values[256] = {};
};
inline constexpr ScaleTable kScales;

// 32 values of one scale, by table lookup in a register of 16 floats.
HWY_INLINE void DecodeE2m1(const uint8_t* packed, uint8_t scale_byte, float* out) {
  const hn::Full128<uint8_t> d8;
  const hn::RebindToUnsigned<DF> du32;
  // So that interleaving within 128-bit blocks leaves the values in order.
  alignas(16) static constexpr uint8_t kOrder[16] = {0, 1, 8,  9,  2, 3, 10, 11,
                                                     4, 5, 12, 13, 6, 7, 14, 15};
  const VF table =
      hn::Mul(hn::LoadU(df, internal::kE2m1Values.data()), hn::Set(df, kScales.values[scale_byte]));
  const auto bytes =
      hn::PromoteTo(du32, hn::TableLookupBytes(hn::LoadU(d8, packed), hn::Load(d8, kOrder)));
  const auto low = hn::And(bytes, hn::Set(du32, 15u));
  const VF even = hn::TableLookupLanes(table, hn::IndicesFromVec(df, low));
  const VF odd = hn::TableLookupLanes(table, hn::IndicesFromVec(df, hn::ShiftRight<4>(bytes)));
  hn::StoreU(hn::InterleaveLower(df, even, odd), df, out);
  hn::StoreU(hn::InterleaveUpper(df, even, odd), df, out + kLanes);
}

#else

// 32 values of one scale.
HWY_INLINE void DecodeE2m1(const uint8_t* packed, uint8_t scale_byte, float* out) {
  float scale = 0.0f;
  if (!CombinedScale(scale_byte, 14, &scale)) {
    for (int i = 0; i < 16; ++i) {
      out[2 * i] = E2m1ToFloat(packed[i]) * Ue8m0ToFloat(scale_byte);
      out[2 * i + 1] = E2m1ToFloat(static_cast<uint8_t>(packed[i] >> 4)) * Ue8m0ToFloat(scale_byte);
    }
    return;
  }
  const hn::RebindToUnsigned<DF> du32;
  const hn::Rebind<uint8_t, DF> d8;
  const hn::Repartition<int16_t, DF> d16;
  const hn::Half<decltype(d16)> d16_half;
  const hn::Rebind<hwy::float16_t, DF> df16;
  const VF factor = hn::Set(df, scale);
  for (int i = 0; i < 16; i += kLanes) {
    // Each byte becomes two 16-bit lanes with a nibble in the upper four bits: the low nibble in
    // the even lane. Shifted by three, sign and code stand where binary16 has its sign, the two
    // lowest exponent bits and the highest mantissa bit: the value times 2^-14, subnormal 0.5
    // included.
    const auto bytes = hn::PromoteTo(du32, hn::LoadU(d8, packed + i));
    const auto nibbles = hn::Or(hn::ShiftLeft<12>(bytes), hn::ShiftLeft<24>(bytes));
    const auto bits = hn::And(hn::ShiftRight<3>(hn::BitCast(d16, nibbles)),
                              hn::Set(d16, static_cast<int16_t>(0x8E00)));
    const auto lower = hn::PromoteTo(df, hn::BitCast(df16, hn::LowerHalf(d16_half, bits)));
    const auto upper = hn::PromoteTo(df, hn::BitCast(df16, hn::UpperHalf(d16_half, bits)));
    hn::StoreU(hn::Mul(lower, factor), df, out + 2 * i);
    hn::StoreU(hn::Mul(upper, factor), df, out + 2 * i + kLanes);
  }
}

#endif  // HWY_MAX_BYTES

HWY_INLINE void DecodeBf16(const uint16_t* bits, int64_t n, float* out) {
  const hn::RebindToUnsigned<DF> du32;
  const hn::Rebind<uint16_t, DF> du16;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto u = hn::ShiftLeft<16>(hn::PromoteTo(du32, hn::LoadU(du16, bits + i)));
    hn::StoreU(hn::BitCast(df, u), df, out + i);
  }
  for (; i < n; ++i) out[i] = Bf16ToFloat(bits[i]);
}

}  // namespace fathom::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
