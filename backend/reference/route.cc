// See backend/ops/route.h for the contract.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>
#include "backend/reference/reference_backend.h"

#include "backend/reference/scalar_math.h"

namespace fathom {
namespace {

// ln(1 + e^z), without overflow; in double, rounded once.
float Softplus(float z) {
  const double x = z;
  return static_cast<float>(std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))));
}

void Score(RouteScoring scoring, std::span<float> p) {
  switch (scoring) {
    case RouteScoring::kSqrtSoftplus:
      for (float& v : p) v = std::sqrt(Softplus(v));
      return;
    case RouteScoring::kSigmoid:
      for (float& v : p) v = reference::Sigmoid(v);
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

}  // namespace

Status ReferenceBackend::DoRoute(const RouteArgs& args) {
  const auto num_experts = static_cast<size_t>(args.gate.rows);
  const auto k = static_cast<size_t>(args.experts.dim(1));
  std::vector<float> p(static_cast<size_t>(args.x.dim(0)) * num_experts);
  const TensorView<float> scores(p.data(), args.x.dim(0), args.gate.rows);
  reference::MatMul(numerics(), args.x, args.gate, /*round_output=*/false, scores);
  for (int64_t i = 0; i < args.x.dim(0); ++i) {
    const std::span<float> row = scores.row(i);
    Score(args.scoring, row);
    const std::span<int32_t> chosen = args.experts.row(i);
    if (args.hash_table.empty()) {
      std::vector<int32_t> order(num_experts);
      std::iota(order.begin(), order.end(), 0);
      const auto biased = [&](int32_t e) {
        return row[static_cast<size_t>(e)] + args.bias.data()[e];
      };
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return biased(a) > biased(b); });
      std::copy_n(order.begin(), k, chosen.begin());
    } else {
      const TokenId token = args.token_ids[static_cast<size_t>(i)];
      for (size_t n = 0; n < k; ++n) {
        const int64_t expert = args.hash_table.row(token)[n];
        if (expert < 0 || expert >= static_cast<int64_t>(num_experts)) {
          return DataLoss("tid2eid: token " + std::to_string(token) + " names expert " +
                          std::to_string(expert) + " of " + std::to_string(num_experts));
        }
        chosen[n] = static_cast<int32_t>(expert);
      }
    }
    float sum = 0.0f;
    for (int32_t e : chosen) sum += row[static_cast<size_t>(e)];
    if (args.scoring == RouteScoring::kSoftmax) sum = 1.0f;
    for (size_t n = 0; n < k; ++n) {
      args.weights.row(i)[n] = row[static_cast<size_t>(chosen[n])] / sum * args.scale;
    }
  }
  return OkStatus();
}

}  // namespace fathom
