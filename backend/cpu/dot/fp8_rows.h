// Stored fp8 rows times few inputs, for processors that can pick bytes out of 64 (AVX-512 VBMI).
//
// A code is moved to where bfloat16 has its sign, exponent and mantissa, and the exponent of its
// block's scale is added to its own: exactly the weight, so that sums have the bits of every other
// way to compute them.
#pragma once

#include <cstdint>

namespace fathom::cpu {

inline constexpr int kFp8RowsInputs = 8;

// sums[(4 * i + r) * 16 + l] = the sum of the products of row r's and input i's columns l, l + 16,
// ... in turn. Four rows of `cols` codes with the same `scales`, one per 128 columns, cols a
// multiple of 128; num_x <= kFp8RowsInputs. Asks for the rows that begin `ahead` bytes behind each.
// False where a code is NaN or a scale leaves the range in which weights are normal numbers: the
// sums are not right then.
using Fp8RowsFunction = bool (*)(const uint8_t* const* rows, const uint8_t* scales, int64_t cols,
                                 const float* const* x, int num_x, int64_t ahead, float* sums);

// Null where ChosenIsa() or the processor has not got what it takes.
Fp8RowsFunction ChosenFp8Rows();

bool Fp8RowsAvx512(const uint8_t* const* rows, const uint8_t* scales, int64_t cols,
                   const float* const* x, int num_x, int64_t ahead, float* sums);

}  // namespace fathom::cpu
