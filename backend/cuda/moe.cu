// See backend/ops/moe.h for the contract. An id that is no expert is told by the next Synchronize
// and adds nothing to its token.
//
// Rows are grouped by expert, so that a weight row is decoded once for several of them. Where a row
// stands in its group depends on the run; what is computed for it does not.
#include <algorithm>

#include "backend/cuda/launch.cuh"
#include "backend/cuda/moe.h"
#include "backend/cuda/products.cuh"
#include "backend/cuda/products.h"
#include "backend/cuda/swiglu.cuh"
#include "backend/cuda/tile_products.h"

namespace fathom {
namespace cuda {
namespace {

constexpr int kGroupThreads = 1024;

// One block: counts, begins, places and tiles of the items of every expert; the shared one has all
// rows.
__global__ void __launch_bounds__(kGroupThreads) GroupKernel(MoeRows a) {
  auto* const counts = SharedMemory<int32_t>();  // [num_experts + 1]
  __shared__ unsigned long long sums[kGroupThreads / kWarp];
  __shared__ unsigned long long carried;
  __shared__ int host_tiles;
  const int thread = static_cast<int>(threadIdx.x);
  const int per_row = a.chosen + 1;
  const int total = a.n * per_row;
  const auto expert_of = [&](int slot) {
    const int place = slot % per_row;
    if (place == a.chosen) return a.num_experts;
    const int id = a.ids[slot / per_row * a.chosen + place];
    return id >= 0 && id < a.num_experts ? id : -1;
  };
  for (int e = thread; e <= a.num_experts; e += kGroupThreads) counts[e] = 0;
  __syncthreads();
  for (int slot = thread; slot < total; slot += kGroupThreads) {
    const int expert = expert_of(slot);
    if (expert >= 0) {
      atomicAdd(&counts[expert], 1);
    } else if (atomicCAS(&a.report->finding, DeviceReport::kNone, DeviceReport::kExpertId) ==
               DeviceReport::kNone) {
      a.report->token = a.first_row + slot / per_row;
      a.report->value = a.ids[slot / per_row * a.chosen + slot % per_row];
      a.report->limit = a.num_experts;
    }
  }
  if (thread == 0) {
    carried = 0;
    host_tiles = 0;
  }
  __syncthreads();
  const auto tiles_of = [&](int count) {
    return a.tile_inputs > 0 ? (count + a.tile_inputs - 1) / a.tile_inputs : 0;
  };
  const auto is_on_host = [&](int e) { return a.on_host != nullptr && a.on_host[e] != 0; };
  for (int e = thread; a.on_host != nullptr && e < a.num_experts; e += kGroupThreads) {
    if (is_on_host(e)) atomicAdd(&host_tiles, tiles_of(counts[e]));
  }
  // Sums of three counts in one: items, tiles, and tiles of experts on the host.
  constexpr int kBits = 21;
  constexpr unsigned long long kField = (1ull << kBits) - 1;
  for (int first = 0; first <= a.num_experts; first += kGroupThreads) {
    __syncthreads();
    const int e = first + thread;
    const int count = e <= a.num_experts ? counts[e] : 0;
    const int tiles = tiles_of(count);
    const bool host = e <= a.num_experts && is_on_host(e);
    const auto own = static_cast<unsigned long long>(host ? tiles : 0) << 2 * kBits |
                     static_cast<unsigned long long>(tiles) << kBits | static_cast<unsigned>(count);
    const unsigned long long sum = carried + BlockScan(own, sums);
    const unsigned long long before = sum - own;
    const auto begin = static_cast<int>(before & kField);
    if (e <= a.num_experts) {
      a.begin[e] = counts[e] = begin;
      const auto tiles_before = static_cast<int>(before >> kBits & kField);
      const auto host_before = static_cast<int>(before >> 2 * kBits);
      const int place = host ? host_before : host_tiles + tiles_before - host_before;
      for (int t = 0; t < tiles; ++t) {
        a.tiles[place + t] = {e, begin + t * a.tile_inputs,
                              min(a.tile_inputs, count - t * a.tile_inputs)};
      }
    }
    __syncthreads();
    if (thread == kGroupThreads - 1) carried = sum;
  }
  __syncthreads();
  if (thread == 0) {
    a.begin[a.num_experts + 1] = static_cast<int>(carried & kField);
    if (a.tile_inputs > 0) *a.num_tiles = static_cast<int>(carried >> kBits & kField);
  }
  __syncthreads();
  for (int slot = thread; slot < total; slot += kGroupThreads) {
    const int expert = expert_of(slot);
    if (expert < 0) continue;
    const int row = slot / per_row;
    const float weight =
        expert == a.num_experts ? 1.0f : a.weights[row * a.chosen + slot % per_row];
    a.items[atomicAdd(&counts[expert], 1)] = {row, slot, weight};
  }
}

// A warp per row of w1 and w3 of an expert: h = bf16(silu(gate) * up * weight) of its items.
__global__ void __launch_bounds__(kBlock) GateUpKernel(MoeRows a) {
  const auto expert = static_cast<int>(blockIdx.y);
  const int begin = a.begin[expert];
  const int end = a.begin[expert + 1];
  const int row = static_cast<int>(blockIdx.x) * kWarps + WarpIndex();
  if (begin == end) return;
  const ExpertWeights& e = a.experts[expert];
  if (row >= e.w1.rows) return;
  const float* x1 = e.w1.quantised() ? a.quantised : a.x;
  for (int first = begin; first < end; first += kInputs) {
    const int count = min(kInputs, end - first);
    const float* inputs[kInputs];
    float gate[kInputs];
    float up[kInputs];
#pragma unroll
    for (int t = 0; t < kInputs; ++t) {
      inputs[t] = x1 + int64_t{a.items[first + min(t, count - 1)].row} * a.dim;
    }
    MultiplyRow(e.w1, row, inputs, count, gate);
    MultiplyRow(e.w3, row, inputs, count, up);
#pragma unroll
    for (int t = 0; t < kInputs; ++t) {
      if (t >= count || Lane() != t) continue;
      const ExpertItem item = a.items[first + t];
      a.hidden[int64_t{item.slot} * a.max_width + row] =
          SwiGlu(gate[t], up[t], a.limit, item.weight);
    }
  }
}

// A warp per group of 128 hidden channels of an item: what a quantised w2 takes.
__global__ void __launch_bounds__(kBlock) QuantiseHiddenKernel(MoeRows a) {
  const auto i = static_cast<int>(blockIdx.y);
  if (i >= a.begin[a.num_experts + 1]) return;
  int expert = 0;  // the last one that begins at or before the item
  int above = a.num_experts + 1;
  while (above - expert > 1) {
    const int middle = (expert + above) / 2;
    (a.begin[middle] <= i ? expert : above) = middle;
  }
  const WeightView& w2 = a.experts[expert].w2;
  const int group = (static_cast<int>(blockIdx.x) * kWarps + WarpIndex()) * 128;
  if (!w2.quantised() || group >= w2.cols) return;
  float* h = a.hidden + int64_t{a.items[i].slot} * a.max_width + group;
  SimulateE4m3Group(h, 128, h);
}

// A warp per row of w2 of an expert.
__global__ void __launch_bounds__(kBlock) DownKernel(MoeRows a) {
  const auto expert = static_cast<int>(blockIdx.y);
  const int begin = a.begin[expert];
  const int end = a.begin[expert + 1];
  const int row = static_cast<int>(blockIdx.x) * kWarps + WarpIndex();
  if (begin == end || row >= a.dim) return;
  const WeightView& w2 = a.experts[expert].w2;
  for (int first = begin; first < end; first += kInputs) {
    const int count = min(kInputs, end - first);
    const float* inputs[kInputs];
    float y[kInputs];
#pragma unroll
    for (int t = 0; t < kInputs; ++t) {
      inputs[t] = a.hidden + int64_t{a.items[first + min(t, count - 1)].slot} * a.max_width;
    }
    MultiplyRow(w2, row, inputs, count, y);
#pragma unroll
    for (int t = 0; t < kInputs; ++t) {
      if (t < count && Lane() == t) {
        a.expert_out[int64_t{a.items[first + t].slot} * a.dim + row] = ToBf16(y[t]);
      }
    }
  }
}

Status MultiplyExperts(const MoeRows& rows, cudaStream_t stream) {
  const auto experts = static_cast<unsigned>(rows.num_experts + 1);
  Launch(GateUpKernel, dim3(Blocks(rows.max_width, kWarps), experts), kBlock, 0, stream, rows);
  FATHOM_RETURN_IF_ERROR(LaunchStatus("moe: gate and up"));
  Launch(
      QuantiseHiddenKernel,
      dim3(Blocks(rows.max_width, 128 * kWarps), static_cast<unsigned>(rows.n * (rows.chosen + 1))),
      kBlock, 0, stream, rows);
  FATHOM_RETURN_IF_ERROR(LaunchStatus("moe: hidden"));
  Launch(DownKernel, dim3(Blocks(rows.dim, kWarps), experts), kBlock, 0, stream, rows);
  return LaunchStatus("moe: down");
}

// A block per row and kBlock channels: experts by ascending id, then the shared one, in fp32.
__global__ void __launch_bounds__(kBlock) CombineKernel(MoeRows a) {
  __shared__ int order[kMaxExpertsPerToken];
  const int64_t row = blockIdx.y;
  const int thread = static_cast<int>(threadIdx.x);
  const int32_t* ids = a.ids + row * a.chosen;
  if (thread < a.chosen) {
    int place = 0;
    for (int k = 0; k < a.chosen; ++k) {
      place += ids[k] < ids[thread] || (ids[k] == ids[thread] && k < thread) ? 1 : 0;
    }
    order[place] = thread;
  }
  __syncthreads();
  const int c = static_cast<int>(blockIdx.x) * kBlock + thread;
  if (c >= a.dim) return;
  const uint16_t* slots = a.expert_out + row * (a.chosen + 1) * a.dim + c;
  float sum = 0.0f;
#pragma unroll 8
  for (int k = 0; k < a.chosen; ++k) {
    const int32_t id = ids[order[k]];
    if (id >= 0 && id < a.num_experts) sum += FromBf16(slots[int64_t{order[k]} * a.dim]);
  }
  sum += FromBf16(slots[int64_t{a.chosen} * a.dim]);
  a.out[row * a.dim + c] = RoundBf16(sum);
}

}  // namespace
}  // namespace cuda

Status CudaBackend::DoMoe(const MoeArgs& args) {
  State& state = *state_;
  FATHOM_RETURN_IF_ERROR(state.Enter());
  const int64_t n = args.x.dim(0);
  const auto dim = static_cast<int>(args.x.dim(1));
  const auto chosen = static_cast<int>(args.experts.dim(1));
  const auto num_experts = static_cast<int>(args.routed.size());
  const BackendLimits& limits = state.limits;
  FATHOM_RETURN_IF_ERROR(Fits("moe: rows", n, limits.max_rows));
  FATHOM_RETURN_IF_ERROR(Fits("moe: columns", dim, limits.max_cols));
  FATHOM_RETURN_IF_ERROR(Fits("moe: experts per token", chosen, limits.max_experts_per_token));
  FATHOM_RETURN_IF_ERROR(Fits("moe: experts per token", chosen, kMaxExpertsPerToken));
  const cuda::ExpertTables::Layer* const told = state.experts.Find(args.routed, args.shared);
  cuda::ExpertShape shape;
  if (told != nullptr) {
    shape = told->shape;
  } else {
    FATHOM_ASSIGN_OR_RETURN(shape, cuda::ShapeOf(args.routed, args.shared));
    FATHOM_RETURN_IF_ERROR(Fits("moe: experts", num_experts, limits.max_experts));
    FATHOM_RETURN_IF_ERROR(Fits("moe: expert width", shape.width, limits.max_expert_width));
  }
  const auto [width, quantised, tiles] = shape;
  if (n == 0) return OkStatus();

  const ExpertWeights* table = nullptr;
  if (told != nullptr) {
    FATHOM_ASSIGN_OR_RETURN(table, state.staging.Table(*told));
  } else {
    const int64_t bytes = args.routed.size_bytes() + static_cast<int64_t>(sizeof(args.shared));
    FATHOM_ASSIGN_OR_RETURN(const cuda::StagingRing::Place place, state.ReserveOperand(bytes));
    *std::copy(args.routed.begin(), args.routed.end(),
               reinterpret_cast<ExpertWeights*>(place.host)) = args.shared;
    FATHOM_RETURN_IF_ERROR(state.operands.Send(place));
    table = reinterpret_cast<const ExpertWeights*>(place.device);
  }

  const cuda::Scratch& scratch = state.scratch;
  const int64_t at_a_time = state.lanes.room().rows;
  for (int64_t first = 0; first < n; first += at_a_time) {
    const auto count = static_cast<int>(std::min<int64_t>(at_a_time, n - first));
    const float* x = args.x.data() + first * dim;
    const cuda::MoeRows rows = {x,
                                scratch.inputs,
                                args.experts.data() + first * chosen,
                                args.weights.data() + first * chosen,
                                table,
                                count,
                                chosen,
                                num_experts,
                                dim,
                                width,
                                args.swiglu_limit,
                                args.out.data() + first * dim,
                                scratch.expert_begin,
                                scratch.expert_items,
                                scratch.hidden,
                                scratch.expert_out,
                                tiles ? cuda::ExpertTileInputs(count, chosen, num_experts) : 0,
                                told != nullptr && table == told->table ? told->on_host : nullptr,
                                scratch.expert_tiles,
                                scratch.num_expert_tiles,
                                scratch.packed,
                                reinterpret_cast<uint16_t*>(scratch.hidden),
                                state.report,
                                static_cast<int>(first)};
    if (tiles) {
      FATHOM_RETURN_IF_ERROR(
          cuda::PackRows({x, count, dim}, dim, /*quantise=*/true, scratch.packed, state.stream));
    } else if (quantised) {
      FATHOM_RETURN_IF_ERROR(
          cuda::QuantiseRows({x, count, dim}, dim, scratch.inputs, state.stream));
    }
    cuda::Launch(cuda::GroupKernel, 1, cuda::kGroupThreads,
                 (static_cast<size_t>(num_experts) + 1) * sizeof(int32_t), state.stream, rows);
    FATHOM_RETURN_IF_ERROR(cuda::LaunchStatus("moe: groups"));
    FATHOM_RETURN_IF_ERROR(tiles ? cuda::MultiplyExpertTiles(rows, state.stream)
                                 : cuda::MultiplyExperts(rows, state.stream));
    cuda::Launch(cuda::CombineKernel,
                 dim3(cuda::Blocks(dim, cuda::kBlock), static_cast<unsigned>(count)), cuda::kBlock,
                 0, state.stream, rows);
    FATHOM_RETURN_IF_ERROR(cuda::LaunchStatus("moe: sum"));
  }
  return OkStatus();
}

}  // namespace fathom
