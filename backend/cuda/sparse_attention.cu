// See backend/ops/sparse_attention.h for the contract.
#include <cmath>

#include "backend/cuda/page_codec.cuh"
#include "backend/cuda/state.h"

namespace fathom {
namespace cuda {
namespace {

// Keys that are in shared memory at a time, decoded once for the heads of a block: one per warp.
constexpr int kKeys = 16;
constexpr int kHeads = kWarps;

// The args as the device sees them.
struct AttentionRows {
  const float* q;
  const float* step_kv;
  const int32_t* entries;  // null: all visible ones
  const int32_t* num_entries;
  const float* sink;
  float* out;
  int heads;
  int dim;
  int window;
  int ratio;
  int topk;
  float scale;
  DevicePlan plan;
  PageView swa;
  PageView compressed;
  const BlockTable* swa_tables;
  const BlockTable* compressed_tables;
};

// The attended keys of one row: window entries, then compressed ones, both ascending.
struct KeyList {
  const AttentionRows& a;
  int row;
  RowOfStep where;
  SequenceRows rows;
  int first_position;
  int num_window;
  int num_compressed;

  __device__ KeyList(const AttentionRows& args, int row_index)
      : a(args), row(row_index), where(args.plan.rows[row_index]) {
    if (where.sequence < 0) return;
    rows = a.plan.sequences[where.sequence];
    first_position = max(0, where.position - a.window + 1);
    num_window = where.position - first_position + 1;
    num_compressed = 0;
    if (a.compressed.base != nullptr) {
      num_compressed =
          a.entries != nullptr ? a.num_entries[row] : VisibleEntries(where.position, a.ratio);
    }
  }
  [[nodiscard]] __device__ int size() const { return num_window + num_compressed; }

  // Key i, the warp's work.
  __device__ void Load(int i, float* key) const {
    if (i < num_window) {
      const Position position = first_position + i;
      if (position < rows.start) {
        const BlockTable& table = a.swa_tables[where.sequence];
        LoadEntry(a.swa.format, Locate(a.swa, table, position), key);
        return;
      }
      const float* from = a.step_kv + int64_t{rows.first_row + (position - rows.start)} * a.dim;
      for (int c = Lane(); c < a.dim; c += kWarp) key[c] = from[c];
      return;
    }
    const int place = i - num_window;
    const int entry = a.entries != nullptr ? a.entries[int64_t{row} * a.topk + place] : place;
    const BlockTable& table = a.compressed_tables[where.sequence];
    LoadEntry(a.compressed.format, Locate(a.compressed, table, entry), key);
  }
};

// A block per row and kHeads heads, a warp per head: softmax and sums over tiles of keys in the
// order of the list, rescaled when the maximum grows. Where tiles begin depends on the list alone.
__global__ void __launch_bounds__(kBlock) AttentionKernel(AttentionRows a) {
  extern __shared__ float shared[];
  float* keys = shared;                                       // [kKeys][dim]
  float* q = keys + kKeys * a.dim + WarpIndex() * 2 * a.dim;  // [dim], of this warp
  float* sums = q + a.dim;                                    // [dim], of this warp
  const auto row = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y) * kHeads + WarpIndex();
  const KeyList list(a, row);
  if (list.where.sequence < 0) return;
  const bool mine = head < a.heads;
  const int64_t at = (int64_t{row} * a.heads + head) * a.dim;
  if (mine) {
    for (int c = Lane(); c < a.dim; c += kWarp) {
      q[c] = a.q[at + c];
      sums[c] = 0.0f;
    }
  }
  float max = -INFINITY;
  float den = 0.0f;
  for (int first = 0; first < list.size(); first += kKeys) {
    const int count = min(kKeys, list.size() - first);
    __syncthreads();
    for (int k = WarpIndex(); k < count; k += kWarps) list.Load(first + k, keys + k * a.dim);
    __syncthreads();
    if (!mine) continue;
    float p[kKeys];
#pragma unroll
    for (int k = 0; k < kKeys; ++k) p[k] = 0.0f;
    for (int c = Lane(); c < a.dim; c += kWarp) {
      const float value = q[c];
#pragma unroll
      for (int k = 0; k < kKeys; ++k) {
        if (k < count) p[k] = fmaf(value, keys[k * a.dim + c], p[k]);
      }
    }
    float new_max = max;
#pragma unroll
    for (int k = 0; k < kKeys; ++k) {
      if (k >= count) continue;
      p[k] = WarpSum(p[k]) * a.scale;
      new_max = fmaxf(new_max, p[k]);
    }
    const float shrink = expf(max - new_max);
    max = new_max;
    den *= shrink;
#pragma unroll
    for (int k = 0; k < kKeys; ++k) {
      if (k >= count) continue;
      p[k] = expf(p[k] - max);
      den += p[k];
    }
    for (int c = Lane(); c < a.dim; c += kWarp) {
      float sum = sums[c] * shrink;
#pragma unroll
      for (int k = 0; k < kKeys; ++k) {
        if (k < count) sum = fmaf(p[k], keys[k * a.dim + c], sum);
      }
      sums[c] = sum;
    }
  }
  if (!mine) return;
  den += expf(a.sink[head] - max);
  for (int c = Lane(); c < a.dim; c += kWarp) a.out[at + c] = RoundBf16(sums[c] / den);
}

}  // namespace
}  // namespace cuda

Status CudaBackend::DoSparseAttention(const SparseAttentionArgs& args) {
  State& state = *state_;
  FATHOM_RETURN_IF_ERROR(state.Enter());
  const int64_t n = args.q.dim(0);
  const auto heads = static_cast<int>(args.q.dim(1));
  const auto dim = static_cast<int>(args.q.dim(2));
  FATHOM_RETURN_IF_ERROR(Fits("sparse_attention: rows", n, state.limits.max_rows));
  FATHOM_RETURN_IF_ERROR(Fits("sparse_attention: heads", heads, state.limits.max_heads));
  FATHOM_RETURN_IF_ERROR(Fits("sparse_attention: head dim", dim, state.limits.max_head_dim));
  if (args.q.size() == 0) return OkStatus();
  FATHOM_ASSIGN_OR_RETURN(const cuda::DevicePlan plan, state.Plan(args.plan));
  const bool chosen = !args.entries.empty();
  const cuda::AttentionRows rows = {args.q.data(),
                                    args.step_kv.data(),
                                    chosen ? args.entries.data() : nullptr,
                                    chosen ? args.num_entries.data() : nullptr,
                                    args.sink.data(),
                                    args.out.data(),
                                    heads,
                                    dim,
                                    args.window,
                                    args.ratio,
                                    chosen ? static_cast<int>(args.entries.dim(1)) : 0,
                                    args.scale,
                                    plan,
                                    args.swa,
                                    args.compressed,
                                    plan.TablesFor(CacheKind::kSwaKv),
                                    plan.TablesFor(args.compressed_kind)};
  constexpr int kRowsOfShared = cuda::kKeys + 2 * cuda::kHeads;
  const auto bytes = static_cast<size_t>(kRowsOfShared * dim) * sizeof(float);
  FATHOM_CUDA(cudaFuncSetAttribute(
      cuda::AttentionKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  const dim3 grid(static_cast<unsigned>(n),
                  static_cast<unsigned>((heads + cuda::kHeads - 1) / cuda::kHeads));
  cuda::AttentionKernel<<<grid, cuda::kBlock, bytes, state.stream>>>(rows);
  return cuda::LaunchStatus("sparse_attention");
}

}  // namespace fathom
