// See backend/ops/route.h for the contract. A table entry that is no expert is told by the next
// Synchronize; the token's expert is -1 then.
#include "backend/cuda/formats.cuh"
#include "backend/cuda/hc_mix.cuh"
#include "backend/cuda/limits.h"
#include "backend/cuda/products.cuh"
#include "backend/cuda/state.h"

namespace fathom {
namespace cuda {
namespace {

// The args as the device sees them.
struct RouteRows {
  const float* x;
  WeightView gate;
  const float* bias;
  const int64_t* hash_table;  // null for scored layers
  const TokenId* token_ids;
  RouteScoring scoring;
  float scale;
  int chosen;
  int32_t* experts;
  float* weights;
  DeviceReport* report;
};

// ln(1 + e^z), without overflow; in double, rounded once.
__device__ float Softplus(float z) {
  const double x = static_cast<double>(z);
  return static_cast<float>(fmax(x, 0.0) + log1p(exp(-fabs(x))));
}

// gate[row] . x in double, the warp's work: which expert is better must not hang on the order of a
// sum.
__device__ float RouterLogit(const WeightView& gate, int row, const float* x) {
  double sum = 0.0;
  const auto add = [&](const auto& w) {
    for (int k = Lane(); k < gate.cols; k += kWarp) {
      sum += static_cast<double>(w.LoadOne(k)) * static_cast<double>(x[k]);
    }
  };
  if (gate.dtype == DType::kBF16) {
    add(WeightRow<DType::kBF16>(gate, row));
  } else {
    add(WeightRow<DType::kF32>(gate, row));
  }
  return static_cast<float>(WarpSum(sum));
}

__device__ void SoftmaxInPlace(float* p, int size) {
  float max = -INFINITY;
  for (int e = Lane(); e < size; e += kWarp) max = fmaxf(max, p[e]);
  max = WarpMax(max);
  float sum = 0.0f;
  for (int e = Lane(); e < size; e += kWarp) sum += p[e] = expf(p[e] - max);
  sum = WarpSum(sum);
  for (int e = Lane(); e < size; e += kWarp) p[e] /= sum;
  __syncwarp();
}

// The expert with the largest key among those not yet taken, smaller ids first; the warp's work.
// Taken ones are marked by NaN, which is never larger.
__device__ int BestExpert(float* keys, int size) {
  int best = -1;
  float best_key = 0.0f;
  for (int e = Lane(); e < size; e += kWarp) {
    const float key = keys[e];
    if (!isnan(key) && (best < 0 || key > best_key)) {
      best = e;
      best_key = key;
    }
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const int other = __shfl_xor_sync(kAllLanes, best, step);
    const float other_key = __shfl_xor_sync(kAllLanes, best_key, step);
    const bool better =
        other >= 0 && (best < 0 || other_key > best_key || (other_key == best_key && other < best));
    if (better) {
      best = other;
      best_key = other_key;
    }
  }
  return best;
}

__device__ int HashExpert(const RouteRows& a, TokenId token, int place) {
  const int64_t expert = a.hash_table[int64_t{token} * a.chosen + place];
  if (expert >= 0 && expert < a.gate.rows) return static_cast<int>(expert);
  if (atomicCAS(&a.report->finding, DeviceReport::kNone, DeviceReport::kHashTable) ==
      DeviceReport::kNone) {
    a.report->token = token;
    a.report->value = expert;
    a.report->limit = a.gate.rows;
  }
  return -1;
}

// A block per row: a warp per logit, then one warp chooses.
__global__ void __launch_bounds__(kBlock) RouteKernel(RouteRows a) {
  extern __shared__ float p[];  // [experts], then keys of as many
  const int64_t row = blockIdx.x;
  const int size = a.gate.rows;
  float* keys = p + size;
  for (int e = WarpIndex(); e < size; e += kWarps) {
    const float logit = RouterLogit(a.gate, e, a.x + row * a.gate.cols);
    if (Lane() == 0) p[e] = logit;
  }
  __syncthreads();
  if (WarpIndex() != 0) return;
  if (a.scoring == RouteScoring::kSoftmax) {
    SoftmaxInPlace(p, size);
  } else {
    const bool sigmoid = a.scoring == RouteScoring::kSigmoid;
    for (int e = Lane(); e < size; e += kWarp) {
      p[e] = sigmoid ? Sigmoid(p[e]) : sqrtf(Softplus(p[e]));
    }
  }
  if (a.hash_table == nullptr) {
    for (int e = Lane(); e < size; e += kWarp) keys[e] = p[e] + a.bias[e];
  }
  __syncwarp();
  float sum = 0.0f;
  for (int n = 0; n < a.chosen; ++n) {
    int expert = 0;
    if (a.hash_table != nullptr) {
      if (Lane() == 0) expert = HashExpert(a, a.token_ids[row], n);
      expert = __shfl_sync(kAllLanes, expert, 0);
    } else {
      expert = BestExpert(keys, size);
      // Only where scores are NaN: then no choice is right, and the first ids are as good as any.
      if (expert < 0) expert = n;
      __syncwarp();
      if (Lane() == 0) keys[expert] = NAN;
      __syncwarp();
    }
    if (Lane() == 0) a.experts[row * a.chosen + n] = expert;
    if (expert >= 0) sum += p[expert];
  }
  if (a.scoring == RouteScoring::kSoftmax) sum = 1.0f;
  __syncwarp();
  for (int n = Lane(); n < a.chosen; n += kWarp) {
    const int expert = a.experts[row * a.chosen + n];
    a.weights[row * a.chosen + n] = expert < 0 ? 0.0f : p[expert] / sum * a.scale;
  }
}

}  // namespace
}  // namespace cuda

Status CudaBackend::DoRoute(const RouteArgs& args) {
  State& state = *state_;
  FATHOM_RETURN_IF_ERROR(state.Enter());
  const int64_t n = args.x.dim(0);
  FATHOM_RETURN_IF_ERROR(Fits("route: rows", n, state.limits.max_rows));
  FATHOM_RETURN_IF_ERROR(Fits("route: columns", args.x.dim(1), state.limits.max_cols));
  FATHOM_RETURN_IF_ERROR(Fits("route: experts", args.gate.rows, state.limits.max_experts));
  if (args.gate.quantised()) {
    return Unimplemented("route: the cuda backend takes router weights in bf16 or fp32");
  }
  if (n == 0) return OkStatus();
  const TokenId* token_ids = nullptr;
  if (!args.hash_table.empty()) {
    FATHOM_ASSIGN_OR_RETURN(token_ids, state.operands.Copy(args.token_ids));
  }
  const cuda::RouteRows rows = {
      args.x.data(),       args.gate,
      args.bias.data(),    args.hash_table.empty() ? nullptr : args.hash_table.data(),
      token_ids,           args.scoring,
      args.scale,          static_cast<int>(args.experts.dim(1)),
      args.experts.data(), args.weights.data(),
      state.report};
  const auto bytes = static_cast<size_t>(2 * args.gate.rows) * sizeof(float);
  cuda::RouteKernel<<<static_cast<unsigned>(n), cuda::kBlock, bytes, state.stream>>>(rows);
  return cuda::LaunchStatus("route");
}

}  // namespace fathom
