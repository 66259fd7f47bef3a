// See backend/ops/route.h for the contract.
#include <cmath>
#include <string>

#include "backend/cpu/scratch.h"

namespace fathom {
namespace {

void Score(RouteScoring scoring, std::span<float> p) {
  switch (scoring) {
    case RouteScoring::kSqrtSoftplus:
      cpu::SqrtSoftplus(p);
      return;
    case RouteScoring::kSigmoid:
      for (float& v : p) v = 1.0f / (1.0f + std::exp(-v));
      return;
    case RouteScoring::kSoftmax: {
      const float max = *std::max_element(p.begin(), p.end());
      float sum = 0.0f;
      for (float& v : p) sum += v = std::exp(v - max);
      for (float& v : p) v /= sum;
      return;
    }
  }
}

// The experts with the largest p + bias, in that order; equal values by smaller id.
void ChooseExperts(std::span<const float> p, std::span<const float> bias,
                   std::span<int32_t> chosen) {
  for (size_t n = 0; n < chosen.size(); ++n) {
    const std::span<int32_t> taken = chosen.first(n);
    int32_t best = -1;
    float best_score = 0.0f;
    for (size_t e = 0; e < p.size(); ++e) {
      const float score = p[e] + bias[e];
      if (best >= 0 && !(score > best_score)) continue;
      const auto id = static_cast<int32_t>(e);
      if (std::find(taken.begin(), taken.end(), id) != taken.end()) continue;
      best = id;
      best_score = score;
    }
    chosen[n] = best;
  }
}

}  // namespace

Status CpuBackend::DoRoute(const RouteArgs& args) {
  const int64_t n = args.x.dim(0);
  const auto num_experts = static_cast<size_t>(args.gate.rows);
  FATHOM_RETURN_IF_ERROR(Fits("route: rows", n, scratch_->limits.max_rows));
  FATHOM_RETURN_IF_ERROR(Fits("route: columns", args.x.dim(1), scratch_->limits.max_cols));
  FATHOM_RETURN_IF_ERROR(Fits("route: experts", args.gate.rows, scratch_->limits.max_experts));
  if (!args.hash_table.empty()) {
    for (TokenId token : args.token_ids) {
      for (int64_t expert : args.hash_table.row(token)) {
        if (expert < 0 || expert >= static_cast<int64_t>(num_experts)) {
          return DataLoss("tid2eid: token " + std::to_string(token) + " names expert " +
                          std::to_string(expert) + " of " + std::to_string(num_experts));
        }
      }
    }
  }
  const TensorView<float> scores(scratch_->router_scores.data(), n, args.gate.rows);
  Multiply(PrepareInput(args.x, FormOf(args.gate)), args.gate, /*round=*/false, scores);
  // Logarithms, exponentials and the choice cost far more than products.
  ForEach(n, args.gate.rows * 256, [&](int64_t i, int) {
    const std::span<float> p = scores.row(i);
    Score(args.scoring, p);
    const std::span<int32_t> chosen = args.experts.row(i);
    if (args.hash_table.empty()) {
      ChooseExperts(p, {args.bias.data(), num_experts}, chosen);
    } else {
      const std::span<const int64_t> row =
          args.hash_table.row(args.token_ids[static_cast<size_t>(i)]);
      for (size_t e = 0; e < chosen.size(); ++e) chosen[e] = static_cast<int32_t>(row[e]);
    }
    float sum = 0.0f;
    for (int32_t e : chosen) sum += p[static_cast<size_t>(e)];
    if (args.scoring == RouteScoring::kSoftmax) sum = 1.0f;
    for (size_t e = 0; e < chosen.size(); ++e) {
      args.weights.row(i)[e] = p[static_cast<size_t>(chosen[e])] / sum * args.scale;
    }
  });
  return OkStatus();
}

}  // namespace fathom
