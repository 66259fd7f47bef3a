#include "bench/op_cases.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <utility>

#include "base/formats.h"
#include "bench/workload.h"
#include "model/rope.h"

namespace fathom::bench {
namespace {

// Rows of a step whose logits are wanted: those of a batch of answers, or a prompt's last.
constexpr int kMostLogits = 16;

template <typename T>
TensorView<T> Shaped(T* data, std::initializer_list<int64_t> shape) {
  const int64_t* d = shape.begin();
  switch (shape.size()) {
    case 1:
      return {data, d[0]};
    case 2:
      return {data, d[0], d[1]};
    case 3:
      return {data, d[0], d[1], d[2]};
    default:
      return {data, d[0], d[1], d[2], d[3]};
  }
}

int64_t CountOf(std::initializer_list<int64_t> shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace

const std::vector<OpCases::Operation>& OpCases::Operations() {
  static const std::vector<Operation> operations = {
      {"rope_table", &OpCases::AddRopeTable},
      {"embed_expand", &OpCases::AddEmbedExpand},
      {"hc_pre_norm", &OpCases::AddHcPreNorm},
      {"linear", &OpCases::AddLinears},
      {"rms_norm", &OpCases::AddRmsNorm},
      {"q_norm_rope_kv_insert", &OpCases::AddQNormRopeKvInsert},
      {"compress_insert", &OpCases::AddCompressInserts},
      {"indexer_topk", &OpCases::AddIndexerTopk},
      {"sparse_attention", &OpCases::AddSparseAttentions},
      {"inverse_rope_out", &OpCases::AddInverseRopeOut},
      {"hc_post", &OpCases::AddHcPost},
      {"route", &OpCases::AddRoute},
      {"moe", &OpCases::AddMoe},
      {"head", &OpCases::AddHead},
      {"sample", &OpCases::AddSample}};
  return operations;
}

std::vector<std::string> OpCases::Names() {
  std::vector<std::string> names;
  for (const Operation& operation : Operations()) {
    names.emplace_back(operation.name);
  }
  return names;
}

Result<std::unique_ptr<OpCases>> OpCases::Create(const ModelConfig& config, Backend& backend,
                                                 WeightMemory& weights, int num_rows,
                                                 int64_t context, std::span<const std::string> only,
                                                 bool fp8_o_proj_inputs) {
  std::unique_ptr<OpCases> cases(new OpCases(config, backend, weights, num_rows));
  cases->fp8_o_proj_inputs_ = fp8_o_proj_inputs;
  FATHOM_ASSIGN_OR_RETURN(cases->cache_,
                          OpCache::Create(config, backend.memory(), context, num_rows));
  for (const Operation& operation : Operations()) {
    if (!only.empty() && std::find(only.begin(), only.end(), operation.name) == only.end()) {
      continue;
    }
    if (operation.add == &OpCases::AddSample && !backend.samples()) {
      if (only.empty()) continue;
      return Unimplemented("sample: not an operation of the " + std::string(backend.name()) +
                           " backend");
    }
    FATHOM_RETURN_IF_ERROR((cases.get()->*operation.add)());
    FATHOM_RETURN_IF_ERROR(cases->operands_status_);
  }
  // As before each step: operations find the plan where they compute.
  FATHOM_RETURN_IF_ERROR(backend.BeginStep(cases->cache_->plan()));
  return cases;
}

template <typename T>
TensorView<T> OpCases::Room(std::initializer_list<int64_t> shape) {
  const int64_t bytes = std::max<int64_t>(CountOf(shape) * static_cast<int64_t>(sizeof(T)), 1);
  Result<DeviceBuffer> buffer = backend_.memory().Allocate(bytes);
  if (!buffer.ok()) {
    if (operands_status_.ok()) operands_status_ = buffer.status();
    return Shaped<T>(nullptr, shape);
  }
  operands_.push_back(std::move(*buffer));
  return Shaped(reinterpret_cast<T*>(operands_.back().data()), shape);
}

template <typename T>
TensorView<T> OpCases::CopyOf(std::span<const T> values, std::initializer_list<int64_t> shape) {
  const TensorView<T> room = Room<T>(shape);
  if (room.data() == nullptr) return room;
  const Status status =
      backend_.memory().CopyIn(reinterpret_cast<std::byte*>(room.data()), std::as_bytes(values));
  if (operands_status_.ok()) operands_status_ = status;
  return room;
}

template TensorView<int32_t> OpCases::Room(std::initializer_list<int64_t>);
template TensorView<int32_t> OpCases::CopyOf(std::span<const int32_t>,
                                             std::initializer_list<int64_t>);
template TensorView<int64_t> OpCases::CopyOf(std::span<const int64_t>,
                                             std::initializer_list<int64_t>);

TensorView<float> OpCases::Values(std::initializer_list<int64_t> shape) {
  // Splitmix's numbers, as tokens of a vocabulary of 2^16.
  constexpr int kSteps = 1 << 16, kFirst = 32;
  const std::vector<TokenId> random =
      SyntheticTokens(static_cast<int64_t>(operands_.size()) + 1, CountOf(shape), kSteps + kFirst);
  std::vector<float> values(random.size());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = RoundToBf16(static_cast<float>(random[i] - kFirst) * (2.0f / kSteps) - 1.0f);
  }
  return CopyOf<float>(values, shape);
}

TensorView<float> OpCases::Constant(float value, std::initializer_list<int64_t> shape) {
  return CopyOf<float>(std::vector<float>(static_cast<size_t>(CountOf(shape)), value), shape);
}

int OpCases::VocabularyRows() const {
  const int64_t row_bytes = WeightMemory::StoredBytes(DType::kBF16, 1, config_.hidden_size);
  return static_cast<int>(
      std::clamp<int64_t>(weights_.ring_bytes() / row_bytes, 1, config_.vocab_size));
}

Status OpCases::AddRopeTable() {
  const std::vector<float> values = RopeFrequencies(config_, true);
  const TensorView<float> out = Values({n_, config_.rope_dim / 2, 2});
  const TensorView<const float> frequencies =
      CopyOf<float>(values, {static_cast<int64_t>(values.size())});
  OpCase op{"rope_table", "positions"};
  op.activation_bytes = ViewBytes(out, frequencies);
  op.flop = Product({n_, config_.rope_dim / 2, 3});
  op.run = [this, frequencies, out] {
    return backend_.RopeTable({cache_->plan().positions, frequencies, out});
  };
  cases_.push_back(std::move(op));
  return OkStatus();
}

Status OpCases::AddEmbedExpand() {
  const int dim = config_.hidden_size, rows = VocabularyRows();
  FATHOM_RETURN_IF_ERROR(weights_.Reserve("embed", DType::kBF16, rows, dim));
  embed_ids_ = SyntheticTokens(2, n_, config_.vocab_size);
  for (TokenId& id : embed_ids_) id %= rows;
  const TensorView<float> hc = Values({n_, config_.hc_mult, dim});
  OpCase op{"embed_expand", "embed, bf16"};
  op.weight_bytes = WeightMemory::StoredBytes(DType::kBF16, n_, dim);
  op.activation_bytes = ViewBytes(hc);
  op.run = [this, rows, dim, hc] {
    // Other rows each time.
    for (TokenId& id : embed_ids_) id = (id + n_ * 7 + 1) % rows;
    return backend_.EmbedExpand({embed_ids_, weights_.Take(DType::kBF16, rows, dim), hc});
  };
  cases_.push_back(std::move(op));
  return OkStatus();
}

Status OpCases::AddHcPreNorm() {
  const int hc = config_.hc_mult, dim = config_.hidden_size, mixes = (2 + hc) * hc;
  FATHOM_RETURN_IF_ERROR(weights_.Reserve("hc_fn", DType::kF32, mixes, hc * dim));
  HcPreNormArgs args;
  args.hc = Values({n_, hc, dim});
  args.base = Values({mixes});
  args.scale = Values({3});
  args.norm_weight = Values({dim});
  args.norm_eps = static_cast<float>(config_.rms_norm_eps);
  args.hc_eps = static_cast<float>(config_.hc_eps);
  args.sinkhorn_iters = config_.hc_sinkhorn_iters;
  args.x = Values({n_, dim});
  args.post = Values({n_, hc});
  args.comb = Values({n_, hc, hc});
  OpCase op{"hc_pre_norm", "hc_fn, fp32"};
  op.weight_bytes = WeightMemory::StoredBytes(DType::kF32, mixes, hc * dim);
  op.activation_bytes = ViewBytes(args.hc, args.x, args.post, args.comb, args.norm_weight);
  // Products, mean square, mixing, norm; Sinkhorn's divisions and sums.
  op.flop = Product({n_, hc * dim, 2 * mixes + 4}) + Product({n_, 4, dim}) +
            Product({n_, 4 * hc * hc, config_.hc_sinkhorn_iters});
  op.run = [this, args, mixes, hc, dim]() mutable {
    args.fn = TakeFloats(mixes, hc * dim);
    return backend_.HcPreNorm(args);
  };
  cases_.push_back(std::move(op));
  return OkStatus();
}

Status OpCases::AddHcPost() {
  const int hc = config_.hc_mult, dim = config_.hidden_size;
  HcPostArgs args;
  // The copies are mixed over and over in place: these keep them in bounds.
  const TensorView<float> post = Constant(0.125f, {n_, hc});
  const TensorView<float> comb = Constant(0.5f / static_cast<float>(hc), {n_, hc, hc});
  args.out = Values({n_, dim});
  args.post = post;
  args.comb = comb;
  args.hc = Values({n_, hc, dim});
  OpCase op{"hc_post", "copies"};
  op.activation_bytes = ViewBytes(args.out, post, comb) + 2 * ViewBytes(args.hc);
  op.flop = Product({n_, hc, dim, 2 * hc + 2});
  op.run = [this, args] { return backend_.HcPost(args); };
  cases_.push_back(std::move(op));
  return OkStatus();
}

Status OpCases::AddRmsNorm() {
  RmsNormArgs args;
  args.x = Values({n_, config_.q_lora_rank});
  args.weight = Values({config_.q_lora_rank});
  args.eps = static_cast<float>(config_.rms_norm_eps);
  args.out = Values({n_, config_.q_lora_rank});
  OpCase op{"rms_norm", "q_norm"};
  op.activation_bytes = ViewBytes(args.x, args.weight, args.out);
  op.flop = Product({n_, config_.q_lora_rank, 4});
  op.run = [this, args] { return backend_.RmsNorm(args); };
  cases_.push_back(std::move(op));
  return OkStatus();
}

Status OpCases::AddHead() {
  const int hc = config_.hc_mult, dim = config_.hidden_size, vocab = VocabularyRows();
  FATHOM_RETURN_IF_ERROR(weights_.Reserve("head", DType::kBF16, vocab, dim));
  FATHOM_RETURN_IF_ERROR(weights_.Reserve("hc_head", DType::kF32, hc, hc * dim));
  const int m = n_ <= kMostLogits ? n_ : 1;
  for (int row = n_ - m; row < n_; ++row) head_rows_.push_back(row);
  HeadArgs args;
  args.hc = Values({n_, hc, dim});
  args.rows = head_rows_;
  args.base = Values({hc});
  args.scale = Values({1});
  args.norm_weight = Values({dim});
  args.norm_eps = static_cast<float>(config_.rms_norm_eps);
  args.hc_eps = static_cast<float>(config_.hc_eps);
  args.logits = Values({m, vocab});
  OpCase op{"head", std::to_string(m) + " of the rows, " + std::to_string(vocab) + " of " +
                        std::to_string(config_.vocab_size) + " tokens, bf16"};
  op.weight_bytes = WeightMemory::StoredBytes(DType::kBF16, vocab, dim) +
                    WeightMemory::StoredBytes(DType::kF32, hc, hc * dim);
  op.activation_bytes = m * ViewBytes(args.hc) / n_ + ViewBytes(args.logits);
  op.flop = Product({2, m, vocab, dim}) + Product({m, hc * dim, 2 * hc + 4});
  op.run = [this, args, hc, dim, vocab]() mutable {
    args.fn = TakeFloats(hc, hc * dim);
    args.head = weights_.Take(DType::kBF16, vocab, dim);
    return backend_.Head(args);
  };
  cases_.push_back(std::move(op));
  return OkStatus();
}

Status OpCases::AddSample() {
  const int m = n_ <= kMostLogits ? n_ : 1, vocab = config_.vocab_size;
  const TensorView<float> logits = Values({m, vocab});
  const TensorView<int32_t> tokens = Room<int32_t>({m});
  const TensorView<float> logprobs = Room<float>({m});
  std::vector<int> indices(static_cast<size_t>(m));
  std::iota(indices.begin(), indices.end(), 0);
  struct Setting {
    const char* name;
    double temperature;
    double top_p;
    int top_k;
  };
  // The values are in [-1, 1): at this temperature the tokens' probabilities span nine decades.
  for (const Setting& s :
       {Setting{"greedy", 0.0, 1.0, 0}, Setting{"all tokens", 0.1, 1.0, 0},
        Setting{"top_p 0.95", 0.1, 0.95, 0}, Setting{"top_k 50", 0.1, 1.0, 50}}) {
    std::vector<SampleRow> rows(indices.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i].temperature = s.temperature;
      rows[i].top_p = s.top_p;
      rows[i].top_k = s.top_k;
      rows[i].random = 0x9E3779B97F4A7C15u * (i + 1);
    }
    OpCase op{"sample", std::to_string(m) + " of the rows, " + s.name};
    op.activation_bytes = ViewBytes(logits);
    op.flop = s.temperature > 0.0 ? Product({m, vocab, 3}) : 0.0;
    op.run = [this, logits, indices, rows, tokens, logprobs] {
      return backend_.Sample({logits, indices, rows, tokens, logprobs});
    };
    cases_.push_back(std::move(op));
  }
  return OkStatus();
}

}  // namespace fathom::bench
