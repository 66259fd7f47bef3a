// See backend/ops/sample.h for the contract, and backend/choose_token.cc for the same in plain
// code.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/choose_token.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/state.h"
#include "backend/cuda/warp.cuh"

namespace fathom {
namespace cuda {
namespace {

constexpr int kSampleThreads = 512;
constexpr int kSampleWarps = kSampleThreads / kWarp;
constexpr int kBits = 11;  // of an order that a round of a search counts by
constexpr int kBins = 1 << kBits;

struct MaskedToken {
  TokenId token = 0;
  float raw = 0.0f;  // its logit until then, noted by the kernel
};

// A row's settings where the device reads them. `bias` of an adjustment becomes the logit that it
// was for.
struct StagedRow {
  float* logits = nullptr;  // [vocab]
  DrawRule rule;
  double unit_share = 0.0;  // 1 - top_p
  TokenAdjustment* adjustments = nullptr;
  MaskedToken* masked = nullptr;
  const uint64_t* allowed = nullptr;
  int num_adjustments = 0;
  int num_masked = 0;
  int logprob = 0;
};

struct SampleRows {
  int64_t vocab;
  int mass_bits;
  const StagedRow* rows;
  int32_t* tokens;
  float* logprobs;
};

// What a block shares. Sums are of integers: their order is free.
struct Shared {
  unsigned bins[2][kBins];  // lower and upper halves: the unit adds up words, not longer ones
  unsigned long long sums[kSampleWarps];
  unsigned long long mass[kSampleWarps];  // of the warps' tokens above the cut
  int equal[kSampleWarps];                // at it
  unsigned long long wanted;
  uint32_t order;
  int token;
};

__device__ void AddToBin(Shared& shared, uint32_t bin, unsigned long long weight) {
  const auto low = static_cast<unsigned>(weight);
  const unsigned before = atomicAdd(&shared.bins[0][bin], low);
  const unsigned high = static_cast<unsigned>(weight >> 32) + (before + low < before ? 1u : 0u);
  if (high != 0) atomicAdd(&shared.bins[1][bin], high);
}
__device__ unsigned long long BinOf(const Shared& shared, int bin) {
  return static_cast<unsigned long long>(shared.bins[1][bin]) << 32 | shared.bins[0][bin];
}

// The row of a block, and this thread's warp's piece of it: lanes take neighbours.
struct Row {
  float* logits;
  int64_t begin;
  int64_t end;
  double max;
  double scale;
  int mass_bits;

  [[nodiscard]] __device__ uint64_t Mass(float logit) const {
    return TokenMass(static_cast<double>(logit) - max, scale, mass_bits);
  }
};

// All logits of a warp's piece, several loads under way at a time. visit(token, logit) is called by
// all lanes; beyond the piece logits are -inf.
template <typename Visit>
__device__ void ForEach(const Row& row, const Visit& visit) {
  constexpr int kAtOnce = 8;
  for (int64_t first = row.begin + Lane(); first - Lane() < row.end; first += kAtOnce * kWarp) {
    float logits[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int64_t t = first + i * kWarp;
      logits[i] = t < row.end ? row.logits[t] : -INFINITY;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) visit(first + i * kWarp, logits[i]);
  }
}

// Tokens that are still candidates: those above `order`, and the first `equal` ones at it.
struct Cut {
  uint32_t order;
  int64_t equal;
};

// Maximum over the block; all threads get it.
__device__ uint64_t BlockMax(uint64_t value, unsigned long long* sums) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    value = max(value, static_cast<uint64_t>(__shfl_xor_sync(kAllLanes, value, step)));
  }
  __syncthreads();  // earlier sums may still be read
  if (Lane() == 0) sums[WarpIndex()] = value;
  __syncthreads();
  uint64_t most = 0;
  for (int w = 0; w < kSampleWarps; ++w) most = max(most, static_cast<uint64_t>(sums[w]));
  return most;
}

// The best token as order and complement of its id, 0 without any. Tokens that are not allowed lose
// their logits on the way. `own` becomes the order of the best one that this thread has seen.
__device__ uint64_t FindBest(const Row& row, const uint64_t* allowed, Shared& shared,
                             uint32_t* own) {
  uint64_t best = 0;
  ForEach(row, [&](int64_t t, float logit) {
    if (allowed != nullptr && t < row.end && (allowed[t / 64] >> (t % 64) & 1) == 0) {
      row.logits[t] = -INFINITY;
      return;
    }
    const uint64_t order = LogitOrder(logit);
    if (order != 0) best = max(best, order << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(t)));
  });
  *own = static_cast<uint32_t>(best >> 32);
  return BlockMax(best, shared.sums);
}

// The `k`-th largest of what the block's threads have, k <= kSampleThreads: at least k tokens of a
// row are as good as the k-th of its threads' best ones.
__device__ uint32_t OrderOfThreads(uint32_t own, int k, Shared& shared) {
  unsigned* const orders = shared.bins[0];
  static_assert(kSampleThreads <= kBins);
  const auto thread = static_cast<int>(threadIdx.x);
  __syncthreads();  // earlier findings may still be read
  orders[thread] = own;
  __syncthreads();
  int better = 0;
#pragma unroll 8
  for (int i = 0; i < kSampleThreads; ++i) {
    better += orders[i] > own || (orders[i] == own && i < thread) ? 1 : 0;
  }
  if (better == k - 1) shared.order = own;
  __syncthreads();
  return shared.order;
}

__device__ uint64_t SumMasses(const Row& row, Shared& shared) {
  unsigned long long sum = 0;
  ForEach(row, [&](int64_t, float logit) { sum += row.Mass(logit); });
  return BlockSum<kSampleWarps>(sum, shared.sums);
}

// In phases: a token may be in both lists.
__device__ void Adjust(const StagedRow& staged, float* logits) {
  for (int i = static_cast<int>(threadIdx.x); i < staged.num_adjustments; i += kSampleThreads) {
    TokenAdjustment& a = staged.adjustments[i];
    const float raw = logits[a.token];
    float logit = raw + a.bias;
    logit = logit > 0.0f ? logit / a.repetition : logit * a.repetition;
    logits[a.token] = logit - a.penalty;
    a.bias = raw;
  }
  __syncthreads();
  // One after the other: a token may be there twice, and the first one's note counts.
  for (int i = 0; threadIdx.x == 0 && i < staged.num_masked; ++i) {
    MaskedToken& masked = staged.masked[i];
    masked.raw = logits[masked.token];
    logits[masked.token] = -INFINITY;
  }
  __syncthreads();
}

// The logit that the chosen token came with.
__device__ float RawLogit(const StagedRow& staged, const float* logits, TokenId token) {
  int begin = 0, end = staged.num_adjustments;
  while (begin < end) {
    const int middle = (begin + end) / 2;
    if (staged.adjustments[middle].token < token) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  if (begin < staged.num_adjustments && staged.adjustments[begin].token == token) {
    return staged.adjustments[begin].bias;
  }
  for (int i = 0; i < staged.num_masked; ++i) {
    if (staged.masked[i].token == token) return staged.masked[i].raw;
  }
  return logits[token];
}

__device__ TokenId FirstAllowed(const uint64_t* allowed) {
  TokenId token = 0;
  if (allowed == nullptr) return token;
  while (allowed[token / 64] == 0) token += 64;
  while ((allowed[token / 64] >> (token % 64) & 1) == 0) ++token;
  return token;
}

// Searches the order down to which tokens of at least order `lowest` weigh `wanted` in all, and
// what those above it weigh. False, for all threads, when all of them weigh less. Three rounds of
// adding up by 11, 11 and 10 bits from the top.
template <typename Weigh>
__device__ bool FindOrder(const Row& row, uint32_t lowest, uint64_t wanted, const Weigh& weigh,
                          Shared& shared, uint32_t* order, uint64_t* above) {
  constexpr int kEach = kBins / kSampleThreads;
  constexpr int kShifts[] = {32 - kBits, 32 - 2 * kBits, 0};
  const auto thread = static_cast<int>(threadIdx.x);
  __syncthreads();  // earlier findings may still be read
  if (thread == 0) {
    shared.order = 0;
    shared.wanted = wanted;
  }
  uint32_t known = 0;
  for (const int shift : kShifts) {
    for (int i = thread; i < kBins; i += kSampleThreads) {
      shared.bins[0][i] = 0;
      shared.bins[1][i] = 0;
    }
    __syncthreads();
    const uint32_t prefix = shared.order;
    ForEach(row, [&](int64_t, float logit) {
      const uint32_t key = LogitOrder(logit);
      const bool counts = key >= lowest && (key & known) == prefix;  // lowest > 0
      const unsigned lanes = __ballot_sync(kAllLanes, counts);
      if (lanes == 0) return;
      const uint32_t bin = (key & ~known) >> shift;
      unsigned long long weight = counts ? weigh(logit) : 0;
      // Near values fall into one bin: a warp that agrees adds up first.
      const uint32_t other = __shfl_sync(kAllLanes, bin, __popc((lanes & -lanes) - 1));
      if (__all_sync(kAllLanes, !counts || bin == other)) {
        weight = WarpSum(weight);
        if (Lane() == 0) AddToBin(shared, other, weight);
      } else if (counts) {
        AddToBin(shared, bin, weight);
      }
    });
    __syncthreads();
    // Bins of the best tokens first.
    const int top = kBins - 1 - thread * kEach;
    unsigned long long own = 0;
    for (int i = 0; i < kEach; ++i) own += BinOf(shared, top - i);
    const unsigned long long here = shared.wanted;
    const unsigned long long through = BlockScan(own, shared.sums);
    __syncthreads();  // all have read `wanted`
    if (through - own < here && here <= through) {
      unsigned long long left = here - (through - own);
      int bin = top;
      while (BinOf(shared, bin) < left) left -= BinOf(shared, bin--);
      shared.order = prefix | static_cast<uint32_t>(bin) << shift;
      shared.wanted = left;
    }
    // Of the first round: the last thread has all of them.
    if (known == 0 && thread == kSampleThreads - 1) shared.token = through < wanted ? 1 : 0;
    __syncthreads();
    if (shared.token != 0) return false;
    known = 0xFFFFFFFFu << shift;
  }
  *order = shared.order;
  *above = wanted - shared.wanted;
  return true;
}

// Candidates' masses and numbers, warp by warp: what is drawn from. Returns the sum of masses.
__device__ uint64_t Weigh(const Row& row, const Cut& cut, Shared& shared) {
  unsigned long long mass = 0;
  int equal = 0;
  ForEach(row, [&](int64_t, float logit) {
    const uint32_t order = LogitOrder(logit);
    if (order > cut.order) mass += row.Mass(logit);
    if (order == cut.order) ++equal;
  });
  mass = WarpSum(mass);
  equal = WarpSum(equal);
  __syncthreads();  // an earlier pass may still be read
  if (Lane() == 0) {
    shared.mass[WarpIndex()] = mass;
    shared.equal[WarpIndex()] = equal;
  }
  __syncthreads();
  const uint64_t mass_at_cut = row.Mass(LogitOfOrder(cut.order));
  int64_t left = cut.equal;
  uint64_t total = 0;
  for (int w = 0; w < kSampleWarps; ++w) {
    const int64_t taken = min(left, static_cast<int64_t>(shared.equal[w]));
    left -= taken;
    total += shared.mass[w] + static_cast<uint64_t>(taken) * mass_at_cut;
  }
  return total;
}

// The token that `rest`, below the sum of Weigh, falls to: tokens go by id.
__device__ TokenId Draw(const Row& row, int64_t vocab, int64_t piece, const Cut& cut, uint64_t rest,
                        Shared& shared) {
  const uint64_t mass_at_cut = row.Mass(LogitOfOrder(cut.order));
  int64_t left = cut.equal;
  int64_t begin = 0;
  for (int w = 0; w < kSampleWarps; ++w, begin += piece) {
    const int64_t taken = min(left, static_cast<int64_t>(shared.equal[w]));
    const uint64_t mass = shared.mass[w] + static_cast<uint64_t>(taken) * mass_at_cut;
    if (rest < mass) break;
    rest -= mass;
    left -= taken;
  }
  const int64_t end = min(begin + piece, vocab);
  const auto thread = static_cast<int>(threadIdx.x);
  for (int64_t first = begin; first < end; first += kSampleThreads) {
    const int64_t t = first + thread;
    const float logit = t < end ? row.logits[t] : -INFINITY;
    const uint32_t order = LogitOrder(logit);
    const int equal = order == cut.order ? 1 : 0;
    const int equals = BlockScan(equal, shared.equal);
    const bool kept = order > cut.order || (equal != 0 && equals <= left);
    const unsigned long long mass = kept ? row.Mass(logit) : 0;
    const unsigned long long through = BlockScan(mass, shared.sums);
    __syncthreads();  // the results of the pieces before are read
    if (thread == 0) shared.token = -1;
    __syncthreads();
    if (through - mass <= rest && rest < through) shared.token = static_cast<int>(t);
    if (thread == kSampleThreads - 1) {
      shared.wanted = through;
      shared.order = static_cast<uint32_t>(equals);
    }
    __syncthreads();
    if (shared.token >= 0) return shared.token;
    rest -= shared.wanted;
    left -= min(left, static_cast<int64_t>(shared.order));
  }
  return 0;  // not reached
}

// Of the best token's row: what is left by min_p, top_k and top_p, and the draw.
__device__ TokenId Sample(const Row& row, int64_t vocab, int64_t piece, const StagedRow& staged,
                          uint32_t own, Shared& shared) {
  const DrawRule& rule = staged.rule;
  const auto max_logit = static_cast<float>(row.max);
  Cut cut = {LowestOrder(max_logit, rule.min_distance), vocab};
  uint32_t order = 0;
  uint64_t above = 0;
  if (rule.top_k > 0 && rule.top_k < vocab) {
    const auto wanted = static_cast<uint64_t>(rule.top_k);
    const auto one = [](float) { return 1ull; };
    uint32_t lowest = cut.order;
    if (rule.top_k <= kSampleThreads) {
      lowest = max(lowest, OrderOfThreads(own, static_cast<int>(rule.top_k), shared));
    }
    if (FindOrder(row, lowest, wanted, one, shared, &order, &above)) {
      cut = {order, static_cast<int64_t>(wanted - above)};
    }
  }
  uint64_t total = Weigh(row, cut, shared);
  if (rule.nucleus != 0) {
    const uint64_t wanted = NucleusMass(rule.nucleus, total);
    const auto mass = [&](float logit) { return static_cast<unsigned long long>(row.Mass(logit)); };
    // Tokens below an even share of what may be left out are not needed (KeepNucleus of
    // choose_token.cc): their masses are not computed again. The sum says whether it is so.
    const double share =
        staged.unit_share * static_cast<double>(total) / static_cast<double>(vocab);
    const double log_share = share > 1.0 ? NaturalLog(share) * kLog2E : 0.0;
    const uint32_t lowest =
        LowestOrder(max_logit, min(0.0, (log_share - row.mass_bits) / row.scale));
    if (lowest <= cut.order || !FindOrder(row, lowest, wanted, mass, shared, &order, &above)) {
      FindOrder(row, cut.order, wanted, mass, shared, &order, &above);
    }
    const uint64_t each = row.Mass(LogitOfOrder(order));
    cut = {order, static_cast<int64_t>((wanted - above + each - 1) / each)};
    total = Weigh(row, cut, shared);
  }
  return Draw(row, vocab, piece, cut, MulHigh(rule.random, total), shared);
}

// A block per row.
__global__ void __launch_bounds__(kSampleThreads) SampleKernel(SampleRows a) {
  __shared__ Shared shared;
  const StagedRow& staged = a.rows[blockIdx.x];
  const int64_t piece = (a.vocab + kSampleThreads - 1) / kSampleThreads * kWarp;
  Row row = {staged.logits,
             min(WarpIndex() * piece, a.vocab),
             min((WarpIndex() + 1) * piece, a.vocab),
             0.0,
             kLog2E,
             a.mass_bits};
  LogitSum raw = {0.0f, 0, a.mass_bits};
  if (staged.logprob != 0) {
    uint32_t own = 0;
    const uint64_t best = FindBest(row, nullptr, shared, &own);
    raw.max = best == 0 ? 0.0f : LogitOfOrder(static_cast<uint32_t>(best >> 32));
    row.max = raw.max;
    if (best != 0 && raw.max < INFINITY) raw.mass = SumMasses(row, shared);
    __syncthreads();  // logits are read
  }
  Adjust(staged, row.logits);
  uint32_t own = 0;
  const uint64_t best = FindBest(row, staged.allowed, shared, &own);
  TokenId token = 0;
  if (best == 0) {
    if (threadIdx.x == 0) token = FirstAllowed(staged.allowed);
  } else {
    token = static_cast<TokenId>(0xFFFFFFFFu - static_cast<uint32_t>(best));
    row.max = LogitOfOrder(static_cast<uint32_t>(best >> 32));
    row.scale = staged.rule.scale;
    if (row.scale > 0.0 && row.max < static_cast<double>(INFINITY)) {
      token = Sample(row, a.vocab, piece, staged, own, shared);
    }
  }
  if (threadIdx.x != 0) return;
  a.tokens[blockIdx.x] = token;
  a.logprobs[blockIdx.x] =
      staged.logprob != 0 ? raw.LogProbability(RawLogit(staged, row.logits, token)) : 0.0f;
}

// Lays settings of rows out in what is copied to the device.
class RowStage {
 public:
  static int64_t Bytes(const SampleRow& row) {
    return static_cast<int64_t>(sizeof(StagedRow) + row.adjustments.size_bytes() +
                                row.allowed.size_bytes() + row.masked.size() * sizeof(MaskedToken));
  }
  // Of `count` rows.
  RowStage(const StagingRing::Place& place, size_t count)
      : place_(place), used_(static_cast<int64_t>(count * sizeof(StagedRow))) {}

  void Add(const SampleRow& row, float* logits) {
    StagedRow staged;
    staged.logits = logits;
    staged.rule = RuleOf(row);
    staged.unit_share = 1.0 - row.top_p;
    staged.num_adjustments = static_cast<int>(row.adjustments.size());
    staged.num_masked = static_cast<int>(row.masked.size());
    staged.logprob = row.logprob ? 1 : 0;
    staged.adjustments = Put(row.adjustments);
    if (!row.allowed.empty()) staged.allowed = Put(row.allowed);
    auto* masked = reinterpret_cast<MaskedToken*>(place_.host + used_);
    for (const TokenId token : row.masked) *masked++ = {token, 0.0f};
    staged.masked = Take<MaskedToken>(row.masked.size());
    std::memcpy(place_.host + num_rows_++ * static_cast<int64_t>(sizeof(StagedRow)), &staged,
                sizeof staged);
  }

 private:
  // The device's address of the next `count` elements, whose sizes are all multiples of 8.
  template <typename T>
  T* Take(size_t count) {
    static_assert(sizeof(T) % 8 == 0);
    auto* const at = reinterpret_cast<T*>(place_.device + used_);
    used_ += static_cast<int64_t>(count * sizeof(T));
    return at;
  }
  template <typename T>
  T* Put(std::span<const T> values) {
    if (!values.empty()) std::memcpy(place_.host + used_, values.data(), values.size_bytes());
    return Take<T>(values.size());
  }

  StagingRing::Place place_;
  int64_t used_;
  int64_t num_rows_ = 0;
};

}  // namespace
}  // namespace cuda

Status CudaBackend::DoSample(const SampleArgs& args) {
  State& state = *state_;
  FATHOM_RETURN_IF_ERROR(state.Enter());
  const int64_t vocab = args.logits.dim(1);
  FATHOM_RETURN_IF_ERROR(
      Fits("sample: rows", static_cast<int64_t>(args.rows.size()), state.limits.max_rows));
  for (size_t first = 0; first < args.rows.size();) {
    // As many rows as pinned memory has room for at once.
    size_t count = 0;
    int64_t bytes = 0;
    for (const SampleRow& row : args.rows.subspan(first)) {
      const int64_t more = cuda::RowStage::Bytes(row);
      if (count > 0 && bytes + more > state.options.operand_bytes / 4) break;
      bytes += more;
      ++count;
    }
    FATHOM_ASSIGN_OR_RETURN(const cuda::StagingRing::Place place, state.ReserveOperand(bytes));
    cuda::RowStage stage(place, count);
    for (size_t i = first; i < first + count; ++i) {
      stage.Add(args.rows[i], args.logits.data() + args.indices[i] * vocab);
    }
    FATHOM_RETURN_IF_ERROR(state.operands.Send(place));
    const cuda::SampleRows rows = {vocab, MassBits(vocab),
                                   reinterpret_cast<const cuda::StagedRow*>(place.device),
                                   args.tokens.data() + first, args.logprobs.data() + first};
    cuda::Launch(cuda::SampleKernel, static_cast<unsigned>(count), cuda::kSampleThreads, 0,
                 state.stream, rows);
    FATHOM_RETURN_IF_ERROR(cuda::LaunchStatus("sample"));
    first += count;
  }
  return OkStatus();
}

}  // namespace fathom
