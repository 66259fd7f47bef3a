#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "backend/cpu/kernels.h"
#include "base/check.h"
#include "base/formats.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/kernels_matmul.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "backend/cpu/decode-inl.h"
#include "backend/cpu/dot-inl.h"
#include "backend/cpu/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace fathom::cpu::HWY_NAMESPACE {

void DecodeRows(const WeightView& weight, int row, int num_rows, float* out) {
  const int64_t cols = weight.cols;
  for (int64_t r = row; r < row + num_rows; ++r, out += cols) {
    switch (weight.dtype) {
      case DType::kF8E4M3: {
        const uint8_t* codes = static_cast<const uint8_t*>(weight.data) + r * cols;
        const uint8_t* scales = weight.scale + r / 128 * (cols / 128);
        for (int64_t b = 0; b < cols / 128; ++b) {
          DecodeE4m3(codes + 128 * b, 128, scales[b], out + 128 * b);
        }
        break;
      }
      case DType::kI8: {
        const uint8_t* packed = static_cast<const uint8_t*>(weight.data) + r * (cols / 2);
        const uint8_t* scales = weight.scale + r * (cols / 32);
        for (int64_t b = 0; b < cols / 32; ++b) {
          DecodeE2m1(packed + 16 * b, scales[b], out + 32 * b);
        }
        break;
      }
      case DType::kBF16:
        DecodeBf16(static_cast<const uint16_t*>(weight.data) + r * cols, cols, out);
        break;
      case DType::kF32:
        std::memcpy(out, static_cast<const float*>(weight.data) + r * cols,
                    static_cast<size_t>(cols) * sizeof(float));
        break;
      default:
        FATHOM_CHECK(false, "weights are fp8, fp4, bf16 or fp32");
    }
  }
}

void DotBlock(const float* w, int num_rows, int64_t cols, const float* const* x, int num_x,
              float* out, int64_t out_stride) {
  DotRows(w, num_rows, cols, x, num_x, out, out_stride);
}

void QuantiseE4m3Groups(std::span<const float> x, float* out) {
  const hn::RebindToUnsigned<DF> du;
  const auto magnitude_mask = hn::Set(du, 0x7FFFFFFFu);
  for (size_t begin = 0; begin < x.size(); begin += 128, out += 128) {
    const float* in = x.data() + begin;
    // Magnitudes compare as integers, and NaN is then the largest.
    auto largest = hn::Zero(du);
    for (int i = 0; i < 128; i += kLanes) {
      const auto u = hn::BitCast(du, hn::LoadU(df, in + i));
      largest = hn::Max(largest, hn::And(u, magnitude_mask));
    }
    const uint32_t amax_bits = hn::GetLane(hn::MaxOfLanes(du, largest));
    float amax = 0.0f;
    std::memcpy(&amax, &amax_bits, sizeof(amax));
    // Infinities, NaN and what would need a scale beyond the normal range: rare, so scalar.
    if (amax_bits >= 0x7F000000u) {
      std::memmove(out, in, 128 * sizeof(float));
      SimulateE4m3({out, 128}, 128);
      continue;
    }
    const int e = CeilLog2(std::max(amax, kE4m3AmaxFloor) * (1.0f / kE4m3Max));
    const VF inverse = hn::Set(df, std::ldexp(1.0f, -e));
    const VF scale = hn::Set(df, std::ldexp(1.0f, e));
    const VF sign_mask = hn::BitCast(df, hn::Set(du, 0x80000000u));
    // Adding and taking away 2^14 rounds to a multiple of 2^-9, the step below 2^-6.
    const VF magic = hn::Set(df, 0x1p14f);
    for (int i = 0; i < 128; i += kLanes) {
      const VF y = hn::Mul(hn::LoadU(df, in + i), inverse);
      const VF sign = hn::And(y, sign_mask);
      const VF a = hn::AndNot(sign_mask, y);
      const auto u = hn::BitCast(du, a);
      const auto odd = hn::And(hn::ShiftRight<20>(u), hn::Set(du, 1u));
      const auto sum = hn::Add(hn::Add(u, hn::Set(du, 0x7FFFFu)), odd);
      const VF normal = hn::BitCast(df, hn::And(sum, hn::Set(du, 0xFFF00000u)));
      const VF subnormal = hn::Sub(hn::Add(a, magic), magic);
      const VF rounded = hn::IfThenElse(hn::Lt(a, hn::Set(df, 0x1p-6f)), subnormal, normal);
      const VF value = hn::Min(rounded, hn::Set(df, kE4m3Max));
      hn::StoreU(hn::Mul(hn::Or(value, sign), scale), df, out + i);
    }
  }
}

void RoundBf16(std::span<const float> x, float* out) {
  ForVectors(static_cast<int64_t>(x.size()), [&](int64_t i, auto load, auto store) HWY_ATTR {
    store(Bf16Round(load(x.data() + i)), out + i);
  });
}

}  // namespace fathom::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::cpu {

HWY_EXPORT(DecodeRows);
HWY_EXPORT(DotBlock);
HWY_EXPORT(QuantiseE4m3Groups);
HWY_EXPORT(RoundBf16);

void DecodeRows(const WeightView& weight, int row, int num_rows, float* out) {
  HWY_DYNAMIC_DISPATCH(DecodeRows)(weight, row, num_rows, out);
}
void DotBlock(const float* w, int num_rows, int64_t cols, const float* const* x, int num_x,
              float* out, int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(DotBlock)(w, num_rows, cols, x, num_x, out, out_stride);
}
void QuantiseE4m3Groups(std::span<const float> x, float* out) {
  HWY_DYNAMIC_DISPATCH(QuantiseE4m3Groups)(x, out);
}
void RoundBf16(std::span<const float> x, float* out) { HWY_DYNAMIC_DISPATCH(RoundBf16)(x, out); }

}  // namespace fathom::cpu
#endif  // HWY_ONCE
