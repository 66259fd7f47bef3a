// See backend/ops/indexer_topk.h for the contract.
#include <algorithm>
#include <cmath>

#include "backend/cuda/fragments.cuh"
#include "backend/cuda/indexer.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/limits.h"
#include "backend/cuda/page_codec.cuh"
#include "backend/cuda/rows.cuh"
#include "backend/cuda/state.h"

namespace fathom {
namespace cuda {
namespace {

constexpr int kQueryThreads = 128;

// A block per row and head: the rotated, transformed, rounded query and its weight.
__global__ void __launch_bounds__(kQueryThreads) IndexQueryKernel(IndexRows a, double factor) {
  auto* const work = SharedMemory<double>();  // [dim], then as many floats
  auto* q = reinterpret_cast<float*>(work + a.dim);
  const int row = a.first_row + static_cast<int>(blockIdx.y);
  const int head = static_cast<int>(blockIdx.x);
  if (EntriesToScore(a, row) == 0) return;
  const int thread = static_cast<int>(threadIdx.x);
  const float* in = a.q + (int64_t{row} * a.heads + head) * a.dim;
  for (int c = thread; c < a.dim; c += kQueryThreads) q[c] = in[c];
  __syncthreads();
  for (int k = thread; k < a.pairs; k += kQueryThreads) {
    RotatePair(q + a.dim - 2 * a.pairs + 2 * k, a.cos_sin + (int64_t{row} * a.pairs + k) * 2, 1.0f);
  }
  Hadamard(q, work, a.dim);
  const int64_t slot = int64_t{blockIdx.y} * a.heads + head;
  for (int g = WarpIndex() * kE2m1Group; g < a.dim; g += kQueryThreads) {
    if (a.packed == nullptr) {
      SimulateE2m1Group(q + g, a.queries + slot * a.dim + g);
    } else {
      SimulateE2m1Group(q + g, q + g);
      const int c = g + Lane();
      a.packed[slot * a.dim + PackedColumn(c)] = ToBf16(q[c]);
    }
  }
  if (thread == 0) {
    const float weight = RoundBf16(a.head_weights[int64_t{row} * a.heads + head]);
    a.query_weights[slot] = RoundBf16(static_cast<float>(static_cast<double>(weight) * factor));
  }
}

// A warp per 32 entries of a row, a lane per entry. Products within a group of 32 channels are
// exact sums for rounded keys; groups, then heads are added in ascending order.
__global__ void __launch_bounds__(kWarp) IndexScoreKernel(IndexRows a) {
  auto* const keys =
      SharedMemory<float>();  // [32][dim + 1]: lanes of a column fall into different banks
  const int row = a.first_row + static_cast<int>(blockIdx.y);
  const int count = EntriesToScore(a, row);
  const int first = static_cast<int>(blockIdx.x) * kWarp;
  if (first >= count) return;
  const BlockTable& table = a.plan.TablesFor(CacheKind::kC4IndexKeys)[a.plan.rows[row].sequence];
  const int stride = a.dim + 1;
  for (int i = 0; i < min(kWarp, count - first); ++i) {
    LoadEntry(a.keys.format, Locate(a.keys, table, first + i), keys + i * stride);
  }
  __syncwarp();
  const int entry = first + Lane();
  if (entry >= count) return;
  const float* key = keys + Lane() * stride;
  const float* q = a.queries + int64_t{blockIdx.y} * a.heads * a.dim;
  const float* weights = a.query_weights + int64_t{blockIdx.y} * a.heads;
  float score = 0.0f;
  for (int h = 0; h < a.heads; ++h, q += a.dim) {
    float dot = 0.0f;
    for (int g = 0; g < a.dim; g += kE2m1Group) {
      float sum = 0.0f;
#pragma unroll 8
      for (int c = g; c < g + kE2m1Group; ++c) sum = fmaf(q[c], key[c], sum);
      dot += sum;
    }
    score += weights[h] * fmaxf(dot, 0.0f);
  }
  a.scores[int64_t{blockIdx.y} * a.score_stride + entry] = score;
}

constexpr int kTopkThreads = 1024;
constexpr int kTopkWarps = kTopkThreads / kWarp;

// Larger for larger scores; -0 counts as 0.
__device__ uint32_t OrderOf(float score) {
  const uint32_t bits = __float_as_uint(score + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// The key of the topk-th best score, and how many scores equal to it are among the best. Three
// rounds of counting, 11, 11 and 10 bits from the top; counts are integers, so their order is free.
__device__ void FindThreshold(const float* scores, int count, int topk, uint32_t* threshold,
                              int* equal_wanted) {
  constexpr int kBits = 11;
  constexpr int kBins = 1 << kBits;
  constexpr int kEach = kBins / kTopkThreads;
  __shared__ int counts[kBins];
  __shared__ int sums[kTopkWarps];
  __shared__ uint32_t prefix;
  __shared__ int wanted;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    prefix = 0;
    wanted = topk;
  }
  constexpr int kShifts[] = {32 - kBits, 32 - 2 * kBits, 0};
  uint32_t known = 0;
  for (const int shift : kShifts) {
    for (int i = thread; i < kBins; i += kTopkThreads) counts[i] = 0;
    __syncthreads();
    for (int i = thread; i < count; i += kTopkThreads) {
      const uint32_t key = OrderOf(scores[i]);
      if ((key & known) == prefix) atomicAdd(&counts[(key & ~known) >> shift], 1);
    }
    __syncthreads();
    // Bins of the best scores first.
    const int top = kBins - 1 - thread * kEach;
    int own = 0;
    for (int i = 0; i < kEach; ++i) own += counts[top - i];
    const int here = wanted;
    const int through = BlockScan(own, sums);
    __syncthreads();  // all have read `wanted`
    if (through - own < here && here <= through) {
      int left = here - (through - own);
      int bin = top;
      while (counts[bin] < left) left -= counts[bin--];
      prefix |= static_cast<uint32_t>(bin) << shift;
      wanted = left;
    }
    __syncthreads();
    known = 0xFFFFFFFFu << shift;
  }
  *threshold = prefix;
  *equal_wanted = wanted;
}

// How many of the block's threads before this one, and in all, have `flag` set.
struct Count {
  int before;
  int all;
};
__device__ Count CountBlock(bool flag, int* warps) {
  const unsigned lanes = __ballot_sync(kAllLanes, flag);
  __syncthreads();  // earlier counts may still be read
  if (Lane() == 0) warps[WarpIndex()] = __popc(lanes);
  __syncthreads();
  Count count = {__popc(lanes & ((1u << Lane()) - 1u)), 0};
  for (int w = 0; w < kTopkWarps; ++w) {
    if (w < WarpIndex()) count.before += warps[w];
    count.all += warps[w];
  }
  return count;
}

// A block per row: the best entries in ascending order, -1 behind them.
__global__ void __launch_bounds__(kTopkThreads) TopkKernel(IndexRows a) {
  __shared__ int warps[kTopkWarps];
  const int row = a.first_row + static_cast<int>(blockIdx.x);
  const RowOfStep where = a.plan.rows[row];
  if (where.sequence < 0) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int visible = VisibleEntries(where.position, 4);
  int32_t* out = a.entries + int64_t{row} * a.topk;
  const int kept = min(visible, a.topk);
  if (thread == 0) a.num_entries[row] = kept;
  for (int i = kept + thread; i < a.topk; i += kTopkThreads) out[i] = -1;
  if (visible <= a.topk) {
    for (int i = thread; i < visible; i += kTopkThreads) out[i] = i;
    return;
  }
  const float* scores = a.scores + int64_t{blockIdx.x} * a.score_stride;
  uint32_t threshold = 0;
  int equal_wanted = 0;
  FindThreshold(scores, visible, a.topk, &threshold, &equal_wanted);
  int written = 0;
  int equal_seen = 0;
  for (int first = 0; first < visible; first += kTopkThreads) {
    const int entry = first + thread;
    const uint32_t key = entry < visible ? OrderOf(scores[entry]) : 0u;
    const bool equal = entry < visible && key == threshold;
    const Count equals = CountBlock(equal, warps);
    const bool take = entry < visible &&
                      (key > threshold || (equal && equal_seen + equals.before < equal_wanted));
    const Count takes = CountBlock(take, warps);
    if (take) out[written + takes.before] = entry;
    written += takes.all;
    equal_seen += equals.all;
  }
}

Status ScoreEntries(const IndexRows& rows, int count, int most, cudaStream_t stream) {
  const size_t bytes = static_cast<size_t>(kWarp) * (static_cast<size_t>(rows.dim) + 1) * 4;
  FATHOM_RETURN_IF_ERROR(AllowSharedMemory(IndexScoreKernel, bytes));
  Launch(IndexScoreKernel, dim3(Blocks(most, kWarp), static_cast<unsigned>(count)), kWarp, bytes,
         stream, rows);
  return LaunchStatus("indexer_topk: scores");
}

}  // namespace
}  // namespace cuda

Status CudaBackend::DoIndexerTopk(const IndexerTopkArgs& args) {
  State& state = *state_;
  FATHOM_RETURN_IF_ERROR(state.EnterLane());
  const int64_t n = args.q.dim(0);
  const auto heads = static_cast<int>(args.q.dim(1));
  const auto dim = static_cast<int>(args.q.dim(2));
  FATHOM_RETURN_IF_ERROR(Fits("indexer_topk: rows", n, state.limits.max_rows));
  FATHOM_RETURN_IF_ERROR(Fits("indexer_topk: heads", heads, state.limits.max_heads));
  FATHOM_RETURN_IF_ERROR(Fits("indexer_topk: dim", dim, state.limits.max_head_dim));
  int most = VisibleEntries(args.plan->max_length - 1, 4);
  for (const SequenceRows& rows : args.plan->sequences) {
    if (rows.num_rows > 0) most = std::max(most, VisibleEntries(rows.start + rows.num_rows - 1, 4));
  }
  FATHOM_RETURN_IF_ERROR(Fits("indexer_topk: entries", most, state.scratch.max_entries));
  if (n == 0) return OkStatus();
  FATHOM_ASSIGN_OR_RETURN(const cuda::DevicePlan plan, state.Plan(args.plan));
  const bool tiles = cuda::HasIndexTiles(args);
  cuda::IndexRows rows = {
      args.q.data(),
      args.head_weights.data(),
      args.cos_sin.data(),
      heads,
      dim,
      static_cast<int>(args.cos_sin.dim(1)),
      args.topk,
      plan,
      args.keys,
      args.entries.data(),
      args.num_entries.data(),
      0,
      tiles ? nullptr : state.scratch.index_queries,
      tiles ? reinterpret_cast<uint16_t*>(state.scratch.index_queries) : nullptr,
      state.scratch.index_weights,
      state.scratch.index_scores,
      state.scratch.max_entries};
  const cudaStream_t stream = state.lanes.room().stream;
  const double factor =
      1.0 / std::sqrt(static_cast<double>(dim)) / std::sqrt(static_cast<double>(heads));
  for (; rows.first_row < n; rows.first_row += state.scratch.index_rows) {
    const auto count =
        static_cast<unsigned>(std::min<int64_t>(state.scratch.index_rows, n - rows.first_row));
    if (most > args.topk) {
      if (heads > 0) {
        cuda::Launch(
            cuda::IndexQueryKernel, dim3(static_cast<unsigned>(heads), count), cuda::kQueryThreads,
            static_cast<size_t>(dim) * (sizeof(double) + sizeof(float)), stream, rows, factor);
        FATHOM_RETURN_IF_ERROR(cuda::LaunchStatus("indexer_topk: queries"));
      }
      FATHOM_RETURN_IF_ERROR(tiles
                                 ? cuda::ScoreTiles(rows, static_cast<int>(count), most, stream)
                                 : cuda::ScoreEntries(rows, static_cast<int>(count), most, stream));
    }
    cuda::Launch(cuda::TopkKernel, count, cuda::kTopkThreads, 0, stream, rows);
    FATHOM_RETURN_IF_ERROR(cuda::LaunchStatus("indexer_topk: selection"));
  }
  return OkStatus();
}

}  // namespace fathom
