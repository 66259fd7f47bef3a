// Products of stored weights and packed inputs on the matrix unit.
//
// One order of sums for all kernels, whatever the number of inputs: a segment of kSegment columns
// is one chain of matrix instructions from zero, columns ascending; segments are added in ascending
// order, in fp32. So a product depends on its weight row, its input and the number of columns
// alone.
#pragma once

#include <cstdint>

#include "backend/cuda/formats.cuh"
#include "backend/cuda/fragments.cuh"

namespace fathom::cuda {

inline constexpr int kSegmentSteps = 4;
inline constexpr int kSegment = kSegmentSteps * kStep;  // columns
inline constexpr int kTileInputs = 8;                   // inputs of one matrix instruction

// Packs 128 columns of an input, the work of a warp whose lanes have four columns each: rounded to
// bf16, to e4m3 before that if `quantise`.
__device__ inline void PackGroup(const float* v, bool quantise, uint16_t* out) {
  uint32_t bits[4];
  if (quantise) {
    const float amax = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
    const int e = E4m3Exponent(WarpMax(amax));
    const float scale = FromUe8m0(ScaleByte(e)), inverse = PowerOfMinus(e);
    // Codes have fewer bits than bf16: the upper half of their values is all there is.
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
      const float2 rounded = RoundE4m3({v[k] * inverse, v[k + 1] * inverse});
      bits[k] = __float_as_uint(rounded.x * scale) >> 16;
      bits[k + 1] = __float_as_uint(rounded.y * scale) >> 16;
    }
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k) bits[k] = ToBf16(v[k]);
  }
  // Column k of eight lies beside column k + 4, which the lane behind has. Even lanes store the
  // first two such pairs, the lane behind the others.
  const uint32_t low = bits[0] | bits[1] << 16, high = bits[2] | bits[3] << 16;
  const bool odd = Lane() % 2 != 0;
  const uint32_t other = __shfl_xor_sync(kAllLanes, odd ? low : high, 1);
  const uint32_t before = odd ? other : low, behind = odd ? high : other;
  *reinterpret_cast<uint2*>(out + 4 * Lane()) = {(before & 0xFFFFu) | behind << 16,
                                                 before >> 16 | (behind & 0xFFFF0000u)};
}

// acc[t] += the step's product with inputs 8 t .. 8 t + 7, for t < kTiles. `input(t, unit)` are the
// lane's eight columns of input 8 t + lane / 4, packed.
template <DType kType, int kTiles, typename Input>
__device__ __forceinline__ void MultiplyStep(const typename WeightTile<kType>::Raw& raw,
                                             const Input& input, float (*acc)[4]) {
  const auto scales = WeightTile<kType>::Scales(raw);
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit) {
    uint32_t w[2][4];
    WeightTile<kType>::Decode(raw, scales, unit, w);
    if (scales.large) {
      scales.of[0].Finish(w[0], 4);
      scales.of[1].Finish(w[1], 4);
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const uint4 x = input(t, unit);
      MmaBf16(acc[t], w[0][0], w[1][0], w[0][1], w[1][1], x.x, x.y);
      MmaBf16(acc[t], w[0][2], w[1][2], w[0][3], w[1][3], x.z, x.w);
    }
  }
}

// The lane's inputs from global memory. Where there are fewer than 8 kTiles, any others may stand
// for them: what is computed with them is not stored.
template <DType kType, int kTiles>
struct InputRows {
  const uint16_t* rows[kTiles];  // input 8 t + lane / 4
  __device__ uint4 Load(int t, int step, int unit) const {
    const int column = WeightTile<kType>::UnitOf(unit, Lane() % 4) * 8;
    return *reinterpret_cast<const uint4*>(rows[t] + int64_t{step} * kStep + column);
  }
};

// Steps whose weights are on their way: 4 KiB of a warp, 8 of bf16.
template <DType kType>
inline constexpr int kStepsAhead = kType == DType::kI8 ? kSegmentSteps : 2;

// A segment of 16 weight rows from `first_row` on, the work of a warp: the constructor sends for
// weights, Multiply takes them.
template <DType kType, int kTiles, int kAhead = kStepsAhead<kType>>
class Segment {
 public:
  __device__ __forceinline__ Segment(const WeightView& weight, int first_row, int segment)
      : tile_(weight, first_row),
        begin_(segment * kSegmentSteps),
        count_(min(kSegmentSteps, weight.cols / kStep - begin_)) {
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
      if (s < count_) raw_[s] = tile_.Load(begin_ + s);
    }
  }
  // acc[t] = the products with inputs 8 t .. 8 t + 7.
  __device__ __forceinline__ void Multiply(const uint16_t* const* rows, float (*acc)[4]) {
    InputRows<kType, kTiles> inputs;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      inputs.rows[t] = rows[t];
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[t][i] = 0.0f;
    }
#pragma unroll
    for (int s = 0; s < kSegmentSteps; ++s) {
      if (s >= count_) continue;
      MultiplyStep<kType, kTiles>(
          raw_[s % kAhead], [&](int t, int unit) { return inputs.Load(t, begin_ + s, unit); }, acc);
      if (s + kAhead < kSegmentSteps && s + kAhead < count_) {
        raw_[s % kAhead] = tile_.Load(begin_ + s + kAhead);
      }
    }
  }

 private:
  WeightTile<kType> tile_;
  int begin_;
  int count_;
  typename WeightTile<kType>::Raw raw_[kAhead];
};

// Segments of all columns, and how a block of kWarps warps that splits them between its warps is
// laid out: `tiles` tiles of 16 rows at a time.
struct SegmentSplit {
  int segments;
  int tiles;
  __host__ __device__ explicit SegmentSplit(int cols)
      : segments((cols + kSegment - 1) / kSegment),
        tiles(segments < kWarps ? kWarps / segments : 1) {}
  // Floats of shared memory for sums of kTiles * 8 inputs.
  [[nodiscard]] __host__ __device__ int Floats(int input_tiles) const {
    return tiles * segments * input_tiles * kTileInputs * kTileRows;
  }
};

// Where lanes put their sums of a segment: [input][row].
template <int kTiles>
__device__ __forceinline__ void StoreSums(const float (*acc)[4], float* sums) {
  const int g = Lane() / 4;
  const int q = Lane() % 4;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[(t * kTileInputs + 2 * q + i % 2) * kTileRows + g + i / 2 * 8] = acc[t][i];
    }
  }
}

// Sum `at` of all segments, ascending.
__device__ inline float AddSegments(const float* sums, int segments, int size, int at) {
  float total = sums[at];
  for (int s = 1; s < segments; ++s) total += sums[s * size + at];
  return total;
}

}  // namespace fathom::cuda
