// Experts on the matrix unit: as tile_products.cu, with the items of an expert for inputs.
#include <algorithm>
#include <type_traits>

#include "backend/cuda/launch.cuh"
#include "backend/cuda/moe.h"
#include "backend/cuda/swiglu.cuh"
#include "backend/cuda/tiles.cuh"
#include "backend/cuda/wide.cuh"

namespace fathom::cuda {
namespace {

// Few items per tile for steps that read more weights than they compute, many for the others.
constexpr int kFewTiles = 1;
constexpr int kFewRows = 64;

// f(format) for the formats of quantised experts.
template <typename F>
__device__ __forceinline__ void WithFormat(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kF8E4M3:
      return f(std::integral_constant<DType, DType::kF8E4M3>());
    default:
      return f(std::integral_constant<DType, DType::kI8>());
  }
}

__device__ inline void StoreHidden(const MoeRows& a, const ExpertItem& item, int row, float gate,
                                   float up) {
  a.packed_hidden[int64_t{item.slot} * a.max_width + row] =
      ToBf16(SwiGlu(gate, up, a.limit, item.weight));
}
__device__ inline void StoreOut(const MoeRows& a, const ExpertItem& item, int row, float y) {
  a.expert_out[int64_t{item.slot} * a.dim + row] = ToBf16(y);
}
__device__ inline const uint16_t* HiddenOf(const MoeRows& a, const ExpertItem& item) {
  return a.packed_hidden + int64_t{item.slot} * a.max_width;
}

// The warps of a block divide the columns. `products(first_row, segment, rows, sums)` is a warp's
// part and puts kSums arrays of sums; `store(item, row, values)` gets the totals.
template <int kSums, typename RowOf, typename Products, typename Store>
__device__ __forceinline__ void FewItems(const MoeRows& a, const ExpertTile& tile, int num_rows,
                                         int cols, float* sums, const RowOf& row_of,
                                         const Products& products, const Store& store) {
  constexpr int kSize = kTileInputs * kTileRows;
  const SegmentSplit split(cols);
  const int first_tile = static_cast<int>(blockIdx.x) * split.tiles;
  const int mine = Lane() / 4;
  const uint16_t* row = row_of(a.items[tile.first + min(mine, tile.count - 1)]);
  for (int task = WarpIndex(); task < split.tiles * split.segments; task += kWarps) {
    const int first_row = (first_tile + task / split.segments) * kTileRows;
    if (first_row >= num_rows) break;
    products(first_row, task % split.segments, &row, sums + task * kSums * kSize);
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < split.tiles * kSize; i += kBlock) {
    const int at = i % kSize;
    const int out_row = (first_tile + i / kSize) * kTileRows + at % kTileRows;
    if (out_row >= num_rows || at / kTileRows >= tile.count) continue;
    float values[kSums];
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
      values[s] = AddSegments(sums + i / kSize * split.segments * kSums * kSize + s * kSize,
                              split.segments, kSums * kSize, at);
    }
    store(a.items[tile.first + at / kTileRows], out_row, values);
  }
}

__global__ void __launch_bounds__(kBlock, 2) FewGateUpKernel(MoeRows a) {
  auto* const sums = SharedMemory<float>();  // [tile][segment][gate, up][item][row]
  if (static_cast<int>(blockIdx.y) >= *a.num_tiles) return;
  const ExpertTile tile = a.tiles[blockIdx.y];
  const ExpertWeights& e = a.experts[tile.expert];
  FewItems<2>(
      a, tile, e.w1.rows, a.dim, sums,
      [&](const ExpertItem& item) { return a.packed + int64_t{item.row} * a.dim; },
      [&](int first_row, int segment, const uint16_t* const* rows, float* to) {
        WithFormat(e.w1.dtype, [&](auto format) {
          float acc[1][4];
          constexpr int kAhead = kStepsAhead<format.value> / 2;  // of each
          Segment<format.value, 1, kAhead> gate(e.w1, first_row, segment);
          Segment<format.value, 1, kAhead> up(e.w3, first_row, segment);
          gate.Multiply(rows, acc);
          StoreSums<1>(acc, to);
          up.Multiply(rows, acc);
          StoreSums<1>(acc, to + kTileInputs * kTileRows);
        });
      },
      [&](const ExpertItem& item, int row, const float* y) {
        StoreHidden(a, item, row, y[0], y[1]);
      });
}

__global__ void __launch_bounds__(kBlock, 2) FewDownKernel(MoeRows a) {
  auto* const sums = SharedMemory<float>();  // [tile][segment][item][row]
  if (static_cast<int>(blockIdx.y) >= *a.num_tiles) return;
  const ExpertTile tile = a.tiles[blockIdx.y];
  const WeightView& w2 = a.experts[tile.expert].w2;
  FewItems<1>(
      a, tile, w2.rows, w2.cols, sums, [&](const ExpertItem& item) { return HiddenOf(a, item); },
      [&](int first_row, int segment, const uint16_t* const* rows, float* to) {
        WithFormat(w2.dtype, [&](auto format) {
          float acc[1][4];
          Segment<format.value, 1>(w2, first_row, segment).Multiply(rows, acc);
          StoreSums<1>(acc, to);
        });
      },
      [&](const ExpertItem& item, int row, const float* y) { StoreOut(a, item, row, y[0]); });
}

// A warp per group of 128 hidden channels of an item becomes what w2 takes, in place; with
// `ordered`, what MultiplyWide takes.
__global__ void __launch_bounds__(kBlock) PackHiddenKernel(MoeRows a, bool ordered) {
  const auto i = static_cast<int>(blockIdx.y);
  if (i >= a.begin[a.num_experts + 1]) return;
  const int group = (static_cast<int>(blockIdx.x) * kWarps + WarpIndex()) * 128;
  if (group >= a.max_width) return;
  const int slot = a.items[i].slot;
  uint16_t* hidden = a.packed_hidden + int64_t{slot} * a.max_width + group;
  float values[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) values[k] = FromBf16(hidden[4 * Lane() + k]);
  __syncwarp();
  PackGroup(values, /*quantise=*/true, hidden);
  if (!ordered) return;
  const int place = slot % (a.chosen + 1);
  const int expert =
      place == a.chosen ? a.num_experts : a.ids[slot / (a.chosen + 1) * a.chosen + place];
  __syncwarp();
  OrderStep(hidden, a.experts[expert].w2.dtype);
}

// A warp per step of an input: copies of it in the orders of both formats of w1.
__global__ void __launch_bounds__(kBlock) OrderInputsKernel(MoeRows a, int64_t steps) {
  const int64_t i = int64_t{blockIdx.x} * kWarps + WarpIndex();
  if (i >= steps) return;
  uint16_t* const first = a.packed + i * kStep;
  uint16_t* const second = first + int64_t{a.n} * a.dim;
  reinterpret_cast<uint2*>(second)[Lane()] = reinterpret_cast<const uint2*>(first)[Lane()];
  __syncwarp();
  OrderStep(first, DType::kI8);
  OrderStep(second, DType::kF8E4M3);
}

// f(tiles) for the least number of input tiles that items fill and a kernel was made for.
template <int kTiles, typename F>
__device__ __forceinline__ void WithTiles(int count, const F& f) {
  if constexpr (kTiles > 4) {
    if (count <= kTiles / 2 * kTileInputs) return f(std::integral_constant<int, kTiles / 2>());
  }
  return f(std::integral_constant<int, kTiles>());
}

// f(t, i, item, row) for all sums of a lane that are of an item and a row.
template <int kTiles, typename F>
__device__ __forceinline__ void ForLaneSums(const MoeRows& a, const ExpertTile& tile, int first_row,
                                            int num_rows, const F& f) {
  const int g = Lane() / 4;
  const int q = Lane() % 4;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int item = t * kTileInputs + 2 * q + i % 2;
      const int row = first_row + g + i / 2 * 8;
      if (item < tile.count && row < num_rows) f(t, i, a.items[tile.first + item], row);
    }
  }
}

// Shared memory of a block: stages, and the rows of its items.
template <int kTiles>
struct ManyMemory {
  static constexpr size_t kBytes =
      WideStages<kTiles>::kBytes + WideStages<kTiles>::kInputs * sizeof(uint16_t*);
  uint4* stages;
  const uint16_t** rows;
  // row_of(i) is the input of item i of the tile.
  template <typename RowOf>
  __device__ ManyMemory(const ExpertTile& tile, const RowOf& row_of)
      : stages(SharedMemory<uint4>()),
        rows(reinterpret_cast<const uint16_t**>(stages + WideStages<kTiles>::kBytes / 16)) {
    for (int i = static_cast<int>(threadIdx.x); i < WideStages<kTiles>::kInputs; i += kBlock) {
      rows[i] = i < tile.count ? row_of(i) : nullptr;
    }
  }
};

// Rows of a block: one group of warps has them of w1, the other of w3.
constexpr int kGateRows = kGroupWarps * kTileRows;
static_assert(kWarps == 2 * kGroupWarps);

template <int kTiles>
__global__ void __launch_bounds__(kBlock, kTiles > 8 ? 1 : 2) ManyGateUpKernel(MoeRows a) {
  if (static_cast<int>(blockIdx.y) >= *a.num_tiles) return;
  const ExpertTile tile = a.tiles[blockIdx.y];
  const ExpertWeights& e = a.experts[tile.expert];
  const int block_row = static_cast<int>(blockIdx.x) * kGateRows;
  if (block_row >= e.w1.rows) return;
  const int first_row = block_row + WarpIndex() % kGroupWarps * kTileRows;
  const bool is_gate = WarpIndex() < kGroupWarps;
  const uint16_t* const packed =
      e.w1.dtype == DType::kI8 ? a.packed : a.packed + int64_t{a.n} * a.dim;
  const ManyMemory<kTiles> memory(
      tile, [&](int i) { return packed + int64_t{a.items[tile.first + i].row} * a.dim; });
  WithFormat(e.w1.dtype, [&](auto format) {
    WithTiles<kTiles>(tile.count, [&](auto tiles) {
      float sums[tiles.value][4];
      MultiplyWide<format.value, tiles.value>(is_gate ? e.w1 : e.w3, first_row, memory.rows,
                                              memory.stages, sums);
      // Sums of w3 go to the warp that has the same rows of w1.
      __syncthreads();
      auto* const ups = reinterpret_cast<float*>(memory.stages) +
                        WarpIndex() % kGroupWarps * tiles.value * 4 * kWarp + Lane();
      if (!is_gate) {
#pragma unroll
        for (int t = 0; t < tiles.value; ++t) {
#pragma unroll
          for (int i = 0; i < 4; ++i) ups[(t * 4 + i) * kWarp] = sums[t][i];
        }
      }
      __syncthreads();
      if (!is_gate) return;
      ForLaneSums<tiles.value>(a, tile, first_row, e.w1.rows,
                               [&](int t, int i, const ExpertItem& item, int row) {
                                 StoreHidden(a, item, row, sums[t][i], ups[(t * 4 + i) * kWarp]);
                               });
    });
  });
}

template <int kTiles>
__global__ void __launch_bounds__(kBlock, kTiles > 8 ? 1 : 2) ManyDownKernel(MoeRows a) {
  if (static_cast<int>(blockIdx.y) >= *a.num_tiles) return;
  const ExpertTile tile = a.tiles[blockIdx.y];
  const WeightView& w2 = a.experts[tile.expert].w2;
  const int first_row = (static_cast<int>(blockIdx.x) * kWarps + WarpIndex()) * kTileRows;
  const ManyMemory<kTiles> memory(tile,
                                  [&](int i) { return HiddenOf(a, a.items[tile.first + i]); });
  WithFormat(w2.dtype, [&](auto format) {
    WithTiles<kTiles>(tile.count, [&](auto tiles) {
      float y[tiles.value][4];
      MultiplyWide<format.value, tiles.value>(w2, first_row, memory.rows, memory.stages, y);
      ForLaneSums<tiles.value>(
          a, tile, first_row, w2.rows,
          [&](int t, int i, const ExpertItem& item, int row) { StoreOut(a, item, row, y[t][i]); });
    });
  });
}

// Blocks of rows, for the most columns that an expert's matrix has; and the shared memory.
struct FewLaunch {
  unsigned blocks;
  size_t bytes;
  FewLaunch(int rows, int cols, int num_sums) {
    const SegmentSplit split(cols);
    blocks = Blocks(rows, split.tiles * kTileRows);
    // Experts with fewer columns fill the warps with tiles.
    bytes =
        static_cast<size_t>(std::max(kWarps, split.segments) * num_sums * kTileInputs * kTileRows) *
        sizeof(float);
  }
};

Status PackHidden(const MoeRows& rows, bool ordered, cudaStream_t stream) {
  const auto items = static_cast<unsigned>(rows.n * (rows.chosen + 1));
  Launch(PackHiddenKernel, dim3(Blocks(rows.max_width, 128 * kWarps), items), kBlock, 0, stream,
         rows, ordered);
  return LaunchStatus("moe: hidden");
}

Status MultiplyFew(const MoeRows& rows, unsigned tiles, cudaStream_t stream) {
  const FewLaunch up(rows.max_width, rows.dim, 2);
  FATHOM_RETURN_IF_ERROR(AllowSharedMemory(FewGateUpKernel, up.bytes));
  Launch(FewGateUpKernel, dim3(up.blocks, tiles), kBlock, up.bytes, stream, rows);
  FATHOM_RETURN_IF_ERROR(LaunchStatus("moe: gate and up"));
  FATHOM_RETURN_IF_ERROR(PackHidden(rows, /*ordered=*/false, stream));
  const FewLaunch down(rows.dim, rows.max_width, 1);
  FATHOM_RETURN_IF_ERROR(AllowSharedMemory(FewDownKernel, down.bytes));
  Launch(FewDownKernel, dim3(down.blocks, tiles), kBlock, down.bytes, stream, rows);
  return LaunchStatus("moe: down");
}

template <int kTiles>
Status MultiplyMany(const MoeRows& rows, unsigned tiles, cudaStream_t stream) {
  const int64_t steps = int64_t{rows.n} * (rows.dim / kStep);
  Launch(OrderInputsKernel, Blocks(steps, kWarps), kBlock, 0, stream, rows, steps);
  FATHOM_RETURN_IF_ERROR(LaunchStatus("moe: order of inputs"));
  constexpr size_t kBytes = ManyMemory<kTiles>::kBytes;
  FATHOM_RETURN_IF_ERROR(AllowSharedMemory(ManyGateUpKernel<kTiles>, kBytes));
  Launch(ManyGateUpKernel<kTiles>, dim3(Blocks(rows.max_width, kGateRows), tiles), kBlock, kBytes,
         stream, rows);
  FATHOM_RETURN_IF_ERROR(LaunchStatus("moe: gate and up"));
  FATHOM_RETURN_IF_ERROR(PackHidden(rows, /*ordered=*/true, stream));
  FATHOM_RETURN_IF_ERROR(AllowSharedMemory(ManyDownKernel<kTiles>, kBytes));
  Launch(ManyDownKernel<kTiles>, dim3(Blocks(rows.dim, kWarps * kTileRows), tiles), kBlock, kBytes,
         stream, rows);
  return LaunchStatus("moe: down");
}

}  // namespace

int ExpertTileInputs(int n, int chosen, int num_experts) {
  if (n <= kFewRows) return kFewTiles * kTileInputs;
  const int per_expert = n * chosen / num_experts;
  return per_expert > 48 ? 128 : per_expert > 24 ? 64 : 32;
}

Status MultiplyExpertTiles(const MoeRows& rows, cudaStream_t stream) {
  // An expert has a tile that is not full at most.
  const int items = rows.n * (rows.chosen + 1);
  const auto tiles =
      static_cast<unsigned>(std::min(items, rows.num_experts + 1 + items / rows.tile_inputs));
  switch (rows.tile_inputs / kTileInputs) {
    case 16:
      return MultiplyMany<16>(rows, tiles, stream);
    case 8:
      return MultiplyMany<8>(rows, tiles, stream);
    case 4:
      return MultiplyMany<4>(rows, tiles, stream);
    default:
      return MultiplyFew(rows, tiles, stream);
  }
}

}  // namespace fathom::cuda
