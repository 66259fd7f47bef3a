#include "backend/reference/scalar_math.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"

namespace fathom::reference {

float Dot(std::span<const float> a, std::span<const float> b) {
  // Eight independent sums let the compiler use vector registers without changing the result from
  // run to run; in double the order is immaterial at fp32 precision.
  double sums[8] = {};
  size_t i = 0;
  for (; i + 8 <= a.size(); i += 8) {
    for (size_t k = 0; k < 8; ++k) {
      sums[k] += static_cast<double>(a[i + k]) * static_cast<double>(b[i + k]);
    }
  }
  double total = 0.0;
  for (; i < a.size(); ++i) total += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  for (double sum : sums) total += sum;
  return static_cast<float>(total);
}

float InverseRms(std::span<const float> x, float eps) {
  double sum = 0.0;
  for (float v : x) sum += static_cast<double>(v) * static_cast<double>(v);
  const auto mean = static_cast<float>(sum / static_cast<double>(x.size()));
  return 1.0f / std::sqrt(mean + eps);
}

void RmsNormRow(Numerics numerics, std::span<const float> x, std::span<const float> weight,
                float eps, std::span<float> out) {
  const float inverse = InverseRms(x, eps);
  for (size_t i = 0; i < x.size(); ++i) out[i] = Bf16(numerics, weight[i] * (x[i] * inverse));
}

void RopeRow(Numerics numerics, std::span<float> x, std::span<const float> cos_sin, float sign) {
  const size_t pairs = cos_sin.size() / 2;
  const std::span<float> rotated = x.last(2 * pairs);
  for (size_t k = 0; k < pairs; ++k) {
    const float c = cos_sin[2 * k];
    const float s = sign * cos_sin[2 * k + 1];
    const float even = rotated[2 * k];
    const float odd = rotated[2 * k + 1];
    rotated[2 * k] = Bf16(numerics, even * c - odd * s);
    rotated[2 * k + 1] = Bf16(numerics, even * s + odd * c);
  }
}

void HadamardRow(Numerics numerics, std::span<float> x) {
  std::vector<double> v(x.begin(), x.end());
  for (size_t half = 1; half < v.size(); half *= 2) {
    for (size_t i = 0; i < v.size(); i += 2 * half) {
      for (size_t j = i; j < i + half; ++j) {
        const double a = v[j];
        const double b = v[j + half];
        v[j] = a + b;
        v[j + half] = a - b;
      }
    }
  }
  const double scale = 1.0 / std::sqrt(static_cast<double>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) x[i] = Bf16(numerics, static_cast<float>(v[i] * scale));
}

void DecodeWeightRow(const WeightView& weight, int row, std::span<float> out) {
  const auto cols = static_cast<size_t>(weight.cols);
  const auto r = static_cast<size_t>(row);
  switch (weight.dtype) {
    case DType::kF8E4M3: {
      const uint8_t* codes = static_cast<const uint8_t*>(weight.data) + r * cols;
      const uint8_t* scales = weight.scale + r / 128 * ((cols + 127) / 128);
      for (size_t k = 0; k < cols; ++k)
        out[k] = E4m3ToFloat(codes[k]) * Ue8m0ToFloat(scales[k / 128]);
      return;
    }
    case DType::kI8: {
      const uint8_t* packed = static_cast<const uint8_t*>(weight.data) + r * (cols / 2);
      const uint8_t* scales = weight.scale + r * (cols / 32);
      for (size_t k = 0; k < cols; ++k) {
        const uint8_t byte = packed[k / 2];
        const auto code = static_cast<uint8_t>(k % 2 == 0 ? byte : byte >> 4);
        out[k] = E2m1ToFloat(code) * Ue8m0ToFloat(scales[k / 32]);
      }
      return;
    }
    case DType::kBF16: {
      const uint16_t* bits = static_cast<const uint16_t*>(weight.data) + r * cols;
      for (size_t k = 0; k < cols; ++k) out[k] = Bf16ToFloat(bits[k]);
      return;
    }
    case DType::kF32:
      std::memcpy(out.data(), static_cast<const float*>(weight.data) + r * cols,
                  cols * sizeof(float));
      return;
    default:
      FATHOM_CHECK(false, "weights are fp8, fp4, bf16 or fp32");
  }
}

void QuantiseActivation(Numerics numerics, const WeightView& weight, std::span<float> x) {
  if (numerics == Numerics::kOfficial && weight.quantised()) SimulateE4m3(x, 128);
}

void MatMul(Numerics numerics, TensorView<const float> x, const WeightView& weight,
            bool round_output, TensorView<float> out) {
  std::vector<float> w(static_cast<size_t>(weight.cols));
  for (int row = 0; row < weight.rows; ++row) {
    DecodeWeightRow(weight, row, w);
    for (int64_t i = 0; i < x.dim(0); ++i) {
      const float y = Dot(x.row(i), w);
      out.row(i)[static_cast<size_t>(row)] = round_output ? Bf16(numerics, y) : y;
    }
  }
}

float Sigmoid(float z) { return 1.0f / (1.0f + std::exp(-z)); }

}  // namespace fathom::reference
