// See backend/ops/compress_insert.h for the contract.
#include <cmath>

#include "backend/cuda/launch.cuh"
#include "backend/cuda/page_codec.cuh"
#include "backend/cuda/rows.cuh"
#include "backend/cuda/state.h"

namespace fathom {
namespace cuda {
namespace {

// The args as the device sees them.
struct CompressRows {
  const float* kv;
  const float* score;
  const float* ape;
  const float* norm_weight;
  const float* anchor_cos_sin;
  float norm_eps;
  int ratio;
  int width;
  int coff_width;
  int pairs;
  bool index_side;
  DevicePlan plan;
  PageView state;
  PageView out;
  const BlockTable* state_tables;
  const BlockTable* out_tables;
};

__device__ float ScoreOfRow(const CompressRows& a, int64_t row, Position position, int channel) {
  return a.score[row * a.coff_width + channel] +
         a.ape[int64_t{position % a.ratio} * a.coff_width + channel];
}

// A row of the step: [K | S + ape], where the table has a block for it. The work of `threads`
// threads, of which this is number `thread`.
__device__ void StoreStateRow(const CompressRows& a, int64_t row, int thread, int threads) {
  const RowOfStep where = a.plan.rows[row];
  if (where.sequence < 0) return;
  const BlockTable& table = a.state_tables[where.sequence];
  if (!HasBlock(a.state, table, where.position)) return;
  std::byte* out = EntryValues(a.state.format, Locate(a.state, table, where.position));
#pragma unroll 4
  for (int c = thread; c < a.coff_width; c += threads) {
    StoreF32(out + 4 * c, a.kv[row * a.coff_width + c]);
    StoreF32(out + 4 * (a.coff_width + c), ScoreOfRow(a, row, where.position, c));
  }
}

// Where the values of one item of a window are, in floats: channel c of the entry has its K value
// and its score at c, plus ape[c] where the score is not stored. Stored rows lie anywhere.
struct Item {
  const std::byte* k;
  const std::byte* score;
  const float* ape;  // null for stored rows
};

// Two windows of ratio 4, one of ratio 128.
constexpr int kMaxItems = 128;

// Items of an entry, ascending in position: of ratio 4 the window before contributes its first
// half; entry 0 has none, which is the same as scores of -inf.
struct Window {
  const CompressRows& a;
  const SequenceRows& rows;
  const BlockTable& table;
  int entry;

  [[nodiscard]] __device__ int before() const { return a.ratio == 4 && entry > 0 ? 4 : 0; }
  [[nodiscard]] __device__ int size() const { return before() + a.ratio; }
  [[nodiscard]] __device__ Item At(int item) const {
    const Position position = FirstRowOfEntry(entry, a.ratio) + item;
    const int channel = item < before() ? 0 : a.coff_width - a.width;
    if (position >= rows.start) {
      const int64_t at = (rows.first_row + int64_t{position - rows.start}) * a.coff_width + channel;
      return {reinterpret_cast<const std::byte*>(a.kv + at),
              reinterpret_cast<const std::byte*>(a.score + at),
              a.ape + int64_t{position % a.ratio} * a.coff_width + channel};
    }
    const std::byte* stored = EntryValues(a.state.format, Locate(a.state, table, position));
    return {stored + 4 * channel, stored + 4 * (a.coff_width + channel), nullptr};
  }
};

// In double, rounded once: the entries that the host stores.
__device__ float ExpOnce(float x) { return static_cast<float>(exp(static_cast<double>(x))); }

__device__ float ScoreOf(const Item& item, int c) {
  const float score = LoadF32(item.score + 4 * c);
  return item.ape == nullptr ? score : score + item.ape[c];
}

// Items of two windows of ratio 4, whose values stay in registers.
constexpr int kFewItems = 8;

// Softmax over the items' scores and weighted sum of their K values, one channel.
__device__ float PoolFew(const Item* items, int size, int c) {
  float value[kFewItems], k[kFewItems];
  float max = -INFINITY;
#pragma unroll
  for (int i = 0; i < kFewItems; ++i) {
    if (i >= size) continue;
    value[i] = ScoreOf(items[i], c);
    k[i] = LoadF32(items[i].k + 4 * c);
  }
#pragma unroll
  for (int i = 0; i < kFewItems; ++i) {
    if (i < size) max = fmaxf(max, value[i]);
  }
  float den = 0.0f;
#pragma unroll
  for (int i = 0; i < kFewItems; ++i) {
    if (i < size) den += value[i] = ExpOnce(value[i] - max);
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kFewItems; ++i) {
    if (i < size) sum += k[i] * (value[i] / den);
  }
  return sum;
}

// The same for any number of items, where PoolKernel has no room.
__device__ float Pool(const Item* items, int size, int c) {
  float max = -INFINITY;
#pragma unroll 2
  for (int i = 0; i < size; ++i) max = fmaxf(max, ScoreOf(items[i], c));
  float den = 0.0f;
#pragma unroll 2
  for (int i = 0; i < size; ++i) den += ExpOnce(ScoreOf(items[i], c) - max);
  float sum = 0.0f;
#pragma unroll 2
  for (int i = 0; i < size; ++i) {
    sum += LoadF32(items[i].k + 4 * c) * (ExpOnce(ScoreOf(items[i], c) - max) / den);
  }
  return sum;
}

constexpr int kPoolChannels = 64;
constexpr int kPoolParts = kBlock / kPoolChannels;  // threads of a channel

// The same sums for windows of many items, a block per ending entry and kPoolChannels channels:
// what does not depend on the order of items is done for several at once. out [entries, width].
__global__ void __launch_bounds__(kBlock)
    PoolKernel(CompressRows a, const EndingEntry* entries, float* out) {
  __shared__ Item items[kMaxItems];
  __shared__ float values[kMaxItems][kPoolChannels];
  __shared__ float maxima[kPoolParts][kPoolChannels];
  __shared__ float denominators[kPoolChannels];
  const EndingEntry where = entries[blockIdx.x];
  if (where.sequence < 0) return;
  const int thread = static_cast<int>(threadIdx.x);
  const Window window = {a, a.plan.sequences[where.sequence], a.state_tables[where.sequence],
                         where.entry};
  const int size = window.size();
  if (thread < size) items[thread] = window.At(thread);
  __syncthreads();
  const int lane = thread % kPoolChannels;
  const int part = thread / kPoolChannels;
  // Channels behind the last one are computed as that one, and not stored.
  const int c = static_cast<int>(blockIdx.y) * kPoolChannels + lane;
  const int channel = min(c, a.width - 1);
  float max = -INFINITY;
#pragma unroll 8
  for (int i = part; i < size; i += kPoolParts) {
    values[i][lane] = ScoreOf(items[i], channel);
    max = fmaxf(max, values[i][lane]);
  }
  maxima[part][lane] = max;
  __syncthreads();
  for (int p = 0; p < kPoolParts; ++p) max = fmaxf(max, maxima[p][lane]);
#pragma unroll 4
  for (int i = part; i < size; i += kPoolParts) values[i][lane] = ExpOnce(values[i][lane] - max);
  __syncthreads();
  if (part == 0) {
    float den = 0.0f;
#pragma unroll 8
    for (int i = 0; i < size; ++i) den += values[i][lane];
    denominators[lane] = den;
  }
  __syncthreads();
  const float den = denominators[lane];
#pragma unroll 8
  for (int i = part; i < size; i += kPoolParts) {
    values[i][lane] = LoadF32(items[i].k + 4 * channel) * (values[i][lane] / den);
  }
  __syncthreads();
  if (part != 0 || c >= a.width) return;
  float sum = 0.0f;
#pragma unroll 8
  for (int i = 0; i < size; ++i) sum += values[i][lane];
  out[int64_t{blockIdx.x} * a.width + c] = sum;
}

// Where entries come from and what is counted of them.
struct Entries {
  const EndingEntry* ending;
  unsigned count;
  const float* pooled;          // PoolKernel's; null: pooled with them
  unsigned long long* inexact;  // entries that their format could not keep
};

// Ending entry `at`, which has that row of anchor_cos_sin: a block's work.
__device__ void InsertEntry(const CompressRows& a, const Entries& all, unsigned at) {
  auto* const work = SharedMemory<double>();  // [width], then as many floats
  __shared__ double sums[kWarps];
  __shared__ float group[kE2m1Group];
  __shared__ Item items[kMaxItems];
  auto* entry = reinterpret_cast<float*>(work + a.width);
  const float* const pooled = all.pooled;
  const EndingEntry where = all.ending[at];
  if (where.sequence < 0) return;
  const int thread = static_cast<int>(threadIdx.x);
  const Window window = {a, a.plan.sequences[where.sequence], a.state_tables[where.sequence],
                         where.entry};
  static_assert(kMaxItems <= kBlock);
  if (pooled == nullptr && thread < window.size()) items[thread] = window.At(thread);
  __syncthreads();
  double squares = 0.0;
  const int size = window.size();
  for (int c = thread; c < a.width; c += kBlock) {
    entry[c] = RoundBf16(pooled != nullptr   ? pooled[int64_t{at} * a.width + c]
                         : size <= kFewItems ? PoolFew(items, size, c)
                                             : Pool(items, size, c));
    squares += static_cast<double>(entry[c]) * static_cast<double>(entry[c]);
  }
  const float inverse = InverseRms(BlockSum(squares, sums), a.width, a.norm_eps);
  for (int c = thread; c < a.width; c += kBlock) {
    entry[c] = RoundBf16(a.norm_weight[c] * (entry[c] * inverse));
  }
  __syncthreads();
  for (int k = thread; k < a.pairs; k += kBlock) {
    RotatePair(entry + a.width - 2 * a.pairs + 2 * k,
               a.anchor_cos_sin + (int64_t{at} * a.pairs + k) * 2, 1.0f);
  }
  __syncthreads();
  const EntryRef ref = Locate(a.out, a.out_tables[where.sequence], where.entry);
  if (!a.index_side) {
    StoreKvEntry(a.out.format, ref, entry);
    return;
  }
  Hadamard(entry, work, a.width);
  if (WarpIndex() != 0) return;
  const bool exact = StoreIndexKey(a.out.format, ref, entry, group);
  if (!exact && Lane() == 0) atomicAdd(all.inexact, 1ULL);
}

// Blocks of entries in front, since they take longer than the blocks of rows behind them: a row
// each, or kWarps rows, where there are so many that most have no block in the table. Entries read
// the step's rows where they came from and earlier ones from pages that this step does not write:
// one launch in place of two.
__global__ void __launch_bounds__(kBlock, 4)
    RowsAndEntriesKernel(CompressRows a, Entries entries, int64_t rows, bool warp_per_row) {
  if (blockIdx.x < entries.count) {
    InsertEntry(a, entries, blockIdx.x);
    return;
  }
  const int64_t block = blockIdx.x - entries.count;
  if (!warp_per_row) {
    StoreStateRow(a, block, static_cast<int>(threadIdx.x), kBlock);
  } else if (const int64_t row = block * kWarps + WarpIndex(); row < rows) {
    StoreStateRow(a, row, Lane(), kWarp);
  }
}

constexpr int64_t kRowsWithABlock = 512;

}  // namespace
}  // namespace cuda

Status CudaBackend::DoCompressInsert(const CompressInsertArgs& args) {
  State& state = *state_;
  FATHOM_RETURN_IF_ERROR(state.EnterLane());
  const int64_t n = args.kv_rows.dim(0);
  const auto width = static_cast<int>(args.norm_weight.dim(0));
  FATHOM_RETURN_IF_ERROR(Fits("compress_insert: rows", n, state.limits.max_rows));
  FATHOM_RETURN_IF_ERROR(Fits("compress_insert: width", width, state.limits.max_head_dim));
  if (args.index_side && (width & (width - 1)) != 0) {
    return InvalidArgument("compress_insert: index keys of " + std::to_string(width) +
                           " channels: a power of two is needed");
  }
  if (n == 0) return OkStatus();
  FATHOM_ASSIGN_OR_RETURN(const cuda::DevicePlan plan, state.Plan(args.plan));
  const cuda::CompressRows rows = {args.kv_rows.data(),
                                   args.score_rows.data(),
                                   args.ape.data(),
                                   args.norm_weight.data(),
                                   args.anchor_cos_sin.data(),
                                   args.norm_eps,
                                   args.ratio,
                                   width,
                                   static_cast<int>(args.kv_rows.dim(1)),
                                   static_cast<int>(args.anchor_cos_sin.dim(1)),
                                   args.index_side,
                                   plan,
                                   args.state,
                                   args.out,
                                   plan.TablesFor(args.state_kind),
                                   plan.TablesFor(args.out_kind)};
  const cuda::Lanes::Room lane = state.lanes.room();
  const cuda::EndingList& ending = plan.ending[AnchorsOf(args.ratio)];
  // Windows of ratio 128 are worth a kernel of their own, whose results go through scratch memory.
  const int64_t room = lane.rows * int64_t{state.limits.max_cols} / width;
  const bool many_items = args.ratio == 128 && ending.count > 0 && ending.count <= room;
  float* const pooled = many_items ? lane.inputs : nullptr;
  if (many_items) {
    cuda::Launch(
        cuda::PoolKernel,
        dim3(static_cast<unsigned>(ending.count), cuda::Blocks(width, cuda::kPoolChannels)),
        cuda::kBlock, 0, lane.stream, rows, ending.entries, pooled);
    FATHOM_RETURN_IF_ERROR(cuda::LaunchStatus("compress_insert: windows"));
  }
  const cuda::Entries entries = {ending.entries, static_cast<unsigned>(ending.count), pooled,
                                 &state.report->inexact_entries};
  const bool warp_per_row = n > cuda::kRowsWithABlock;
  cuda::Launch(cuda::RowsAndEntriesKernel,
               entries.count + cuda::Blocks(n, warp_per_row ? cuda::kWarps : 1), cuda::kBlock,
               static_cast<size_t>(width) * (sizeof(double) + sizeof(float)), lane.stream, rows,
               entries, n, warp_per_row);
  return cuda::LaunchStatus("compress_insert");
}

}  // namespace fathom
