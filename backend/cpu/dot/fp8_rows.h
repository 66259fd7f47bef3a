// Stored fp8 rows times few inputs, for processors that can pick bytes out of 64 (AVX-512 VBMI).
//
// A code is moved to where bfloat16 has its sign, exponent and mantissa: that is its value / 256.
// Inputs therefore come times 256, and times the scales of the weight's blocks, which rows of one
// block row share; powers of two, so that every product is that of the code and the input.
#pragma once

#include <cstdint>

namespace fathom::cpu {

// sums[(4 * i + r) * 16 + l] = the sum of the products of row r's and input i's columns l, l + 16,
// ... in turn. Four rows of `cols` codes, cols a multiple of 64; num_x <= 4. Asks for the four rows
// that begin `ahead` bytes behind the first. False where a code is NaN: the sums are not right
// then.
using Fp8RowsFunction = bool (*)(const uint8_t* const* rows, int64_t cols, const float* const* x,
                                 int num_x, int64_t ahead, float* sums);

// Null where ChosenIsa() or the processor has not got what it takes.
Fp8RowsFunction ChosenFp8Rows();

bool Fp8RowsAvx512(const uint8_t* const* rows, int64_t cols, const float* const* x, int num_x,
                   int64_t ahead, float* sums);

}  // namespace fathom::cpu
