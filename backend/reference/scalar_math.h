// Pieces that several reference operations are made of. Scalar, exact about rounding points.
#pragma once

#include <span>

#include "backend/numerics.h"
#include "backend/weights.h"
#include "base/formats.h"
#include "base/tensor_view.h"

namespace fathom::reference {

// A bf16 tensor of the official code: rounded in official numerics, kept in exact ones.
inline float Bf16(Numerics numerics, float x) {
  return numerics == Numerics::kOfficial ? RoundToBf16(x) : x;
}

// Sum of products in double, rounded once.
float Dot(std::span<const float> a, std::span<const float> b);

// rsqrt(mean(x^2) + eps), the mean in double.
float InverseRms(std::span<const float> x, float eps);

// out[i] = bf16(weight[i] * (x[i] * InverseRms(x))); out may be x.
void RmsNormRow(Numerics numerics, std::span<const float> x, std::span<const float> weight,
                float eps, std::span<float> out);

// Rotates the last channels of x, adjacent pairs; cos_sin is [pairs][2]. sign -1 rotates back.
void RopeRow(Numerics numerics, std::span<float> x, std::span<const float> cos_sin, float sign);

// Orthonormal Walsh-Hadamard transform in Sylvester order, rounded to bf16 once. Size: a power of
// two.
void HadamardRow(Numerics numerics, std::span<float> x);

// Row `row` of a weight as exact floats; out has weight.cols elements.
void DecodeWeightRow(const WeightView& weight, int row, std::span<float> out);

// The values that a linear with this weight computes with: e4m3 in groups of 128 in front of
// quantised weights in official numerics, else x as it is.
void QuantiseActivation(Numerics numerics, const WeightView& weight, std::span<float> x);

// y = W x for all rows of x (already quantised), rounded to bf16 if asked.
void MatMul(Numerics numerics, TensorView<const float> x, const WeightView& weight,
            bool round_output, TensorView<float> out);

float Sigmoid(float z);

}  // namespace fathom::reference
