#include <algorithm>
#include <bit>
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
#include "backend/cpu/quantise-inl.h"
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
        const bool has_nan = HasE4m3Nan(codes, cols);
        for (int64_t b = 0; b < cols / 128; ++b) {
          DecodeE4m3(codes + 128 * b, 128, scales[b], has_nan, out + 128 * b);
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

// `n` values of one group with scale 2^exponent: to the grid of `round` and back.
template <typename Round>
HWY_INLINE void QuantiseGroup(const float* x, int n, int exponent, const Round& round, float* out) {
  const VF inverse = hn::Set(df, std::ldexp(1.0f, -exponent));
  const VF scale = hn::Set(df, std::ldexp(1.0f, exponent));
  for (int i = 0; i < n; i += kLanes) {
    hn::StoreU(hn::Mul(round(hn::LoadU(df, x + i), inverse), scale), df, out + i);
  }
}

void QuantiseE4m3Groups(std::span<const float> x, int group, float* out) {
  const auto size = static_cast<size_t>(group);
  for (size_t begin = 0; begin < x.size(); begin += size, out += size) {
    const float* in = x.data() + begin;
    const uint32_t amax = LargestMagnitude(in, group);
    if (amax >= kHuge) {
      std::memmove(out, in, size * sizeof(float));
      SimulateE4m3({out, size}, group);
      continue;
    }
    const int e =
        CeilLog2(std::max(std::bit_cast<float>(amax), kE4m3AmaxFloor) * (1.0f / kE4m3Max));
    QuantiseGroup(
        in, group, e, [](VF v, VF inverse) HWY_ATTR { return RoundToE4m3(v, inverse); }, out);
  }
}

void QuantiseE2m1Groups(std::span<const float> x, float* out) {
  constexpr int kGroup = 32;
  for (size_t begin = 0; begin < x.size(); begin += kGroup, out += kGroup) {
    const float* in = x.data() + begin;
    const uint32_t amax = LargestMagnitude(in, kGroup);
    if (amax >= kHuge) {
      std::memmove(out, in, kGroup * sizeof(float));
      SimulateE2m1({out, kGroup}, kGroup);
      continue;
    }
    const int e =
        CeilLog2(std::max(std::bit_cast<float>(amax), kE2m1AmaxFloor) * (1.0f / kE2m1Max));
    QuantiseGroup(
        in, kGroup, e, [](VF v, VF inverse) HWY_ATTR { return RoundToE2m1(v, inverse); }, out);
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
HWY_EXPORT(QuantiseE2m1Groups);
HWY_EXPORT(RoundBf16);

void DecodeRows(const WeightView& weight, int row, int num_rows, float* out) {
  HWY_DYNAMIC_DISPATCH(DecodeRows)(weight, row, num_rows, out);
}
void DotBlock(const float* w, int num_rows, int64_t cols, const float* const* x, int num_x,
              float* out, int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(DotBlock)(w, num_rows, cols, x, num_x, out, out_stride);
}
void QuantiseE4m3Groups(std::span<const float> x, int group, float* out) {
  HWY_DYNAMIC_DISPATCH(QuantiseE4m3Groups)(x, group, out);
}
void QuantiseE2m1Groups(std::span<const float> x, float* out) {
  HWY_DYNAMIC_DISPATCH(QuantiseE2m1Groups)(x, out);
}
void RoundBf16(std::span<const float> x, float* out) { HWY_DYNAMIC_DISPATCH(RoundBf16)(x, out); }

}  // namespace fathom::cpu
#endif  // HWY_ONCE
