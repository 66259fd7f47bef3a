// See backend/ops/moe.h for the contract.
#include <algorithm>
#include <cmath>
#include <vector>
#include "backend/reference/reference_backend.h"

#include "backend/reference/scalar_math.h"

namespace fathom {
namespace {

// y = w2 . bf16(weight * silu(gate) * up) for one token.
std::vector<float> Expert(Numerics numerics, std::span<const float> x, const ExpertWeights& expert,
                          float weight, float limit) {
  std::vector<float> input(x.begin(), x.end());
  reference::QuantiseActivation(numerics, expert.w1, input);
  std::vector<float> gate(static_cast<size_t>(expert.w1.rows));
  std::vector<float> up(gate.size());
  const auto multiply = [&](const std::vector<float>& in, const WeightView& w,
                            std::vector<float>& out) {
    reference::MatMul(numerics, {in.data(), 1, w.cols}, w, /*round_output=*/true,
                      {out.data(), 1, w.rows});
  };
  multiply(input, expert.w1, gate);
  multiply(input, expert.w3, up);
  std::vector<float> h(gate.size());
  for (size_t i = 0; i < h.size(); ++i) {
    float g = gate[i];
    float u = up[i];
    if (limit > 0.0f) {
      g = std::min(g, limit);
      u = std::clamp(u, -limit, limit);
    }
    h[i] = reference::Bf16(numerics, g / (1.0f + std::exp(-g)) * u * weight);
  }
  reference::QuantiseActivation(numerics, expert.w2, h);
  std::vector<float> y(static_cast<size_t>(expert.w2.rows));
  multiply(h, expert.w2, y);
  return y;
}

}  // namespace

Status ReferenceBackend::DoMoe(const MoeArgs& args) {
  FATHOM_RETURN_IF_ERROR(CheckExpertIds(args));
  const auto k = static_cast<size_t>(args.experts.dim(1));
  for (int64_t i = 0; i < args.x.dim(0); ++i) {
    std::vector<float> sum(static_cast<size_t>(args.x.dim(1)), 0.0f);
    const auto add = [&](const ExpertWeights& expert, float weight) {
      const std::vector<float> y =
          Expert(numerics(), args.x.row(i), expert, weight, args.swiglu_limit);
      for (size_t c = 0; c < sum.size(); ++c) sum[c] += y[c];
    };
    std::vector<size_t> slots(k);
    for (size_t n = 0; n < k; ++n) slots[n] = n;
    const std::span<const int32_t> experts = args.experts.row(i);
    std::sort(slots.begin(), slots.end(),
              [&](size_t a, size_t b) { return experts[a] < experts[b]; });
    for (size_t n : slots)
      add(args.routed[static_cast<size_t>(experts[n])], args.weights.row(i)[n]);
    add(args.shared, 1.0f);
    for (size_t c = 0; c < sum.size(); ++c)
      args.out.row(i)[c] = reference::Bf16(numerics(), sum[c]);
  }
  return OkStatus();
}

}  // namespace fathom
