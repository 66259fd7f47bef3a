// See backend/ops/embed_expand.h for the contract.
#include "backend/cpu/scratch.h"

namespace fathom {

Status CpuBackend::DoEmbedExpand(const EmbedExpandArgs& args) {
  const int64_t width = args.table.cols;
  const int64_t copies = args.hc.dim(1);
  ForEach(args.hc.dim(0), 2 * copies * width, [&](int64_t i, int) {
    float* hc = args.hc.row(i).data();
    cpu::DecodeRows(args.table, args.token_ids[static_cast<size_t>(i)], 1, hc);
    for (int64_t c = 1; c < copies; ++c) {
      std::memcpy(hc + c * width, hc, static_cast<size_t>(width) * sizeof(float));
    }
  });
  return OkStatus();
}

}  // namespace fathom
