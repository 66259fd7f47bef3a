// Products of small integers: FP4 weights, and fp8 weights requantised to int8, times inputs that
// are split into signed bytes.
//
// A kernel works on panels. A panel is `lanes` output rows, interleaved so that a vector holds four
// neighbouring inputs of every row: then one vpdpbusd adds four products to each row's sum, inputs
// are broadcast, and no sum is taken across lanes. Sums over a group of inputs are exact integers;
// they are turned into fp32 (exactly, being below 2^24), multiplied by the scales, and added in
// ascending order of groups. So results are the same bits on every instruction set, for any number
// of rows and inputs in a call.
//
// Pure functions on memory of the caller; any thread may call them.
#pragma once

#include <cstdint>

namespace fathom::cpu {

// One input vector x of `cols` columns, in groups:
//   x = scale * (256 * first + second) + scale / 8 * third      (digits: official e4m3 inputs)
//   x = scale * first                                           (int8 inputs)
// It stands in one piece of memory, a slot, aligned to four bytes:
//   int8   first[cols], second[cols], third[cols]
//   int32  bias[groups]         -offset * (256 * sum(first) + sum(second)), or -offset *
//   sum(first),
//                               where weights are stored plus `offset`
//   int32  third_bias[groups]   -offset * sum(third)
//   fp32   scale[groups]
//   uint8  has_third[groups]    0 where third is all zero
// with groups = cols / kFp4Group, of which int8 weights use the first quarter. The four-byte pieces
// of the digits stand in the order in which panels have columns: for FP4 eight columns
// c, c+2, c+4, c+6, c+1, c+3, c+5, c+7; for int8 weights as they come.
struct ByteSlot {
  int8_t* first = nullptr;
  int8_t* second = nullptr;
  int8_t* third = nullptr;
  int32_t* bias = nullptr;
  int32_t* third_bias = nullptr;
  float* scale = nullptr;
  uint8_t* has_third = nullptr;
};

inline constexpr int kFp4Group = 32;    // columns of one scale, of weights and inputs
inline constexpr int kInt8Group = 128;  // the same for int8 weights
inline constexpr int kFp4Offset = 12;   // FP4 weights are stored as 2 * value + 12
inline constexpr int kInt8Offset = 128;
inline constexpr int kMaxLanes = 16;

// The parts of a slot. Memory of `cols` floats is enough for one. Always inlined: see
// byte_kernels-inl.h.
[[gnu::always_inline]] inline ByteSlot SlotAt(void* memory, int64_t cols) {
  const int64_t groups = cols / kFp4Group;
  auto* bytes = static_cast<int8_t*>(memory);
  auto* words = static_cast<int32_t*>(static_cast<void*>(bytes + 3 * cols));
  return {bytes,
          bytes + cols,
          bytes + 2 * cols,
          words,
          words + groups,
          static_cast<float*>(static_cast<void*>(words + 2 * groups)),
          static_cast<uint8_t*>(static_cast<void*>(words + 3 * groups))};
}

// Inputs of one product: n slots.
struct ByteInputs {
  const void* const* slots = nullptr;
  int n = 0;
  int64_t cols = 0;
  bool digits = false;  // else int8
};

// Two panels that are multiplied with the same inputs, and how many groups of columns they have.
struct PanelPair {
  const uint8_t* codes[2] = {};  // [groups][group / 4][lanes][4]
  const float* scales[2] = {};   // [groups][lanes]
};

struct ByteKernels {
  int lanes = 0;

  // Columns [begin, begin + count) of `num_rows` <= lanes FP4 rows as a panel; begin and count are
  // multiples of 128. `packed` and `scales` are the first row's, rows are cols / 2 and cols / 32
  // bytes long. Missing rows become zeros. Scales in `out_scales` have the factor 1/2 in them.
  // Asks for `lanes` rows that begin `ahead` bytes behind `packed` to be brought into the cache.
  void (*pack_fp4)(const uint8_t* packed, const uint8_t* scales, int64_t cols, int num_rows,
                   int64_t begin, int64_t count, int64_t ahead, uint8_t* out, float* out_scales);

  // The same sums of `num_rows` <= 16 stored rows times up to `direct_inputs` inputs, over all
  // columns: sums[i * stride + r] for r < 16 are overwritten. Asks for rows ahead as pack_fp4 does.
  // Null and 0 where the panels' way is the best there is.
  void (*multiply_fp4_rows)(const uint8_t* packed, const uint8_t* scales, int num_rows,
                            int64_t ahead, const ByteInputs& x, float* sums, int64_t stride);
  int direct_inputs = 0;

  // sums[i * stride + p * lanes + l] += row l of panel p times x[i], over `groups` groups, which
  // are those of the rows from `first_group` on. stride >= 2 * lanes.
  void (*multiply_fp4)(const PanelPair& w, const ByteInputs& x, int64_t first_group, int64_t groups,
                       float* sums, int64_t stride);
  // The same for int8 weights; inputs have no digits.
  void (*multiply_int8)(const PanelPair& w, const ByteInputs& x, int64_t first_group,
                        int64_t groups, float* sums, int64_t stride);
};

// Those of ChosenIsa().
const ByteKernels& ChosenByteKernels();

extern const ByteKernels kByteKernelsPortable;
extern const ByteKernels kByteKernelsAvx2;
extern const ByteKernels kByteKernelsAvxVnni;
extern const ByteKernels kByteKernelsAvx512Vnni;

}  // namespace fathom::cpu
