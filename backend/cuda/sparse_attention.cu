// See backend/ops/sparse_attention.h for the contract.
#include <algorithm>
#include <cmath>

#include "backend/cuda/attention.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/page_codec.cuh"

namespace fathom {
namespace cuda {
namespace {

// Keys that are in shared memory at a time, decoded once for the heads of a block: one per warp.
constexpr int kKeys = 16;
constexpr int kHeads = kWarps;

// Key i of the list, the warp's work.
__device__ void LoadKey(const KeyList& list, int i, float* key) {
  const AttentionRows& a = list.a;
  const KeyList::Place place = list.PlaceOf(i);
  if (place.step_row < 0) {
    LoadEntry((place.compressed ? a.compressed : a.swa).format, place.entry, key);
    return;
  }
  const float* row = a.step_kv + place.step_row * a.dim;
  for (int c = Lane(); c < a.dim; c += kWarp) key[c] = row[c];
}

// A block per row and kHeads heads, a warp per head: softmax and sums over tiles of keys in the
// order of the list, rescaled when the maximum grows. Where tiles begin depends on the list alone.
__global__ void __launch_bounds__(kBlock) AttentionKernel(AttentionRows a) {
  auto* const shared = SharedMemory<float>();
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
    for (int k = WarpIndex(); k < count; k += kWarps) LoadKey(list, first + k, keys + k * a.dim);
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

namespace {

// Keys of the list of a row at `position`, at most.
int KeysAt(const SparseAttentionArgs& args, Position position) {
  const int keys = std::min(args.window, position + 1);
  if (!args.entries.empty()) return keys + static_cast<int>(args.entries.dim(1));
  return args.compressed.base == nullptr ? keys : keys + VisibleEntries(position, args.ratio);
}

// Keys of the longest list that the step may have.
int MostKeys(const SparseAttentionArgs& args) {
  const Position longest = args.plan->max_length;
  int most = longest > 0 ? KeysAt(args, longest - 1) : 0;
  for (const SequenceRows& rows : args.plan->sequences) {
    if (rows.num_rows > 0) most = std::max(most, KeysAt(args, rows.start + rows.num_rows - 1));
  }
  return most;
}

}  // namespace

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
  cuda::AttentionRows rows = {args.q.data(),
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
                              plan.TablesFor(args.compressed_kind),
                              0,
                              1,
                              state.scratch.attention_partial,
                              state.scratch.attention_stats,
                              state.scratch.step_keys};
  const Position last_of_all = state.limits.max_positions - 1;
  const int64_t room = state.scratch.attention_splits;
  // By what a step may have, not by what this one has: rows keep their order of sums.
  if (cuda::HasAttentionTiles(args) &&
      int64_t{cuda::SplitsOf(KeysAt(args, last_of_all))} * heads <= room) {
    rows.splits = cuda::SplitsOf(MostKeys(args));
    if (rows.splits == 0) return OkStatus();  // no row has a sequence
    FATHOM_RETURN_IF_ERROR(
        Fits("sparse_attention: splits of keys", int64_t{rows.splits} * heads, room));
    const int64_t at_a_time = room / (int64_t{rows.splits} * heads);
    FATHOM_RETURN_IF_ERROR(cuda::PackStepKeys(rows, n, state.stream));
    for (int64_t first = 0; first < n; first += at_a_time) {
      rows.first_row = static_cast<int>(first);
      FATHOM_RETURN_IF_ERROR(
          cuda::AttendTiles(rows, static_cast<int>(std::min(at_a_time, n - first)), state.stream));
    }
    return OkStatus();
  }
  constexpr int kRowsOfShared = cuda::kKeys + 2 * cuda::kHeads;
  const auto bytes = static_cast<size_t>(kRowsOfShared * dim) * sizeof(float);
  FATHOM_RETURN_IF_ERROR(cuda::AllowSharedMemory(cuda::AttentionKernel, bytes));
  const dim3 grid(static_cast<unsigned>(n),
                  static_cast<unsigned>((heads + cuda::kHeads - 1) / cuda::kHeads));
  cuda::Launch(cuda::AttentionKernel, grid, cuda::kBlock, bytes, state.stream, rows);
  return cuda::LaunchStatus("sparse_attention");
}

}  // namespace fathom
