// See backend/ops/inverse_rope_out.h for the contract.
#include <algorithm>

#include "backend/cuda/launch.cuh"
#include "backend/cuda/products.h"
#include "backend/cuda/rows.cuh"
#include "backend/cuda/state.h"
#include "backend/cuda/tile_products.h"

namespace fathom {
namespace cuda {
namespace {

// A thread per pair of a head.
__global__ void __launch_bounds__(kBlock)
    InverseRopeKernel(float* o, const float* cos_sin, int64_t total, int heads, int dim,
                      int pairs) {
  const int64_t i = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i >= total) return;
  const int64_t head = i / pairs;  // of all rows
  const int64_t row = head / heads;
  const int pair = static_cast<int>(i % pairs);
  RotatePair(o + head * dim + dim - 2 * pairs + 2 * pair, cos_sin + 2 * (row * pairs + pair),
             -1.0f);
}

}  // namespace
}  // namespace cuda

Status CudaBackend::DoInverseRopeOut(const InverseRopeOutArgs& args) {
  State& state = *state_;
  FATHOM_RETURN_IF_ERROR(state.Enter());
  const int64_t n = args.o.dim(0);
  FATHOM_RETURN_IF_ERROR(Fits("inverse_rope_out: rows", n, state.limits.max_rows));
  FATHOM_RETURN_IF_ERROR(Fits("inverse_rope_out: heads", args.o.dim(1), state.limits.max_heads));
  FATHOM_RETURN_IF_ERROR(
      Fits("inverse_rope_out: head dim", args.o.dim(2), state.limits.max_head_dim));
  const int64_t pairs = args.cos_sin.dim(1);
  const int64_t rotations = n * args.o.dim(1) * pairs;
  if (rotations > 0) {
    const auto blocks = cuda::Blocks(rotations, cuda::kBlock);
    cuda::Launch(cuda::InverseRopeKernel, blocks, cuda::kBlock, 0, state.stream, args.o.data(),
                 args.cos_sin.data(), rotations, static_cast<int>(args.o.dim(1)),
                 static_cast<int>(args.o.dim(2)), static_cast<int>(pairs));
    FATHOM_RETURN_IF_ERROR(cuda::LaunchStatus("inverse_rope_out: rotation"));
  }
  const int64_t width = args.out.dim(1);
  const int64_t cols = args.o.row_size();
  for (int64_t first = 0; first < n; first += state.scratch.rows) {
    const int64_t count = std::min<int64_t>(state.scratch.rows, n - first);
    FATHOM_RETURN_IF_ERROR(cuda::MultiplyBf16(
        {args.o.data() + first * cols, count, cols}, cols, args.wo_a, args.groups, /*round=*/true,
        {args.out.data() + first * width, count, width}, state.scratch.packed, state.stream));
  }
  return OkStatus();
}

}  // namespace fathom
