// See backend/ops/inverse_rope_out.h for the contract.
#include <vector>
#include "backend/reference/reference_backend.h"

#include "backend/reference/scalar_math.h"

namespace fathom {

Status ReferenceBackend::DoInverseRopeOut(const InverseRopeOutArgs& args) {
  const auto d = static_cast<size_t>(args.o.dim(2));
  const auto group_width = static_cast<size_t>(args.wo_a.cols);
  const int rank = args.wo_a.rows / args.groups;
  for (int64_t i = 0; i < args.o.dim(0); ++i) {
    const std::span<float> heads = args.o.row(i);
    for (size_t h = 0; h < heads.size(); h += d) {
      reference::RopeRow(numerics(), heads.subspan(h, d), args.cos_sin.row(i), -1.0f);
    }
    // Groups of 128 never straddle those of heads: the columns of quantised weights are a multiple.
    if (args.quantise_input) reference::QuantiseActivation(numerics(), args.wo_a, heads);
  }
  std::vector<float> w(group_width);
  for (int row = 0; row < args.wo_a.rows; ++row) {
    reference::DecodeWeightRow(args.wo_a, row, w);
    const size_t group_begin = static_cast<size_t>(row / rank) * group_width;
    for (int64_t i = 0; i < args.o.dim(0); ++i) {
      const float u = reference::Dot(args.o.row(i).subspan(group_begin, group_width), w);
      args.out.row(i)[static_cast<size_t>(row)] = reference::Bf16(numerics(), u);
    }
  }
  return OkStatus();
}

}  // namespace fathom
