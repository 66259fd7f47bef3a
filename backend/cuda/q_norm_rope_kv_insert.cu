// See backend/ops/q_norm_rope_kv_insert.h for the contract.
#include "backend/cuda/launch.cuh"
#include "backend/cuda/page_codec.cuh"
#include "backend/cuda/rows.cuh"
#include "backend/cuda/state.h"

namespace fathom {
namespace cuda {
namespace {

// The official norm of a query head: every step of it rounds to bf16; the sum of squares is in
// double. This is the factor, of the sum over a warp's lanes.
__device__ float InverseOfSquares(double sum, int dim, float eps) {
  sum = WarpSum(sum);
  const float mean = RoundBf16(static_cast<float>(sum / static_cast<double>(dim)));
  return RoundBf16(1.0f / sqrtf(RoundBf16(mean + eps)));
}

// Norm and rotation of a head, a warp's work.
__device__ void NormHead(float* x, const float* rotation, float eps, int dim, int pairs) {
  double sum = 0.0;
  for (int i = Lane(); i < dim; i += kWarp) sum += static_cast<double>(RoundBf16(x[i] * x[i]));
  const float inverse = InverseOfSquares(sum, dim, eps);
  // Each element is read and written by one lane: pairs as a whole, all others alone.
  const int plain = dim - 2 * pairs;
  for (int i = Lane(); i < plain; i += kWarp) x[i] = RoundBf16(x[i] * inverse);
  for (int k = Lane(); k < pairs; k += kWarp) {
    float pair[2];
    for (int i = 0; i < 2; ++i) pair[i] = RoundBf16(x[plain + 2 * k + i] * inverse);
    RotatePair(pair, rotation + 2 * k, 1.0f);
    for (int i = 0; i < 2; ++i) x[plain + 2 * k + i] = pair[i];
  }
}

// The same where four channels at a time stay in registers: x is 16-byte aligned.
template <int kFours>
__device__ void NormHeadInRegisters(float* x, const float* rotation, float eps, int pairs) {
  constexpr int kDim = kFours * 4 * kWarp;
  float4 four[kFours];
#pragma unroll
  for (int f = 0; f < kFours; ++f) four[f] = reinterpret_cast<float4*>(x)[f * kWarp + Lane()];
  double sum = 0.0;
#pragma unroll
  for (int f = 0; f < kFours; ++f) {
    const float v[4] = {four[f].x, four[f].y, four[f].z, four[f].w};
#pragma unroll
    for (int k = 0; k < 4; ++k) sum += static_cast<double>(RoundBf16(v[k] * v[k]));
  }
  const float inverse = InverseOfSquares(sum, kDim, eps);
#pragma unroll
  for (int f = 0; f < kFours; ++f) {
    float v[4] = {RoundBf16(four[f].x * inverse), RoundBf16(four[f].y * inverse),
                  RoundBf16(four[f].z * inverse), RoundBf16(four[f].w * inverse)};
    const int rotated = (f * kWarp + Lane()) * 4 - (kDim - 2 * pairs);
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
      if (rotated + k >= 0) RotatePair(v + k, rotation + rotated + k, 1.0f);
    }
    reinterpret_cast<float4*>(x)[f * kWarp + Lane()] = {v[0], v[1], v[2], v[3]};
  }
}

// Query heads [n * heads_per_row, dim], in place.
struct QueryHeads {
  float* q;
  int64_t num;
  int per_row;
  int dim;
};

// Window entries: rows [n, dim] of kv, their norm, and where they go.
struct WindowRows {
  const float* kv;
  const float* weight;
  DevicePlan plan;
  PageView swa;
  float* step_kv;
};

// A row's window entry, stored and as later steps will read it: a block's work.
__device__ void InsertWindowRow(const WindowRows& a, int64_t row, const float* cos_sin, float eps,
                                int pairs) {
  auto* const kv = SharedMemory<float>();  // [dim]
  __shared__ double sums[kWarps];
  const PageView& swa = a.swa;
  const RowOfStep where = a.plan.rows[row];
  if (where.sequence < 0) return;
  const int dim = swa.format.dim;
  const int thread = static_cast<int>(threadIdx.x);
  const float* x = a.kv + row * dim;
  const float inverse = InverseRms(BlockSum(SquaresOf(x, dim), sums), dim, eps);
  for (int i = thread; i < dim; i += kBlock) kv[i] = RoundBf16(a.weight[i] * (x[i] * inverse));
  __syncthreads();
  for (int k = thread; k < pairs; k += kBlock) {
    RotatePair(kv + dim - 2 * pairs + 2 * k, cos_sin + (row * pairs + k) * 2, 1.0f);
  }
  __syncthreads();
  const BlockTable& table = a.plan.TablesFor(CacheKind::kSwaKv)[where.sequence];
  if (HasBlock(swa, table, where.position)) {
    StoreKvEntry(swa.format, Locate(swa, table, where.position), kv);
  }
  float* out = a.step_kv + row * dim;
  const int nope = swa.format.encoding == EntryEncoding::kF32 ? 0 : dim - swa.format.rope_dim;
  for (int g = WarpIndex() * kE4m3Group; g < nope; g += kWarps * kE4m3Group) {
    SimulateE4m3Group(kv + g, kE4m3Group, out + g);
  }
  for (int i = nope + thread; i < dim; i += kBlock) {
    out[i] = swa.format.encoding == EntryEncoding::kF32 ? kv[i] : RoundBf16(kv[i]);
  }
}

// Blocks of rows in front, since they take longer than the blocks of kWarps heads behind them. The
// two have no data in common: one launch in place of two.
template <int kFours>
__global__ void __launch_bounds__(kBlock)
    QNormRopeKvInsertKernel(QueryHeads q, WindowRows window, unsigned rows, const float* cos_sin,
                            float eps, int pairs) {
  if (blockIdx.x < rows) {
    InsertWindowRow(window, blockIdx.x, cos_sin, eps, pairs);
    return;
  }
  const int64_t head = int64_t{blockIdx.x - rows} * kWarps + WarpIndex();
  if (head >= q.num) return;
  float* const x = q.q + head * q.dim;
  const float* const rotation =
      cos_sin + static_cast<unsigned>(head) / static_cast<unsigned>(q.per_row) * int64_t{2} * pairs;
  if constexpr (kFours == 0) {
    NormHead(x, rotation, eps, q.dim, pairs);
  } else {
    NormHeadInRegisters<kFours>(x, rotation, eps, pairs);
  }
}

}  // namespace
}  // namespace cuda

Status CudaBackend::DoQNormRopeKvInsert(const QNormRopeKvInsertArgs& args) {
  State& state = *state_;
  FATHOM_RETURN_IF_ERROR(state.Enter());
  const int64_t n = args.q.dim(0);
  const auto dim = static_cast<int>(args.q.dim(2));
  const auto pairs = static_cast<int>(args.cos_sin.dim(1));
  FATHOM_RETURN_IF_ERROR(Fits("q_norm_rope_kv_insert: rows", n, state.limits.max_rows));
  FATHOM_RETURN_IF_ERROR(Fits("q_norm_rope_kv_insert: head dim", dim, state.limits.max_head_dim));
  if (n == 0) return OkStatus();
  const int64_t num_heads = n * args.q.dim(1);
  FATHOM_ASSIGN_OR_RETURN(const cuda::DevicePlan plan, state.Plan(args.plan));
  const cuda::QueryHeads q = {args.q.data(), num_heads, static_cast<int>(args.q.dim(1)), dim};
  const cuda::WindowRows window = {args.kv.data(), args.kv_norm_weight.data(), plan, args.swa,
                                   args.step_kv.data()};
  const auto rows = static_cast<unsigned>(n);
  const bool aligned = reinterpret_cast<uintptr_t>(q.q) % 16 == 0;
  auto* const kernel = aligned && dim == 512   ? &cuda::QNormRopeKvInsertKernel<4>
                       : aligned && dim == 128 ? &cuda::QNormRopeKvInsertKernel<1>
                                               : &cuda::QNormRopeKvInsertKernel<0>;
  cuda::Launch(kernel, rows + cuda::Blocks(num_heads, cuda::kWarps), cuda::kBlock,
               static_cast<size_t>(dim) * sizeof(float), state.stream, q, window, rows,
               args.cos_sin.data(), args.norm_eps, pairs);
  return cuda::LaunchStatus("q_norm_rope_kv_insert");
}

}  // namespace fathom
