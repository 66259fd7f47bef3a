// See backend/ops/head.h for the contract.
#include <vector>
#include "backend/reference/reference_backend.h"

#include "backend/reference/scalar_math.h"

namespace fathom {

Status ReferenceBackend::DoHead(const HeadArgs& args) {
  const auto hc = static_cast<size_t>(args.hc.dim(1));
  const auto width = static_cast<size_t>(args.hc.dim(2));
  std::vector<float> x(args.rows.size() * width, 0.0f);
  for (size_t m = 0; m < args.rows.size(); ++m) {
    const std::span<const float> copies = args.hc.row(args.rows[m]);
    const std::span<float> y = std::span(x).subspan(m * width, width);
    const float rho = reference::InverseRms(copies, args.norm_eps);
    for (size_t c = 0; c < hc; ++c) {
      const float mix = reference::Dot(args.fn.row(static_cast<int64_t>(c)), copies) * rho;
      const float pre =
          reference::Sigmoid(mix * args.scale.data()[0] + args.base.data()[c]) + args.hc_eps;
      for (size_t d = 0; d < width; ++d) y[d] += pre * copies[c * width + d];
    }
    for (float& v : y) v = reference::Bf16(numerics(), v);
    reference::RmsNormRow(numerics(), y, args.norm_weight.elements(), args.norm_eps, y);
  }
  reference::MatMul(numerics(), {x.data(), static_cast<int64_t>(args.rows.size()), args.hc.dim(2)},
                    args.head, /*round_output=*/false, args.logits);
  return OkStatus();
}

}  // namespace fathom
