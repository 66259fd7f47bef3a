// See backend/ops/hc_pre_norm.h for the contract.
#include <cmath>
#include <vector>
#include "backend/reference/reference_backend.h"

#include "backend/reference/scalar_math.h"

namespace fathom {
namespace {

// comb is [source][destination], given as logits and left with column sums near 1.
void Sinkhorn(std::span<float> comb, size_t hc, int iterations, float eps) {
  const auto divide_columns = [&] {
    for (size_t k = 0; k < hc; ++k) {
      float sum = 0.0f;
      for (size_t j = 0; j < hc; ++j) sum += comb[j * hc + k];
      for (size_t j = 0; j < hc; ++j) comb[j * hc + k] /= sum + eps;
    }
  };
  for (size_t j = 0; j < hc; ++j) {
    const std::span<float> row = comb.subspan(j * hc, hc);
    float max = row[0];
    for (float v : row) max = std::max(max, v);
    float sum = 0.0f;
    for (float& v : row) sum += v = std::exp(v - max);
    for (float& v : row) v = v / sum + eps;
  }
  divide_columns();
  for (int i = 1; i < iterations; ++i) {
    for (size_t j = 0; j < hc; ++j) {
      const std::span<float> row = comb.subspan(j * hc, hc);
      float sum = 0.0f;
      for (float v : row) sum += v;
      for (float& v : row) v /= sum + eps;
    }
    divide_columns();
  }
}

}  // namespace

Status ReferenceBackend::DoHcPreNorm(const HcPreNormArgs& args) {
  const auto hc = static_cast<size_t>(args.hc.dim(1));
  const auto width = static_cast<size_t>(args.hc.dim(2));
  const float* scale = args.scale.data();
  const float* base = args.base.data();
  std::vector<float> mix(static_cast<size_t>(args.fn.dim(0)));
  std::vector<float> y(width);
  for (int64_t i = 0; i < args.hc.dim(0); ++i) {
    const std::span<const float> copies = args.hc.row(i);
    const float rho = reference::InverseRms(copies, args.norm_eps);
    for (size_t m = 0; m < mix.size(); ++m) {
      mix[m] = reference::Dot(args.fn.row(static_cast<int64_t>(m)), copies) * rho;
    }

    std::fill(y.begin(), y.end(), 0.0f);
    for (size_t c = 0; c < hc; ++c) {
      const float pre = reference::Sigmoid(mix[c] * scale[0] + base[c]) + args.hc_eps;
      for (size_t d = 0; d < width; ++d) y[d] += pre * copies[c * width + d];
    }
    for (float& v : y) v = reference::Bf16(numerics(), v);
    reference::RmsNormRow(numerics(), y, args.norm_weight.elements(), args.norm_eps, args.x.row(i));

    const std::span<float> post = args.post.row(i);
    for (size_t c = 0; c < hc; ++c) {
      post[c] = 2.0f * reference::Sigmoid(mix[hc + c] * scale[1] + base[hc + c]);
    }
    const std::span<float> comb = args.comb.row(i);
    for (size_t c = 0; c < comb.size(); ++c) {
      comb[c] = mix[2 * hc + c] * scale[2] + base[2 * hc + c];
    }
    Sinkhorn(comb, hc, args.sinkhorn_iters, args.hc_eps);
  }
  return OkStatus();
}

}  // namespace fathom
