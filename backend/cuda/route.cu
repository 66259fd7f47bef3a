// See backend/ops/route.h for the contract. A table entry that is no expert is told by the next
// Synchronize; the token's expert is -1 then.
#include <algorithm>

#include "backend/cuda/formats.cuh"
#include "backend/cuda/hc_mix.cuh"
#include "backend/cuda/launch.cuh"
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
  int64_t n;
  float* logits;  // [n, experts]
};

// ln(1 + e^z), without overflow; in double, rounded once.
__device__ float Softplus(float z) {
  const double x = static_cast<double>(z);
  return static_cast<float>(fmax(x, 0.0) + log1p(exp(-fabs(x))));
}

// Warps that share an expert's columns.
constexpr int kLogitWarps = 4;

// The warp's part of gate[expert + e] . x of kRows rows and kExperts experts, in double: which
// expert is better must not hang on the order of a sum. Double holds the products, and a value is
// widened once for all that it is multiplied with.
template <DType kType, int kRows, int kExperts>
__device__ void RouterLogits(const WeightView& gate, int expert, const float* const* x,
                             double (*sums)[kExperts]) {
  const int last = gate.rows - 1;
  const int whole = gate.cols / 4 * 4;
#pragma unroll(kExperts == 1 ? 8 : 1)
  for (int k = 4 * static_cast<int>(threadIdx.x); k < whole; k += 4 * kLogitWarps * kWarp) {
    Four w[kExperts], v[kRows];
#pragma unroll
    for (int e = 0; e < kExperts; ++e) w[e] = WeightRow<kType>(gate, min(expert + e, last)).Load(k);
#pragma unroll
    for (int r = 0; r < kRows; ++r) v[r] = LoadFour(x[r] + k);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      double wide[kExperts];
#pragma unroll
      for (int e = 0; e < kExperts; ++e) wide[e] = static_cast<double>(w[e].v[i]);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const auto value = static_cast<double>(v[r].v[i]);
#pragma unroll
        for (int e = 0; e < kExperts; ++e) sums[r][e] = fma(wide[e], value, sums[r][e]);
      }
    }
  }
  for (int k = whole + static_cast<int>(threadIdx.x); k < gate.cols; k += kLogitWarps * kWarp) {
#pragma unroll
    for (int e = 0; e < kExperts; ++e) {
      const auto w = static_cast<double>(WeightRow<kType>(gate, min(expert + e, last)).LoadOne(k));
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        sums[r][e] = fma(w, static_cast<double>(x[r][k]), sums[r][e]);
      }
    }
  }
}

// A block per kExperts experts and kRows rows.
template <int kRows, int kExperts>
__global__ void __launch_bounds__(kLogitWarps* kWarp) LogitsKernel(RouteRows a) {
  constexpr int kSums = kRows * kExperts;
  static_assert(kSums <= kLogitWarps * kWarp);
  __shared__ double parts[kSums][kLogitWarps];
  const int expert = static_cast<int>(blockIdx.x) * kExperts;
  const int64_t first = int64_t{blockIdx.y} * kRows;
  const float* x[kRows];
  double sums[kRows][kExperts];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    x[r] = a.x + min(first + r, a.n - 1) * a.gate.cols;
#pragma unroll
    for (int e = 0; e < kExperts; ++e) sums[r][e] = 0.0;
  }
  if (a.gate.dtype == DType::kBF16) {
    RouterLogits<DType::kBF16, kRows, kExperts>(a.gate, expert, x, sums);
  } else {
    RouterLogits<DType::kF32, kRows, kExperts>(a.gate, expert, x, sums);
  }
  SpreadSums<kSums>(&sums[0][0], [&](int index, double sum) { parts[index][WarpIndex()] = sum; });
  __syncthreads();
  const auto i = static_cast<int>(threadIdx.x);
  const int64_t row = first + i / kExperts;
  const int of = expert + i % kExperts;
  if (i >= kSums || row >= a.n || of >= a.gate.rows) return;
  double sum = parts[i][0];
  for (int w = 1; w < kLogitWarps; ++w) sum += parts[i][w];
  a.logits[row * a.gate.rows + of] = static_cast<float>(sum);
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

// A block per row: scores, then one warp chooses.
__global__ void __launch_bounds__(kBlock) ChooseKernel(RouteRows a) {
  auto* const p = SharedMemory<float>();  // [experts], then keys of as many
  const int64_t row = blockIdx.x;
  const int size = a.gate.rows;
  float* keys = p + size;
  const bool softmax = a.scoring == RouteScoring::kSoftmax;
  for (int e = static_cast<int>(threadIdx.x); e < size; e += kBlock) {
    const float logit = a.logits[row * size + e];
    p[e] = softmax                               ? logit
           : a.scoring == RouteScoring::kSigmoid ? Sigmoid(logit)
                                                 : sqrtf(Softplus(logit));
  }
  __syncthreads();
  if (WarpIndex() != 0) return;
  if (softmax) SoftmaxInPlace(p, size);
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
  if (softmax) sum = 1.0f;
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
    FATHOM_ASSIGN_OR_RETURN(token_ids, state.Operand(args.token_ids));
  }
  const auto chosen = args.experts.dim(1);
  const int experts = args.gate.rows;
  const auto bytes = static_cast<size_t>(2 * experts) * sizeof(float);
  for (int64_t first = 0; first < n; first += state.scratch.rows) {
    const int64_t count = std::min<int64_t>(state.scratch.rows, n - first);
    const cuda::RouteRows rows = {args.x.data() + first * args.gate.cols,
                                  args.gate,
                                  args.bias.data(),
                                  args.hash_table.empty() ? nullptr : args.hash_table.data(),
                                  token_ids == nullptr ? nullptr : token_ids + first,
                                  args.scoring,
                                  args.scale,
                                  static_cast<int>(chosen),
                                  args.experts.data() + first * chosen,
                                  args.weights.data() + first * chosen,
                                  state.report,
                                  count,
                                  state.scratch.router_logits};
    constexpr int kRowsOfMany = 6;
    constexpr int kExpertsOfMany = 8;
    constexpr unsigned kThreads = cuda::kLogitWarps * cuda::kWarp;
    if (count < 4 * kRowsOfMany) {
      cuda::Launch(cuda::LogitsKernel<1, 1>,
                   dim3(static_cast<unsigned>(experts), static_cast<unsigned>(count)), kThreads, 0,
                   state.stream, rows);
    } else {
      cuda::Launch(cuda::LogitsKernel<kRowsOfMany, kExpertsOfMany>,
                   dim3(cuda::Blocks(experts, kExpertsOfMany), cuda::Blocks(count, kRowsOfMany)),
                   kThreads, 0, state.stream, rows);
    }
    FATHOM_RETURN_IF_ERROR(cuda::LaunchStatus("route: logits"));
    cuda::Launch(cuda::ChooseKernel, static_cast<unsigned>(count), cuda::kBlock, bytes,
                 state.stream, rows);
    FATHOM_RETURN_IF_ERROR(cuda::LaunchStatus("route"));
  }
  return OkStatus();
}

}  // namespace fathom
