#include "backend/cuda/tile_products.h"

#include <algorithm>
#include <string>

#include "backend/cuda/launch.cuh"
#include "backend/cuda/status.h"
#include "backend/cuda/tiles.cuh"
#include "backend/cuda/wide.cuh"

namespace fathom::cuda {
namespace {

// A warp per group of 128 columns.
__global__ void __launch_bounds__(kBlock)
    PackKernel(ConstRows x, int64_t cols, bool quantise, uint16_t* out) {
  const int64_t groups = cols / 128;
  const int64_t i = int64_t{blockIdx.x} * kWarps + WarpIndex();
  if (i >= x.n * groups) return;
  const float* from = x.data + i / groups * x.stride + i % groups * 128 + 4 * Lane();
  float values[4] = {from[0], from[1], from[2], from[3]};
  PackGroup(values, quantise, out + i * 128);
}

struct Job {
  WeightView weight;
  float* out;
  int64_t stride;
  int rows_per_group;
  int blocks;  // of rows
};
struct Jobs {
  PackedRows x;
  Job job[2];
  bool round;
};

__device__ inline void Store(const Jobs& a, const Job& job, int64_t input, int row, float sum) {
  if (input >= a.x.n || row >= job.weight.rows) return;
  job.out[input * job.stride + row] = a.round ? RoundBf16(sum) : sum;
}

// The job of a block of rows, whose number becomes that within the job.
__device__ inline const Job& JobOf(const Jobs& a, int* block) {
  if (*block < a.job[0].blocks) return a.job[0];
  *block -= a.job[0].blocks;
  return a.job[1];
}

// For few inputs: the warps of a block divide the columns, so that one input keeps the memory busy.
template <DType kType, int kTiles>
__global__ void __launch_bounds__(kBlock, 2) FewInputsKernel(Jobs a) {
  auto* const sums = SharedMemory<float>();  // [tile][segment][input][row]
  constexpr int kSize = kTiles * kTileInputs * kTileRows;
  auto block = static_cast<int>(blockIdx.x);
  const Job& job = JobOf(a, &block);
  const SegmentSplit split(job.weight.cols);
  const int64_t first_input = int64_t{blockIdx.y} * kTiles * kTileInputs;
  const uint16_t* rows[kTiles];
  for (int task = WarpIndex(); task < split.tiles * split.segments; task += kWarps) {
    const int first_row = (block * split.tiles + task / split.segments) * kTileRows;
    if (first_row >= job.weight.rows) break;
    const int64_t column = int64_t{first_row / job.rows_per_group} * job.weight.cols;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int64_t input = min(first_input + t * kTileInputs + Lane() / 4, a.x.n - 1);
      rows[t] = a.x.data + input * a.x.cols + column;
    }
    float acc[kTiles][4];
    Segment<kType, kTiles>(job.weight, first_row, task % split.segments).Multiply(rows, acc);
    StoreSums<kTiles>(acc, sums + task * kSize);
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < split.tiles * kSize; i += kBlock) {
    const int tile = i / kSize;
    const int at = i % kSize;
    const int row = (block * split.tiles + tile) * kTileRows + at % kTileRows;
    if (row >= job.weight.rows || first_input + at / kTileRows >= a.x.n) continue;
    Store(a, job, first_input + at / kTileRows, row,
          AddSegments(sums + tile * split.segments * kSize, split.segments, kSize, at));
  }
}

// A warp per step of an input: OrderStep.
__global__ void __launch_bounds__(kBlock) OrderKernel(uint16_t* x, int64_t steps, DType type) {
  const int64_t i = int64_t{blockIdx.x} * kWarps + WarpIndex();
  if (i < steps) OrderStep(x + i * kStep, type);
}

// For many: a warp per 16 rows, the inputs of a block in shared memory, in the order of
// OrderKernel.
template <DType kType, int kTiles>
__global__ void __launch_bounds__(kBlock, kTiles > 8 ? 1 : 2) ManyInputsKernel(Jobs a) {
  using Stages = WideStages<kTiles>;
  auto* const stages = SharedMemory<uint4>();
  auto* const rows = reinterpret_cast<const uint16_t**>(stages + Stages::kBytes / 16);
  auto block = static_cast<int>(blockIdx.y);
  const Job& job = JobOf(a, &block);
  const int first_row = (block * kWarps + WarpIndex()) * kTileRows;
  const int64_t first_input = int64_t{blockIdx.x} * Stages::kInputs;
  // Rows of a block are of one group: groups have whole blocks of them, or there is one.
  const int64_t column = int64_t{block * kWarps * kTileRows / job.rows_per_group} * job.weight.cols;
  for (int i = static_cast<int>(threadIdx.x); i < Stages::kInputs; i += kBlock) {
    const int64_t input = first_input + i;
    rows[i] = input < a.x.n ? a.x.data + input * a.x.cols + column : nullptr;
  }
  float total[kTiles][4];
  MultiplyWide<kType, kTiles>(job.weight, first_row, rows, stages, total);
  const int g = Lane() / 4;
  const int q = Lane() % 4;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      Store(a, job, first_input + t * kTileInputs + 2 * q + i % 2, first_row + g + i / 2 * 8,
            total[t][i]);
    }
  }
}

// Blocks of rows of both jobs.
unsigned SetBlocks(Jobs& jobs, int rows_per_block) {
  unsigned blocks = 0;
  for (Job& job : jobs.job) {
    job.blocks = static_cast<int>(Blocks(job.weight.rows, rows_per_block));
    blocks += static_cast<unsigned>(job.blocks);
  }
  return blocks;
}

template <DType kType, int kTiles>
Status LaunchFew(Jobs& jobs, cudaStream_t stream) {
  const SegmentSplit split(jobs.job[0].weight.cols);
  const unsigned blocks = SetBlocks(jobs, split.tiles * kTileRows);
  const auto bytes = static_cast<size_t>(split.Floats(kTiles)) * sizeof(float);
  FATHOM_RETURN_IF_ERROR(AllowSharedMemory(FewInputsKernel<kType, kTiles>, bytes));
  Launch(FewInputsKernel<kType, kTiles>, dim3(blocks, Blocks(jobs.x.n, kTiles * kTileInputs)),
         kBlock, bytes, stream, jobs);
  return LaunchStatus("product");
}

template <DType kType, int kTiles>
Status LaunchMany(Jobs& jobs, cudaStream_t stream) {
  const unsigned blocks = SetBlocks(jobs, kWarps * kTileRows);
  const int64_t steps = jobs.x.n * (jobs.x.cols / kStep);
  Launch(OrderKernel, Blocks(steps, kWarps), kBlock, 0, stream, jobs.x.data, steps, kType);
  FATHOM_RETURN_IF_ERROR(LaunchStatus("order of inputs"));
  constexpr size_t kBytes =
      WideStages<kTiles>::kBytes + WideStages<kTiles>::kInputs * sizeof(uint16_t*);
  FATHOM_RETURN_IF_ERROR(AllowSharedMemory(ManyInputsKernel<kType, kTiles>, kBytes));
  Launch(ManyInputsKernel<kType, kTiles>, dim3(Blocks(jobs.x.n, kTiles * kTileInputs), blocks),
         kBlock, kBytes, stream, jobs);
  return LaunchStatus("product");
}

// Blocks that keep most of the GPU's multiprocessors busy.
constexpr int64_t kEnoughBlocks = 96;

template <DType kType>
Status MultiplyJobs(Jobs& jobs, bool groups_have_blocks, cudaStream_t stream) {
  const int64_t n = jobs.x.n;
  const int64_t rows = int64_t{jobs.job[0].weight.rows} + jobs.job[1].weight.rows;
  const auto blocks_of = [&](int64_t inputs) {
    return rows / (kWarps * kTileRows) * ((n + inputs - 1) / inputs);
  };
  // All ways have the same sums; only time differs.
  const bool many = n > 128 || (n > 32 && blocks_of(64) >= kEnoughBlocks);
  if (many && groups_have_blocks) {
    return n > 64 && blocks_of(128) >= kEnoughBlocks ? LaunchMany<kType, 16>(jobs, stream)
                                                     : LaunchMany<kType, 8>(jobs, stream);
  }
  return n <= kTileInputs ? LaunchFew<kType, 1>(jobs, stream) : LaunchFew<kType, 2>(jobs, stream);
}

}  // namespace

bool HasTiles(const WeightView& weight, int groups) {
  const bool known =
      weight.dtype == DType::kF8E4M3 || weight.dtype == DType::kI8 || weight.dtype == DType::kBF16;
  return known && weight.cols > 0 && weight.cols % kStep == 0 &&
         reinterpret_cast<uintptr_t>(weight.data) % 16 == 0 &&
         (groups == 1 || weight.rows / groups % kTileRows == 0);
}

Status PackRows(const ConstRows& x, int64_t cols, bool quantise, uint16_t* out,
                cudaStream_t stream) {
  if (x.n == 0) return OkStatus();
  Launch(PackKernel, Blocks(x.n * (cols / 128), kWarps), kBlock, 0, stream, x, cols, quantise, out);
  return LaunchStatus("packing of inputs");
}

Status MultiplyTiles(const PackedRows& x, std::span<const TileOutput> outputs, int groups,
                     bool round, cudaStream_t stream) {
  Jobs jobs = {.x = x, .job = {}, .round = round};
  for (size_t i = 0; i < outputs.size(); ++i) {
    const WeightView& weight = outputs[i].weight;
    jobs.job[i] = {weight, outputs[i].out.data, outputs[i].out.stride,
                   std::max(weight.rows / groups, 1), 0};
  }
  const WeightView& first = outputs[0].weight;
  int rows = 0;
  for (const TileOutput& output : outputs) rows += output.weight.rows;
  if (x.n == 0 || rows == 0) return OkStatus();
  const bool groups_have_blocks = groups == 1 || first.rows / groups % (kWarps * kTileRows) == 0;
  switch (first.dtype) {
    case DType::kF8E4M3:
      return MultiplyJobs<DType::kF8E4M3>(jobs, groups_have_blocks, stream);
    case DType::kI8:
      return MultiplyJobs<DType::kI8>(jobs, groups_have_blocks, stream);
    case DType::kBF16:
      return MultiplyJobs<DType::kBF16>(jobs, groups_have_blocks, stream);
    default:
      return InvalidArgument("no tiles of " + std::string(DTypeName(first.dtype)));
  }
}

Status MultiplyBf16(const ConstRows& x, int64_t cols, const WeightView& weight, int groups,
                    bool round, Rows out, uint16_t* packed, cudaStream_t stream) {
  if (!HasTiles(weight, groups)) return Multiply(x, weight, groups, round, out, stream);
  FATHOM_RETURN_IF_ERROR(PackRows(x, cols, /*quantise=*/false, packed, stream));
  const TileOutput output = {weight, out};
  return MultiplyTiles({packed, x.n, cols}, {&output, 1}, groups, round, stream);
}

}  // namespace fathom::cuda
