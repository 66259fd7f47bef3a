// The cases of operations whose time is in a matrix: products, router, experts, output projection.
#include <algorithm>
#include <string>
#include <utility>

#include "bench/op_cases.h"
#include "bench/workload.h"

namespace fathom::bench {
namespace {

const char* FormatName(DType dtype) {
  switch (dtype) {
    case DType::kF8E4M3:
      return "fp8";
    case DType::kI8:
      return "fp4";
    case DType::kBF16:
      return "bf16";
    default:
      return "fp32";
  }
}

}  // namespace

Status OpCases::AddLinears() {
  const ModelConfig& c = config_;
  const int dim = c.hidden_size;
  constexpr DType kFp8 = DType::kF8E4M3, kBf16 = DType::kBF16;
  FATHOM_RETURN_IF_ERROR(AddLinear("wq_a, wkv", kFp8, dim, c.q_lora_rank, c.head_dim, true));
  FATHOM_RETURN_IF_ERROR(AddLinear("wq_b", kFp8, c.q_lora_rank, c.num_heads * c.head_dim, 0, true));
  FATHOM_RETURN_IF_ERROR(
      AddLinear("compressor of ratio 4", kBf16, dim, 2 * c.head_dim, 2 * c.head_dim, false));
  FATHOM_RETURN_IF_ERROR(
      AddLinear("compressor of ratio 128", kBf16, dim, c.head_dim, c.head_dim, false));
  FATHOM_RETURN_IF_ERROR(AddLinear("compressor of index keys", kBf16, dim, 2 * c.index_head_dim,
                                   2 * c.index_head_dim, false));
  FATHOM_RETURN_IF_ERROR(AddLinear("indexer wq_b", kFp8, c.q_lora_rank,
                                   c.index_num_heads * c.index_head_dim, 0, true));
  FATHOM_RETURN_IF_ERROR(AddLinear("weights_proj", kBf16, dim, c.index_num_heads, 0, true));
  return AddLinear("wo_b", kFp8, c.o_groups * c.o_lora_rank, dim, 0, true);
}

Status OpCases::AddLinear(const char* what, DType dtype, int cols, int rows, int second_rows,
                          bool round_output) {
  FATHOM_RETURN_IF_ERROR(weights_.Reserve(what, dtype, rows, cols));
  LinearArgs args;
  args.x = Values({n_, cols});
  args.first.out = Values({n_, rows});
  args.round_output = round_output;
  OpCase op{"linear", std::string(what) + ", " + FormatName(dtype)};
  op.weight_bytes = WeightMemory::StoredBytes(dtype, rows, cols);
  op.activation_bytes = ViewBytes(args.x, args.first.out);
  if (second_rows > 0) {
    FATHOM_RETURN_IF_ERROR(weights_.Reserve(what, dtype, second_rows, cols));
    args.second.out = Values({n_, second_rows});
    op.weight_bytes += WeightMemory::StoredBytes(dtype, second_rows, cols);
    op.activation_bytes += ViewBytes(args.second.out);
  }
  op.flop = Product({2, n_, rows + second_rows, cols});
  op.run = [this, args, dtype, cols, rows, second_rows]() mutable {
    args.first.weight = weights_.Take(dtype, rows, cols);
    if (second_rows > 0) args.second.weight = weights_.Take(dtype, second_rows, cols);
    return backend_.Linear(args);
  };
  cases_.push_back(std::move(op));
  return OkStatus();
}

Status OpCases::AddRoute() {
  const int dim = config_.hidden_size, experts = config_.num_experts;
  const int k = config_.num_experts_per_token;
  FATHOM_RETURN_IF_ERROR(weights_.Reserve("gate", DType::kBF16, experts, dim));
  RouteArgs args;
  args.x = Values({n_, dim});
  args.experts = Room<int32_t>({n_, k});
  args.weights = Values({n_, k});
  args.scale = static_cast<float>(config_.routed_scaling_factor);
  const auto add = [&](const char* what) {
    OpCase op{"route", what};
    op.weight_bytes = WeightMemory::StoredBytes(DType::kBF16, experts, dim);
    op.activation_bytes = ViewBytes(args.x, args.experts, args.weights);
    op.flop = Product({2, n_, experts, dim});
    op.run = [this, args, experts, dim]() mutable {
      args.gate = weights_.Take(DType::kBF16, experts, dim);
      return backend_.Route(args);
    };
    cases_.push_back(std::move(op));
  };
  args.bias = Values({experts});
  add("by score, bf16");
  if (config_.num_hash_layers == 0) return OkStatus();
  args.bias = {};
  const std::vector<TokenId> ids = SyntheticTokens(3, int64_t{config_.vocab_size} * k, 1 << 16);
  std::vector<int64_t> table(ids.begin(), ids.end());
  for (int64_t& id : table) id %= experts;
  args.hash_table = CopyOf<int64_t>(table, {config_.vocab_size, k});
  args.token_ids = cache_->plan().token_ids;
  add("by token id, bf16");
  return OkStatus();
}

Status OpCases::AddMoe() {
  const ModelConfig& c = config_;
  const int dim = c.hidden_size, width = c.moe_intermediate_size;
  const int num_experts = c.num_experts, k = c.num_experts_per_token;
  const int shared_width = width * c.num_shared_experts;
  FATHOM_RETURN_IF_ERROR(weights_.Reserve("an expert", DType::kI8, width, dim));
  FATHOM_RETURN_IF_ERROR(weights_.Reserve("an expert", DType::kI8, dim, width));
  FATHOM_RETURN_IF_ERROR(weights_.Reserve("the shared expert", DType::kF8E4M3, shared_width, dim));
  FATHOM_RETURN_IF_ERROR(weights_.Reserve("the shared expert", DType::kF8E4M3, dim, shared_width));
  const auto take = [this, dim](DType dtype, int rows) {
    return ExpertWeights{weights_.Take(dtype, rows, dim), weights_.Take(dtype, dim, rows),
                         weights_.Take(dtype, rows, dim)};
  };
  experts_.clear();
  for (int e = 0; e < num_experts; ++e) experts_.push_back(take(DType::kI8, width));
  for (int e = 0; e < num_experts; ++e) experts_.push_back(experts_[static_cast<size_t>(e)]);
  MoeArgs args;
  args.x = Values({n_, dim});
  std::vector<int32_t> chosen(static_cast<size_t>(n_) * static_cast<size_t>(k));
  // Different ones in a row, at random. Numbered in the order in which they are met: those of a run
  // lie side by side in memory, and those of the next run behind them.
  std::vector<int32_t> numbers(static_cast<size_t>(num_experts), -1);
  int distinct = 0;
  const std::vector<TokenId> random = SyntheticTokens(4, int64_t{n_} * k, 1 << 16);
  for (int row = 0; row < n_; ++row) {
    std::vector<bool> in_row(numbers.size());
    for (int slot = 0; slot < k; ++slot) {
      auto expert = static_cast<size_t>(random[static_cast<size_t>(row * k + slot)] % num_experts);
      while (in_row[expert]) expert = (expert + 1) % in_row.size();
      in_row[expert] = true;
      if (numbers[expert] < 0) numbers[expert] = distinct++;
      chosen[static_cast<size_t>(row * k + slot)] = numbers[expert];
    }
  }
  args.experts = CopyOf<int32_t>(chosen, {n_, k});
  args.weights = Values({n_, k});
  args.swiglu_limit = static_cast<float>(c.swiglu_limit);
  args.out = Values({n_, dim});
  OpCase op{"moe", std::to_string(distinct) + " experts, fp4, and the shared one, fp8"};
  op.weight_bytes = distinct * (2 * WeightMemory::StoredBytes(DType::kI8, width, dim) +
                                WeightMemory::StoredBytes(DType::kI8, dim, width)) +
                    2 * WeightMemory::StoredBytes(DType::kF8E4M3, shared_width, dim) +
                    WeightMemory::StoredBytes(DType::kF8E4M3, dim, shared_width);
  op.activation_bytes = ViewBytes(args.x, args.weights, args.experts, args.out);
  op.flop = Product({6, n_, dim, int64_t{k} * width + shared_width});
  op.run = [this, args, take, num_experts, distinct, shared_width, first = 0]() mutable {
    // The same ids, but other experts behind them.
    first = (first + distinct) % num_experts;
    args.routed =
        std::span(experts_).subspan(static_cast<size_t>(first), static_cast<size_t>(num_experts));
    args.shared = take(DType::kF8E4M3, shared_width);
    return backend_.Moe(args);
  };
  cases_.push_back(std::move(op));
  return OkStatus();
}

Status OpCases::AddInverseRopeOut() {
  const ModelConfig& c = config_;
  const int rows = c.o_groups * c.o_lora_rank, cols = c.num_heads * c.head_dim / c.o_groups;
  FATHOM_RETURN_IF_ERROR(weights_.Reserve("wo_a", DType::kF8E4M3, rows, cols));
  InverseRopeOutArgs args;
  args.o = Values({n_, c.num_heads, c.head_dim});
  args.cos_sin = Values({n_, c.rope_dim / 2, 2});
  args.groups = c.o_groups;
  args.out = Values({n_, rows});
  args.quantise_input = fp8_o_proj_inputs_;
  OpCase op{"inverse_rope_out", fp8_o_proj_inputs_ ? "wo_a, fp8, e4m3 inputs" : "wo_a, fp8"};
  op.weight_bytes = WeightMemory::StoredBytes(DType::kF8E4M3, rows, cols);
  op.activation_bytes = ViewBytes(args.o, args.cos_sin, args.out);
  op.flop = Product({2, n_, rows, cols}) + Product({3, n_, c.num_heads, c.rope_dim});
  op.args = args;
  op.run = [this, args, rows, cols]() mutable {
    args.wo_a = weights_.Take(DType::kF8E4M3, rows, cols);
    return backend_.InverseRopeOut(args);
  };
  cases_.push_back(std::move(op));
  return OkStatus();
}

}  // namespace fathom::bench
