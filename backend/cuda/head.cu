// See backend/ops/head.h for the contract.
#include <algorithm>

#include "backend/cuda/hc_mix.cuh"
#include "backend/cuda/hc_mix.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/products.h"
#include "backend/cuda/state.h"
#include "backend/cuda/tile_products.h"

namespace fathom {
namespace cuda {
namespace {

// A block per wanted row: x[m] is the norm of row rows[m]. `sums` are those of SumMixes.
__global__ void __launch_bounds__(kNormThreads)
    HeadInputKernel(const float* hc, const int* rows, const double* sums, const float* base,
                    const float* scale, const float* norm_weight, float norm_eps, float hc_eps,
                    int num_copies, int64_t width, float* x) {
  __shared__ double warps[kNormWarps];
  __shared__ float pre[kMaxHcMult];
  const float* copies = hc + int64_t{rows[blockIdx.x]} * num_copies * width;
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread < num_copies) {
    const float mix = MixOf(MixesOf(sums, blockIdx.x, num_copies), thread, num_copies,
                            num_copies * width, norm_eps);
    pre[thread] = Sigmoid(mix * scale[0] + base[thread]) + hc_eps;
  }
  __syncthreads();
  SumAndNorm(copies, pre, num_copies, width, norm_weight, norm_eps, x + blockIdx.x * width, warps);
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
  FATHOM_ASSIGN_OR_RETURN(const int* rows, state.Operand(args.rows));
  const int64_t at_a_time = state.lanes.room().rows;
  for (int64_t first = 0; first < m; first += at_a_time) {
    const int64_t count = std::min<int64_t>(at_a_time, m - first);
    const int64_t copies = args.hc.dim(1);
    FATHOM_RETURN_IF_ERROR(
        cuda::SumMixes({args.hc.data(), rows + first, count, args.fn.data(),
                        static_cast<int>(copies), copies * width, state.scratch.mixes},
                       state.stream));
    cuda::Launch(cuda::HeadInputKernel, static_cast<unsigned>(count), cuda::kNormThreads, 0,
                 state.stream, args.hc.data(), rows + first, state.scratch.mixes, args.base.data(),
                 args.scale.data(), args.norm_weight.data(), args.norm_eps, args.hc_eps,
                 static_cast<int>(copies), width, state.scratch.inputs);
    FATHOM_RETURN_IF_ERROR(cuda::LaunchStatus("head: input"));
    const cuda::ConstRows x = {state.scratch.inputs, count, width};
    const cuda::Rows logits = {args.logits.data() + first * vocab, count, vocab};
    FATHOM_RETURN_IF_ERROR(cuda::MultiplyBf16(x, width, args.head, 1, /*round=*/false, logits,
                                              state.scratch.packed, state.stream));
  }
  return OkStatus();
}

}  // namespace fathom
