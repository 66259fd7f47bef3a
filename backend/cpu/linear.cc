// See backend/ops/linear.h for the contract.
#include "backend/cpu/scratch.h"

namespace fathom {

TensorView<const float> CpuBackend::QuantisedInput(TensorView<const float> x) {
  const int64_t cols = x.dim(1);
  float* out = scratch_->inputs.data();
  ForEach(x.dim(0), cols,
          [&](int64_t i, int) { cpu::QuantiseE4m3Groups(x.row(i), 128, out + i * cols); });
  return {out, x.dim(0), cols};
}

void CpuBackend::Multiply(TensorView<const float> x, const WeightView& weight, bool round,
                          TensorView<float> out) {
  // Narrow weights (a router of 16 experts) leave few row blocks, so long steps are split as well.
  // Each part decodes the rows again, which is a small share of 256 products.
  constexpr int64_t kRowsPerTask = 256;
  const int64_t parts = (x.dim(0) + kRowsPerTask - 1) / kRowsPerTask;
  const int64_t blocks = (weight.rows + cpu::kRowBlock - 1) / cpu::kRowBlock;
  const int64_t rows_each = std::min(kRowsPerTask, x.dim(0));
  ForEach(blocks * parts, cpu::kRowBlock * weight.cols * (rows_each + 2),
          [&](int64_t task, int thread) {
            const int row = static_cast<int>(task / parts) * cpu::kRowBlock;
            const int num_rows = std::min(cpu::kRowBlock, weight.rows - row);
            const int64_t begin = task % parts * kRowsPerTask;
            const int64_t n = std::min(kRowsPerTask, x.dim(0) - begin);
            MultiplyRows(
                weight, row, num_rows, n, [&](int64_t i) { return x.row(begin + i).data(); },
                thread,
                [&](int64_t first, int count, float* sums) {
                  if (round) {
                    cpu::RoundBf16({sums, static_cast<size_t>(count) * cpu::kRowBlock}, sums);
                  }
                  for (int i = 0; i < count; ++i) {
                    std::memcpy(out.row(begin + first + i).data() + row, sums + i * cpu::kRowBlock,
                                static_cast<size_t>(num_rows) * sizeof(float));
                  }
                });
          });
}

Status CpuBackend::DoLinear(const LinearArgs& args) {
  FATHOM_RETURN_IF_ERROR(Fits("linear: rows", args.x.dim(0), scratch_->limits.max_rows));
  FATHOM_RETURN_IF_ERROR(Fits("linear: columns", args.x.dim(1), scratch_->limits.max_cols));
  const bool quantise = official() && args.first.weight.quantised();
  const TensorView<const float> x = quantise ? QuantisedInput(args.x) : args.x;
  for (const LinearOutput* y : {&args.first, &args.second}) {
    if (y->weight.empty()) continue;
    Multiply(x, y->weight, args.round_output && official(), y->out);
  }
  return OkStatus();
}

}  // namespace fathom
