// One row of a stored weight times several rows of inputs, the work of a warp.
//
// Lane l sums the products at columns 128 i + 4 l .. + 3, i ascending, in fp32 with fma; the lanes
// are then summed by a tree. So a product depends on its row, its input and the number of columns,
// never on the inputs that it was computed beside.
#pragma once

#include "backend/cuda/formats.cuh"
#include "backend/weights.h"

namespace fathom::cuda {

// Inputs that share a decoded weight row.
inline constexpr int kInputs = 8;

struct Four {
  float v[4];
};

__device__ inline Four LoadFour(const float* x) {
  if (reinterpret_cast<uintptr_t>(x) % 16 == 0) {
    const float4 v = *reinterpret_cast<const float4*>(x);
    return {v.x, v.y, v.z, v.w};
  }
  return {x[0], x[1], x[2], x[3]};
}

template <DType kType>
struct WeightRow;

template <>
struct WeightRow<DType::kF8E4M3> {
  __device__ WeightRow(const WeightView& w, int64_t row)
      : codes(static_cast<const uint8_t*>(w.data) + row * w.cols),
        scales(w.scale + row / 128 * (w.cols / 128)) {}
  __device__ Four Load(int k) const {
    const float scale = FromUe8m0(scales[k / 128]);
    uint8_t four[4];
    if (reinterpret_cast<uintptr_t>(codes) % 4 == 0) {
      const uint32_t word = *reinterpret_cast<const uint32_t*>(codes + k);
      for (int i = 0; i < 4; ++i) four[i] = static_cast<uint8_t>(word >> 8 * i);
    } else {
      for (int i = 0; i < 4; ++i) four[i] = codes[k + i];
    }
    Four out;
    for (int i = 0; i < 4; ++i) out.v[i] = FromE4m3(four[i]) * scale;
    return out;
  }
  const uint8_t* codes;
  const uint8_t* scales;
};

template <>
struct WeightRow<DType::kI8> {
  __device__ WeightRow(const WeightView& w, int64_t row)
      : codes(static_cast<const uint8_t*>(w.data) + row * (w.cols / 2)),
        scales(w.scale + row * (w.cols / 32)) {}
  __device__ Four Load(int k) const {
    const float scale = FromUe8m0(scales[k / 32]);
    const uint8_t* pair = codes + k / 2;
    Four out;
    for (int i = 0; i < 4; ++i) {
      out.v[i] = FromE2m1(static_cast<unsigned>(pair[i / 2]) >> (i % 2 == 0 ? 0 : 4)) * scale;
    }
    return out;
  }
  const uint8_t* codes;
  const uint8_t* scales;
};

template <>
struct WeightRow<DType::kBF16> {
  __device__ WeightRow(const WeightView& w, int64_t row)
      : values(static_cast<const uint16_t*>(w.data) + row * w.cols) {}
  __device__ Four Load(int k) const {
    Four out;
    if (reinterpret_cast<uintptr_t>(values) % 8 == 0) {
      const ushort4 four = *reinterpret_cast<const ushort4*>(values + k);
      out = {FromBf16(four.x), FromBf16(four.y), FromBf16(four.z), FromBf16(four.w)};
    } else {
      for (int i = 0; i < 4; ++i) out.v[i] = FromBf16(values[k + i]);
    }
    return out;
  }
  __device__ float LoadOne(int k) const { return FromBf16(values[k]); }
  const uint16_t* values;
};

template <>
struct WeightRow<DType::kF32> {
  __device__ WeightRow(const WeightView& w, int64_t row)
      : values(static_cast<const float*>(w.data) + row * w.cols) {}
  __device__ Four Load(int k) const {
    if (reinterpret_cast<uintptr_t>(values) % 16 == 0) {
      const float4 four = *reinterpret_cast<const float4*>(values + k);
      return {four.x, four.y, four.z, four.w};
    }
    return {values[k], values[k + 1], values[k + 2], values[k + 3]};
  }
  __device__ float LoadOne(int k) const { return values[k]; }
  const float* values;
};

// sums[t] = weight[row] . inputs[t] for t < count <= kInputs, in every lane.
template <DType kType>
__device__ void MultiplyRow(const WeightView& weight, int64_t row, const float* const* inputs,
                            int count, float* sums) {
  const WeightRow<kType> w(weight, row);
  const int cols = weight.cols;
  const int whole = cols / 4 * 4;
#pragma unroll
  for (int t = 0; t < kInputs; ++t) sums[t] = 0.0f;
  for (int k = 4 * Lane(); k < whole; k += 4 * kWarp) {
    const Four four = w.Load(k);
#pragma unroll
    for (int t = 0; t < kInputs; ++t) {
      if (t >= count) continue;
      const Four in = LoadFour(inputs[t] + k);
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[t] = fmaf(four.v[i], in.v[i], sums[t]);
    }
  }
  // Up to three columns behind the last four; quantised weights have none.
  if constexpr (kType == DType::kBF16 || kType == DType::kF32) {
    const int k = whole + Lane();
    if (k < cols) {
      const float value = w.LoadOne(k);
#pragma unroll
      for (int t = 0; t < kInputs; ++t) {
        if (t < count) sums[t] = fmaf(value, inputs[t][k], sums[t]);
      }
    }
  }
#pragma unroll
  for (int t = 0; t < kInputs; ++t) {
    if (t < count) sums[t] = WarpSum(sums[t]);
  }
}

// The same for a format that is known to the running kernel only. Formats that are no weights'
// were refused on the host.
__device__ inline void MultiplyRow(const WeightView& weight, int64_t row,
                                   const float* const* inputs, int count, float* sums) {
  switch (weight.dtype) {
    case DType::kF8E4M3:
      return MultiplyRow<DType::kF8E4M3>(weight, row, inputs, count, sums);
    case DType::kI8:
      return MultiplyRow<DType::kI8>(weight, row, inputs, count, sums);
    case DType::kBF16:
      return MultiplyRow<DType::kBF16>(weight, row, inputs, count, sums);
    default:
      return MultiplyRow<DType::kF32>(weight, row, inputs, count, sums);
  }
}

}  // namespace fathom::cuda
