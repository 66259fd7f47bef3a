// WeightView: one matrix of the checkpoint, as stored.
//
// Borrowed from the checkpoint's mapping, or from a copy in the backend's memory; a backend may
// keep a repacked copy of its own (Backend::Prepare). Matrices are row-major [out, in] and y = W x.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace fathom {

struct WeightView {
  // kF8E4M3: [rows, cols] codes, one ue8m0 scale per 128x128 block, [ceil(rows/128),
  // ceil(cols/128)]. kI8:     [rows, cols/2] packed e2m1 (low nibble = even column), one ue8m0
  // scale per 32 columns,
  //          [rows, cols/32].
  // kBF16, kF32: no scales.
  DType dtype = DType::kF32;
  const void* data = nullptr;
  const uint8_t* scale = nullptr;
  int rows = 0;  // outputs
  int cols = 0;  // inputs

  [[nodiscard]] constexpr bool empty() const { return data == nullptr; }
  // True for the formats whose inputs the official code rounds to e4m3 in groups of 128.
  [[nodiscard]] constexpr bool quantised() const {
    return dtype == DType::kF8E4M3 || dtype == DType::kI8;
  }
};

// Bytes of the values, and of the scales, of a matrix in a format that WeightView has.
constexpr int64_t ValueBytes(DType dtype, int64_t rows, int64_t cols) {
  return dtype == DType::kI8 ? rows * cols / 2 : rows * cols * DTypeBytes(dtype);
}
constexpr int64_t ScaleBytes(DType dtype, int64_t rows, int64_t cols) {
  if (dtype == DType::kF8E4M3) return (rows + 127) / 128 * ((cols + 127) / 128);
  return dtype == DType::kI8 ? rows * (cols / 32) : 0;
}

// One SwiGLU expert: w1 = gate, w3 = up [I, D]; w2 = down [D, I].
struct ExpertWeights {
  WeightView w1, w2, w3;
};

}  // namespace fathom
