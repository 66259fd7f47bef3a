// Int8Weight: a lossy copy of an fp8 matrix for the integer kernels (`--cpu-dense int8`).
//
// Each row keeps one fp32 scale per 128 columns, the largest magnitude / 127, and signed bytes plus
// 128. Rows are interleaved in panels of as many rows as the chosen byte kernels have lanes, so a
// copy belongs to the instruction set it was made for. Immutable after Make.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/weights.h"
#include "base/parallel.h"
#include "base/status.h"

namespace fathom::cpu {

class Int8Weight {
 public:
  // Whether a matrix can be copied: fp8, and whole panels.
  static bool Takes(const WeightView& weight);
  // kOutOfMemory when the memory cannot be had.
  static Result<std::unique_ptr<Int8Weight>> Make(const WeightView& weight, ThreadPool& pool);

  // Those of the panel that begins with `row`: [cols / 4][lanes][4] and [cols / 128][lanes].
  [[nodiscard]] const uint8_t* codes(int row) const { return codes_ + int64_t{row} * cols_; }
  [[nodiscard]] const float* scales(int row) const {
    return scales_ + int64_t{row} * (cols_ / kGroup);
  }

 private:
  static constexpr int kGroup = 128;
  struct Free {
    void operator()(void* p) const;
  };

  int64_t cols_ = 0;
  std::unique_ptr<void, Free> memory_;
  uint8_t* codes_ = nullptr;
  float* scales_ = nullptr;
};

}  // namespace fathom::cpu
