// See backend/ops/inverse_rope_out.h for the contract.
#include <utility>

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
  const auto cols = static_cast<size_t>(width);
  const bool int8 = Int8Of(args.wo_a) != nullptr && rank % cpu::kRowBlock == 0;
  for (int group = 0; group < args.groups; ++group) {
    const float** rows = scratch_->float_rows.data();
    const void** slots = scratch_->int8_rows.data();
    cpu::InputRows x{rows, nullptr, nullptr, n};
    if (int8) {
      x = {nullptr, nullptr, slots, n, ByteFormOf(InputForm::kInt8)};
    } else if (n > cpu::kDirectInputs) {
      x = {nullptr, rows, nullptr, n};
    }
    ForEach(n, x.floats != nullptr ? 1 : 4 * width, [&](int64_t i, int) {
      const std::span<const float> slice =
          std::as_const(args.o).row(i).subspan(static_cast<size_t>(group * width), cols);
      if (x.floats != nullptr) {
        rows[i] = slice.data();
      } else if (int8) {
        slots[i] = scratch_->int8_inputs.part(i);
        cpu::Int8Row(slice, cpu::kInt8Group, cpu::SlotAt(scratch_->int8_inputs.part(i), width));
      } else {
        rows[i] = scratch_->float_inputs.part(i);
        cpu::PermuteInput(slice, scratch_->float_inputs.part(i));
      }
    });
    MultiplySlice(x, args.wo_a, group * rank, rank, official(), args.out);
  }
  return OkStatus();
}

}  // namespace fathom
