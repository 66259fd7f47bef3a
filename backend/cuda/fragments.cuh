// Stored weights as operands of the matrix unit.
//
// A step of kStep columns of 16 rows is what a warp multiplies at a time. A lane reads 16
// consecutive bytes of each of its two rows, as often as the format needs for kStep columns, and
// owns four units of eight columns of them. Columns may meet in any order as long as those of the
// weights and of the inputs agree: within a unit they are taken as 0, 4, 1, 5, 2, 6, 3, 7, the
// order in which pairs of codes come out of a word with the fewest instructions. PackRows stores
// inputs in that order.
//
// Codes are decoded with their scale into bf16, which holds every such value: a code's bits are put
// where bf16 has the exponent's low bits and the mantissa's high ones, and a product with a power
// of two does the rest, subnormal codes included. The e4m3 codes 0x7F and 0xFF, which are no
// number, are read as +-480.
#pragma once

#include "backend/cuda/mma.cuh"
#include "backend/cuda/warp.cuh"
#include "backend/weights.h"

namespace fathom::cuda {

inline constexpr int kTileRows = 16;  // weight rows of a warp
inline constexpr int kStep = 128;     // columns
inline constexpr int kUnits = 4;      // units of eight columns that a lane owns in a step

// Where column c is in packed rows.
__device__ inline int PackedColumn(int c) { return c / 8 * 8 + c % 4 * 2 + c / 4 % 2; }

// 2^(byte - 127 + bias), by which decoded bits are multiplied; the product of two factors where it
// is above the largest bf16.
struct CodeScale {
  uint32_t first = 0;
  uint32_t second = 0;  // 0: none

  __device__ CodeScale() = default;
  __device__ CodeScale(unsigned byte, unsigned bias) {
    constexpr unsigned kLargest = 254;  // exponent field of 2^127
    const unsigned exponent = byte + bias;
    const unsigned field = min(exponent, kLargest) << 7;
    first = byte == 255 ? 0x7FC07FC0u : field | field << 16;
    if (exponent > kLargest) {
      const unsigned rest = (exponent - kLargest + 127u) << 7;
      second = rest | rest << 16;
    }
  }
  // The second product, of `count` pairs.
  __device__ void Finish(uint32_t* pairs, int count) const {
    if (second == 0) return;
    for (int i = 0; i < count; ++i) pairs[i] = MulBf16x2(pairs[i], second);
  }
};

// Those of a step's two rows of a lane.
struct StepScales {
  __device__ StepScales(const uint8_t* bytes, unsigned bias)
      : of{CodeScale(bytes[0], bias), CodeScale(bytes[1], bias)},
        large(__any_sync(kAllLanes, (of[0].second | of[1].second) != 0 ? 1 : 0) != 0) {}
  CodeScale of[2];
  bool large;  // whether any lane has second factors
};

// What the formats share: a lane's two rows of the tile that begins at `first_row`. Rows behind the
// last one are the last one's; what is computed for them is not stored.
struct LaneRows {
  __device__ LaneRows(const WeightView& w, int first_row) {
    const int g = Lane() / 4;
    row[0] = min(first_row + g, w.rows - 1);
    row[1] = min(first_row + g + 8, w.rows - 1);
  }
  int row[2];
};

// A lane's part of 16 rows of a weight: Load reads a step, Decode makes a unit of it.
template <DType kType>
struct WeightTile;

// Differences of the exponent biases: bf16's is 127, e4m3's 7, e2m1's 1.
inline constexpr unsigned kE4m3Bias = 120;
inline constexpr unsigned kE2m1Bias = 126;

// Two e4m3 codes, the upper bytes of halves, times the first factor of a scale.
__device__ inline uint32_t DecodeE4m3Pair(uint32_t pair, uint32_t factor) {
  return MulBf16x2((pair & 0x80008000u) | ((pair >> 4) & 0x07F007F0u), factor);
}
// Eight codes of 8 bits, packed, likewise.
__device__ inline void DecodeE4m3(uint32_t low, uint32_t high, uint32_t factor, uint32_t* out) {
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) {
    // Bytes i of both words.
    out[i] = DecodeE4m3Pair(__byte_perm(low, high, (4 + i) << 12 | i << 4), factor);
  }
}
// Eight codes of 4 bits, likewise.
__device__ inline void DecodeE2m1(uint32_t word, uint32_t factor, uint32_t* out) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // Nibbles i and i + 4 as the upper nibbles of halves.
    const uint32_t pair = word << (12 - 4 * i);
    out[i] = MulBf16x2((pair & 0x80008000u) | ((pair >> 6) & 0x01C001C0u), factor);
  }
}
// Eight bf16 values, packed.
__device__ inline void PackBf16(const uint4& words, uint32_t* out) {
  out[0] = __byte_perm(words.x, words.z, 0x5410);
  out[1] = __byte_perm(words.x, words.z, 0x7632);
  out[2] = __byte_perm(words.y, words.w, 0x5410);
  out[3] = __byte_perm(words.y, words.w, 0x7632);
}

template <>
struct WeightTile<DType::kF8E4M3> {
  struct Raw {
    uint4 words[2][2];
    uint8_t scale[2];
  };
  static __device__ StepScales Scales(const Raw& raw) { return {raw.scale, kE4m3Bias}; }

  __device__ WeightTile(const WeightView& w, int first_row) {
    const LaneRows lane(w, first_row);
    for (int r = 0; r < 2; ++r) {
      codes[r] =
          static_cast<const uint8_t*>(w.data) + int64_t{lane.row[r]} * w.cols + Lane() % 4 * 16;
      scales[r] = w.scale + int64_t{lane.row[r] / 128} * (w.cols / 128);
    }
  }
  __device__ Raw Load(int step) const {
    Raw raw;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        raw.words[r][c] =
            __ldg(reinterpret_cast<const uint4*>(codes[r] + int64_t{step} * kStep + c * 64));
      }
      raw.scale[r] = scales[r][step];
    }
    return raw;
  }
  static __device__ void Decode(const Raw& raw, const StepScales& scales, int unit,
                                uint32_t (*out)[4]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint4& words = raw.words[r][unit / 2];
      DecodeE4m3(unit % 2 == 0 ? words.x : words.z, unit % 2 == 0 ? words.y : words.w,
                 scales.of[r].first, out[r]);
    }
  }
  // Which of the step's units of eight columns is lane % 4 == q's `unit`.
  static __device__ int UnitOf(int unit, int q) { return unit / 2 * 8 + 2 * q + unit % 2; }

  const uint8_t* codes[2];
  const uint8_t* scales[2];
};

template <>
struct WeightTile<DType::kI8> {
  struct Raw {
    uint4 words[2];
    uint8_t scale[2];
  };
  static __device__ StepScales Scales(const Raw& raw) { return {raw.scale, kE2m1Bias}; }

  __device__ WeightTile(const WeightView& w, int first_row) {
    const LaneRows lane(w, first_row);
    for (int r = 0; r < 2; ++r) {
      codes[r] = static_cast<const uint8_t*>(w.data) + int64_t{lane.row[r]} * (w.cols / 2) +
                 Lane() % 4 * 16;
      scales[r] = w.scale + int64_t{lane.row[r]} * (w.cols / 32) + Lane() % 4;
    }
  }
  __device__ Raw Load(int step) const {
    Raw raw;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      raw.words[r] = __ldg(reinterpret_cast<const uint4*>(codes[r] + int64_t{step} * (kStep / 2)));
      raw.scale[r] = scales[r][int64_t{step} * 4];
    }
    return raw;
  }
  static __device__ void Decode(const Raw& raw, const StepScales& scales, int unit,
                                uint32_t (*out)[4]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint4& words = raw.words[r];
      DecodeE2m1(unit == 0   ? words.x
                 : unit == 1 ? words.y
                 : unit == 2 ? words.z
                             : words.w,
                 scales.of[r].first, out[r]);
    }
  }
  static __device__ int UnitOf(int unit, int q) { return 4 * q + unit; }

  const uint8_t* codes[2];
  const uint8_t* scales[2];
};

template <>
struct WeightTile<DType::kBF16> {
  struct Raw {
    uint4 words[2][4];
  };
  struct NoScales {
    static constexpr bool large = false;
    CodeScale of[2];
  };
  static __device__ NoScales Scales(const Raw& /*raw*/) { return {}; }

  __device__ WeightTile(const WeightView& w, int first_row) {
    const LaneRows lane(w, first_row);
    for (int r = 0; r < 2; ++r) {
      values[r] =
          static_cast<const uint16_t*>(w.data) + int64_t{lane.row[r]} * w.cols + Lane() % 4 * 8;
    }
  }
  __device__ Raw Load(int step) const {
    Raw raw;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        raw.words[r][c] =
            __ldg(reinterpret_cast<const uint4*>(values[r] + int64_t{step} * kStep + c * 32));
      }
    }
    return raw;
  }
  static __device__ void Decode(const Raw& raw, const NoScales& /*scales*/, int unit,
                                uint32_t (*out)[4]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      PackBf16(raw.words[r][unit], out[r]);
    }
  }
  static __device__ int UnitOf(int unit, int q) { return unit * 4 + q; }

  const uint16_t* values[2];
};

}  // namespace fathom::cuda
