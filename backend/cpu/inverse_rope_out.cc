// See backend/ops/inverse_rope_out.h for the contract.
#include "backend/cpu/scratch.h"

namespace fathom {

Status CpuBackend::DoInverseRopeOut(const InverseRopeOutArgs& args) {
  const int64_t n = args.o.dim(0);
  FATHOM_RETURN_IF_ERROR(Fits("inverse_rope_out: rows", n, scratch_->limits.max_rows));
  FATHOM_RETURN_IF_ERROR(
      Fits("inverse_rope_out: columns", args.wo_a.cols, scratch_->limits.max_cols));
  const auto d = static_cast<size_t>(args.o.dim(2));
  ForEach(n, args.o.dim(1) * args.cos_sin.dim(1) * 8, [&](int64_t i, int) {
    const std::span<float> heads = args.o.row(i);
    for (size_t h = 0; h < heads.size(); h += d) {
      cpu::RopeRow(heads.subspan(h, d), args.cos_sin.row(i), -1.0f, official());
    }
  });

  // The rows of a group share one slice of the heads, which fp8 weights take unrounded.
  const int rank = args.wo_a.rows / args.groups;
  const int64_t width = args.wo_a.cols;
  for (int group = 0; group < args.groups; ++group) {
    const float** rows = scratch_->float_rows.data();
    cpu::InputRows x{rows, nullptr, nullptr, n};
    if (n > cpu::kDirectInputs) x = {nullptr, rows, nullptr, n};
    ForEach(n, x.permuted == nullptr ? 1 : 4 * width, [&](int64_t i, int) {
      const float* slice = args.o.row(i).data() + group * width;
      rows[i] = slice;
      if (x.permuted == nullptr) return;
      float* permuted = scratch_->float_inputs.part(i);
      cpu::PermuteInput({slice, static_cast<size_t>(width)}, permuted);
      rows[i] = permuted;
    });
    MultiplySlice(x, args.wo_a, group * rank, rank, official(), args.out);
  }
  return OkStatus();
}

}  // namespace fathom
