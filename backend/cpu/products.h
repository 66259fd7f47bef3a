// Products of stored weight rows with the inputs of a step, whatever the weight's format.
//
// A call computes up to kRowBlock rows of one or two weights times n inputs. Which kernel does it
// depends on the format and on how the inputs were prepared; the bits don't depend on n, nor on how
// rows are split over calls.
#pragma once

#include <cstdint>

#include "backend/cpu/int8_weight.h"
#include "backend/cpu/kernels.h"
#include "backend/weights.h"

namespace fathom::cpu {

// Steps of at most so many tokens multiply stored rows directly; longer ones decode panels.
inline constexpr int kDirectInputs = 8;
// Inputs whose sums are in memory together.
inline constexpr int kSumInputs = 256;
inline constexpr int kSumStride = 2 * kRowBlock;

// Rows [row, row + count) of a weight, count <= kRowBlock; none where weight is null. `int8` is the
// weight's copy, for inputs of that form; `row` is a multiple of kRowBlock then.
struct RowRange {
  const WeightView* weight = nullptr;
  int row = 0;
  int count = 0;
  const Int8Weight* int8 = nullptr;
};

// What the bytes of inputs are.
enum class ByteForm {
  kDigits,    // official e4m3 values, for FP4 weights
  kInt8,      // int8 values, for FP4 weights
  kInt8Dense  // int8 values, for int8 weights
};

// n inputs in one form: rows of floats as they are (n <= kDirectInputs only), rows of
// PermuteInput, or slots of bytes (dot/byte_kernels.h).
struct InputRows {
  const float* const* floats = nullptr;
  const float* const* permuted = nullptr;
  const void* const* bytes = nullptr;
  int64_t n = 0;
  ByteForm byte_form = ByteForm::kDigits;

  [[nodiscard]] InputRows Part(int64_t begin, int64_t count) const {
    return {floats == nullptr ? nullptr : floats + begin,
            permuted == nullptr ? nullptr : permuted + begin,
            bytes == nullptr ? nullptr : bytes + begin, count, byte_form};
  }
};

// Floats of scratch memory that a call needs for weights of `cols` columns.
int64_t ProductScratch(int64_t cols);

// sums[i * kSumStride + r] = row r of `a` times input i, and + kRowBlock for `b`; n <= kSumInputs.
// All 2 * kRowBlock elements are overwritten; those of missing rows mean nothing. Two weights have
// the same format and width.
void Multiply(const RowRange& a, const RowRange& b, const InputRows& x, float* scratch,
              float* sums);

}  // namespace fathom::cpu
