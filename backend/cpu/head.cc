// See backend/ops/head.h for the contract.
#include <cmath>

#include "backend/cpu/scratch.h"

namespace fathom {

Status CpuBackend::DoHead(const HeadArgs& args) {
  const auto m = static_cast<int64_t>(args.rows.size());
  const int64_t width = args.hc.dim(2);
  const auto hc = static_cast<size_t>(args.hc.dim(1));
  FATHOM_RETURN_IF_ERROR(Fits("head: rows", m, scratch_->limits.max_rows));
  FATHOM_RETURN_IF_ERROR(Fits("head: columns", width, scratch_->limits.max_cols));
  const TensorView<float> x(scratch_->head_inputs.data(), m, width);
  ForEach(m, 16 * args.hc.row_size(), [&](int64_t i, int) {
    const std::span<const float> copies = args.hc.row(args.rows[static_cast<size_t>(i)]);
    const float rho = cpu::InverseRms(copies, args.norm_eps);
    const float* input = copies.data();
    alignas(64) float pre[cpu::kRowBlock];
    cpu::DotBlock(args.fn.data(), static_cast<int>(hc), args.fn.dim(1), &input, 1, pre,
                  cpu::kRowBlock);
    for (size_t c = 0; c < hc; ++c) {
      const float z = pre[c] * rho * args.scale.data()[0] + args.base.data()[c];
      pre[c] = 1.0f / (1.0f + std::exp(-z)) + args.hc_eps;
    }
    const std::span<float> y = x.row(i);
    cpu::MixCopies(copies.data(), {pre, hc}, y, official());
    cpu::ScaleRow(y, args.norm_weight.data(), cpu::InverseRms(y, args.norm_eps), official(),
                  y.data());
  });
  Multiply(PrepareInput(x, FormOf(args.head)), args.head, /*round=*/false, args.logits);
  return OkStatus();
}

}  // namespace fathom
