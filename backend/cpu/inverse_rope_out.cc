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

  // The rows of a group share one slice of the heads, which fp8 weights take unrounded unless asked
  // to round it, or unless they have an int8 copy.
  const int rank = args.wo_a.rows / args.groups;
  const int64_t width = args.wo_a.cols;
  const bool int8 = Int8Of(args.wo_a) != nullptr && rank % cpu::kRowBlock == 0;
  const InputForm form = int8                            ? InputForm::kInt8
                         : !args.quantise_input          ? InputForm::kFloats
                         : args.wo_a.dtype == DType::kI8 ? InputForm::kBytes
                                                         : InputForm::kE4m3;
  for (int group = 0; group < args.groups; ++group) {
    const cpu::InputRows x = PrepareInput(args.o, form, group * width, width);
    MultiplySlice(x, args.wo_a, group * rank, rank, official(), args.out);
  }
  return OkStatus();
}

}  // namespace fathom
