// Products of stored weights with many inputs: the sums of tiles.cuh, on the matrix unit of four
// warps together. Weights are decoded into registers; inputs come through shared memory.
#pragma once

#include "backend/cuda/tiles.cuh"
#include "backend/cuda/wgmma.cuh"

namespace fathom::cuda {

// Where a packed piece of eight columns stands among those of a step for weights of a type: it is
// unit `unit` of lanes `lane` of four (WeightTile::UnitOf).
struct PiecePlace {
  int unit;
  int lane;
};
__device__ inline PiecePlace PlaceOfPiece(DType type, int piece) {
  switch (type) {
    case DType::kF8E4M3:
      return {piece / 8 * 2 + piece % 2, piece % 8 / 2};
    case DType::kI8:
      return {piece % 4, piece / 4};
    default:
      return {piece / 4, piece % 4};
  }
}

// Puts a step of a packed input into the order of MultiplyWide, in place, the work of a warp: word
// w of the pieces that four lanes have as a unit becomes piece 4 unit + w.
__device__ inline void OrderStep(uint16_t* step, DType type) {
  auto* const words = reinterpret_cast<uint32_t*>(step);
  const PiecePlace place = PlaceOfPiece(type, Lane() / 2);
  const int first = Lane() % 2 * 2;
  const uint2 own = *reinterpret_cast<const uint2*>(words + 2 * Lane());
  __syncwarp();
  words[(place.unit * 4 + first) * 4 + place.lane] = own.x;
  words[(place.unit * 4 + first + 1) * 4 + place.lane] = own.y;
}

// Inputs of a block in that order, a step at a time through shared memory.
template <int kTiles>
struct WideStages {
  // Two steps are on their way while one is multiplied and the one before may still be read.
  static constexpr int kAhead = 2;
  static constexpr int kStages = kAhead + 2;
  static constexpr int kPieces = kStep / 8;
  static constexpr int kInputs = kTiles * kTileInputs;
  static constexpr int kStageUnits = kPieces * kInputs;  // of 16 bytes
  static constexpr int kBytes = kStages * kStageUnits * 16;

  static __device__ uint4* Of(uint4* stages, int step) {
    return stages + step % kStages * kStageUnits;
  }
  // Starts the copies of `step`; rows[i] is input i's row, null for none.
  static __device__ __forceinline__ void Start(uint4* stages, int step,
                                               const uint16_t* const* rows) {
    uint4* const stage = Of(stages, step);
#pragma unroll
    for (int p = static_cast<int>(threadIdx.x); p < kStageUnits; p += kBlock) {
      // Eight inputs at a time, so that neither memory has conflicts.
      const int low = p % 8;
      const int tile = p / 32 % kTiles;
      const int piece = p / (32 * kTiles) * 4 + p / 8 % 4;
      const uint16_t* const row = rows[tile * kTileInputs + low];
      CopyAsync16(stage + (piece * kTiles + tile) * 8 + low,
                  row == nullptr ? nullptr : row + int64_t{step} * kStep + piece * 8,
                  row != nullptr);
    }
  }
};

// total[t] = the products of 16 weight rows with inputs 8 t .. 8 t + 7; the work of a block of
// whole groups of warps with the same inputs. Weights of the warps have the same format and
// columns; rows of a warp may lie behind the last one. rows[kTiles * 8] are in shared memory,
// `stages` has WideStages<kTiles>::kBytes of it.
template <DType kType, int kTiles>
__device__ __forceinline__ void MultiplyWide(const WeightView& weight, int first_row,
                                             const uint16_t* const* rows, uint4* stages,
                                             float (*total)[4]) {
  using Tile = WeightTile<kType>;
  using Stages = WideStages<kTiles>;
  const int steps = weight.cols / kStep;
  const Tile tile(weight, first_row);
  float acc[kTiles][4];
  __syncthreads();  // an earlier use of the stages has ended, and all rows are there
#pragma unroll
  for (int s = 0; s < Stages::kAhead; ++s) {
    if (s < steps) Stages::Start(stages, s, rows);
    CommitCopies();
  }
  typename Tile::Raw next = tile.Load(0);
  for (int step = 0; step < steps; ++step) {
    const typename Tile::Raw raw = next;
    if (step + 1 < steps) next = tile.Load(step + 1);
    WaitForCopies<Stages::kAhead - 1>();
    ShowInputs();
    __syncthreads();
    // Goes where the step before the last one was, of which nothing is under way.
    if (step + Stages::kAhead < steps) Stages::Start(stages, step + Stages::kAhead, rows);
    CommitCopies();
    if (step % kSegmentSteps == 0) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[t][i] = 0.0f;
      }
    }
    const uint4* const stage = Stages::Of(stages, step);
    const auto scales = Tile::Scales(raw);
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      uint32_t w[2][4];
      Tile::Decode(raw, scales, unit, w);
      if (scales.large) {
        scales.of[0].Finish(w[0], 4);
        scales.of[1].Finish(w[1], 4);
      }
      WideBegin();
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t a[4] = {w[0][2 * h], w[1][2 * h], w[0][2 * h + 1], w[1][2 * h + 1]};
        MmaWide<kTiles>(acc, a, stage + (unit * 4 + 2 * h) * kTiles * 8);
      }
      WideCommit();
      WideWait<1>();
    }
    if (step % kSegmentSteps == kSegmentSteps - 1 || step == steps - 1) {
      WideWait<0>();
      const bool first = step < kSegmentSteps;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) total[t][i] = first ? acc[t][i] : total[t][i] + acc[t][i];
      }
    }
  }
}

}  // namespace fathom::cuda
