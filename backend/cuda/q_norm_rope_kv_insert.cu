// See backend/ops/q_norm_rope_kv_insert.h for the contract.
#include "backend/cuda/launch.cuh"
#include "backend/cuda/page_codec.cuh"
#include "backend/cuda/rows.cuh"
#include "backend/cuda/state.h"

namespace fathom {
namespace cuda {
namespace {

// A warp per head. The official norm: every step of it rounds to bf16; the sum of squares is in
// double.
__global__ void __launch_bounds__(kBlock)
    QueryKernel(float* q, const float* cos_sin, float eps, int64_t num_heads, int heads_per_row,
                int dim, int pairs) {
  const int64_t head = int64_t{blockIdx.x} * kWarps + WarpIndex();
  if (head >= num_heads) return;
  float* x = q + head * dim;
  const float* rotation = cos_sin + head / heads_per_row * pairs * 2;
  double sum = 0.0;
  for (int i = Lane(); i < dim; i += kWarp) sum += static_cast<double>(RoundBf16(x[i] * x[i]));
  sum = WarpSum(sum);
  const float mean = RoundBf16(static_cast<float>(sum / static_cast<double>(dim)));
  const float inverse = RoundBf16(1.0f / sqrtf(RoundBf16(mean + eps)));
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

// A block per row: the window's entry, stored and as later steps will read it.
__global__ void __launch_bounds__(kBlock)
    WindowKvKernel(const float* kv_rows, const float* weight, const float* cos_sin, float eps,
                   int pairs, DevicePlan plan, PageView swa, float* step_kv_rows) {
  auto* const kv = SharedMemory<float>();  // [dim]
  __shared__ double sums[kWarps];
  const int64_t row = blockIdx.x;
  const RowOfStep where = plan.rows[row];
  if (where.sequence < 0) return;
  const int dim = swa.format.dim;
  const int thread = static_cast<int>(threadIdx.x);
  const float* x = kv_rows + row * dim;
  const float inverse = InverseRms(BlockSum(SquaresOf(x, dim), sums), dim, eps);
  for (int i = thread; i < dim; i += kBlock) kv[i] = RoundBf16(weight[i] * (x[i] * inverse));
  __syncthreads();
  for (int k = thread; k < pairs; k += kBlock) {
    RotatePair(kv + dim - 2 * pairs + 2 * k, cos_sin + (row * pairs + k) * 2, 1.0f);
  }
  __syncthreads();
  const BlockTable& table = plan.TablesFor(CacheKind::kSwaKv)[where.sequence];
  if (HasBlock(swa, table, where.position)) {
    StoreKvEntry(swa.format, Locate(swa, table, where.position), kv);
  }
  float* out = step_kv_rows + row * dim;
  const int nope = swa.format.encoding == EntryEncoding::kF32 ? 0 : dim - swa.format.rope_dim;
  for (int g = WarpIndex() * kE4m3Group; g < nope; g += kWarps * kE4m3Group) {
    SimulateE4m3Group(kv + g, kE4m3Group, out + g);
  }
  for (int i = nope + thread; i < dim; i += kBlock) {
    out[i] = swa.format.encoding == EntryEncoding::kF32 ? kv[i] : RoundBf16(kv[i]);
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
  if (num_heads > 0) {
    const auto blocks = cuda::Blocks(num_heads, cuda::kWarps);
    cuda::Launch(cuda::QueryKernel, blocks, cuda::kBlock, 0, state.stream, args.q.data(),
                 args.cos_sin.data(), args.norm_eps, num_heads, static_cast<int>(args.q.dim(1)),
                 dim, pairs);
    FATHOM_RETURN_IF_ERROR(cuda::LaunchStatus("q_norm_rope_kv_insert: queries"));
  }
  FATHOM_ASSIGN_OR_RETURN(const cuda::DevicePlan plan, state.Plan(args.plan));
  cuda::Launch(cuda::WindowKvKernel, static_cast<unsigned>(n), cuda::kBlock,
               static_cast<size_t>(dim) * sizeof(float), state.stream, args.kv.data(),
               args.kv_norm_weight.data(), args.cos_sin.data(), args.norm_eps, pairs, plan,
               args.swa, args.step_kv.data());
  return cuda::LaunchStatus("q_norm_rope_kv_insert: window");
}

}  // namespace fathom
