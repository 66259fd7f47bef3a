// See backend/ops/head.h for the contract.
#include <algorithm>

#include "backend/cuda/hc_mix.cuh"
#include "backend/cuda/products.h"
#include "backend/cuda/state.h"

namespace fathom {
namespace cuda {
namespace {

// A block per wanted row: x[m] is the norm of row rows[m].
__global__ void __launch_bounds__(kBlock)
    HeadInputKernel(const float* hc, const int* rows, const float* fn, const float* base,
                    const float* scale, const float* norm_weight, float norm_eps, float hc_eps,
                    int num_copies, int64_t width, float* x) {
  __shared__ double sums[kWarps];
  __shared__ float mix[kMaxHcMult];
  __shared__ float pre[kMaxHcMult];
  const float* copies = hc + int64_t{rows[blockIdx.x]} * num_copies * width;
  MixCopies(copies, fn, num_copies, num_copies * width, norm_eps, mix, sums);
  if (static_cast<int>(threadIdx.x) < num_copies) {
    pre[threadIdx.x] = Sigmoid(mix[threadIdx.x] * scale[0] + base[threadIdx.x]) + hc_eps;
  }
  __syncthreads();
  SumAndNorm(copies, pre, num_copies, width, norm_weight, norm_eps, x + blockIdx.x * width, sums);
}

}  // namespace
}  // namespace cuda

Status CudaBackend::DoHead(const HeadArgs& args) {
  State& state = *state_;
  FATHOM_RETURN_IF_ERROR(state.Enter());
  const auto m = static_cast<int64_t>(args.rows.size());
  const int64_t width = args.hc.dim(2);
  const int64_t vocab = args.head.rows;
  FATHOM_RETURN_IF_ERROR(Fits("head: rows", m, state.limits.max_rows));
  FATHOM_RETURN_IF_ERROR(Fits("head: columns", width, state.limits.max_cols));
  if (m == 0) return OkStatus();
  FATHOM_ASSIGN_OR_RETURN(const int* rows, state.operands.Copy(args.rows));
  for (int64_t first = 0; first < m; first += state.scratch.rows) {
    const int64_t count = std::min<int64_t>(state.scratch.rows, m - first);
    cuda::HeadInputKernel<<<static_cast<unsigned>(count), cuda::kBlock, 0, state.stream>>>(
        args.hc.data(), rows + first, args.fn.data(), args.base.data(), args.scale.data(),
        args.norm_weight.data(), args.norm_eps, args.hc_eps, static_cast<int>(args.hc.dim(1)),
        width, state.scratch.inputs);
    FATHOM_RETURN_IF_ERROR(cuda::LaunchStatus("head: input"));
    FATHOM_RETURN_IF_ERROR(cuda::Multiply(
        {state.scratch.inputs, count, width}, args.head, 1,
        /*round=*/false, {args.logits.data() + first * vocab, count, vocab}, state.stream));
  }
  return OkStatus();
}

}  // namespace fathom
