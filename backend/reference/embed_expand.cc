// See backend/ops/embed_expand.h for the contract.
#include "backend/reference/reference_backend.h"
#include "backend/reference/scalar_math.h"

namespace fathom {

Status ReferenceBackend::DoEmbedExpand(const EmbedExpandArgs& args) {
  const auto width = static_cast<size_t>(args.table.cols);
  for (size_t i = 0; i < args.token_ids.size(); ++i) {
    const std::span<float> copies = args.hc.row(static_cast<int64_t>(i));
    for (size_t c = 0; c < copies.size(); c += width) {
      reference::DecodeWeightRow(args.table, args.token_ids[i], copies.subspan(c, width));
    }
  }
  return OkStatus();
}

}  // namespace fathom
