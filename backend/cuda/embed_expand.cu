// See backend/ops/embed_expand.h for the contract.
#include "backend/cuda/formats.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/state.h"

namespace fathom {
namespace cuda {
namespace {

// A block per row.
__global__ void __launch_bounds__(kBlock)
    EmbedKernel(const TokenId* token_ids, const uint16_t* table, int width, int64_t row_size,
                float* hc) {
  const uint16_t* row = table + int64_t{token_ids[blockIdx.x]} * width;
  float* out = hc + int64_t{blockIdx.x} * row_size;
  for (int64_t i = threadIdx.x; i < row_size; i += kBlock) out[i] = FromBf16(row[i % width]);
}

}  // namespace
}  // namespace cuda

Status CudaBackend::DoEmbedExpand(const EmbedExpandArgs& args) {
  State& state = *state_;
  FATHOM_RETURN_IF_ERROR(state.Enter());
  if (args.hc.size() == 0) return OkStatus();
  FATHOM_ASSIGN_OR_RETURN(const TokenId* token_ids, state.Operand(args.token_ids));
  cuda::Launch(cuda::EmbedKernel, static_cast<unsigned>(args.token_ids.size()), cuda::kBlock, 0,
               state.stream, token_ids, static_cast<const uint16_t*>(args.table.data),
               args.table.cols, args.hc.row_size(), args.hc.data());
  return cuda::LaunchStatus("embed_expand");
}

}  // namespace fathom
