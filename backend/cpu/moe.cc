// See backend/ops/moe.h for the contract.
//
// An item is one (token, expert) pair. Items are sorted by expert, tokens in order; the shared
// expert's follow as a last group with every token in it. Three loops:
//   1. (group, row block of w1 and w3): gate, up and the product h of all items of the group;
//   2. items: h rounded to e4m3 for w2;
//   3. row blocks of w2, groups ascending inside: y added to the tokens' outputs. One task owns its
//      channels of all tokens, so every sum runs over experts in ascending order, whoever computes
//      it.
#include <cmath>

#include "backend/cpu/scratch.h"
#include "base/formats.h"

namespace fathom {
namespace {

struct Item {
  int64_t begin = 0;
  int64_t count = 0;
};

}  // namespace

Status CpuBackend::DoMoe(const MoeArgs& args) {
  const int64_t n = args.x.dim(0);
  const int64_t k = args.experts.dim(1);
  const int64_t dim = args.x.dim(1);
  const auto num_experts = static_cast<int32_t>(args.routed.size());
  const BackendLimits& limits = scratch_->limits;
  int max_width = args.shared.w1.rows;
  bool any_quantised = args.shared.w1.quantised();
  for (const ExpertWeights& e : args.routed) {
    max_width = std::max(max_width, e.w1.rows);
    any_quantised = any_quantised || e.w1.quantised();
  }
  FATHOM_RETURN_IF_ERROR(Fits("moe: rows", n, limits.max_rows));
  FATHOM_RETURN_IF_ERROR(Fits("moe: columns", dim, limits.max_cols));
  FATHOM_RETURN_IF_ERROR(Fits("moe: experts", num_experts, limits.max_experts));
  FATHOM_RETURN_IF_ERROR(Fits("moe: experts per token", k, limits.max_experts_per_token));
  FATHOM_RETURN_IF_ERROR(Fits("moe: expert width", max_width, limits.max_expert_width));

  // Counting sort. begin[e] .. begin[e + 1] are the items of expert e; expert E is the shared one.
  int32_t* begin = scratch_->moe_begin.data();
  int32_t* tokens = scratch_->moe_tokens.data();
  float* weights = scratch_->moe_weights.data();
  std::fill_n(begin, num_experts + 2, 0);
  for (int64_t i = 0; i < n * k; ++i) ++begin[args.experts.data()[i] + 1];
  for (int32_t e = 0; e < num_experts; ++e) begin[e + 1] += begin[e];
  for (int64_t i = 0; i < n * k; ++i) {
    // Uses begin[e] as the place of the next item of e, which leaves it at the begin of e + 1 ...
    const int32_t at = begin[args.experts.data()[i]]++;
    tokens[at] = static_cast<int32_t>(i / k);
    weights[at] = args.weights.data()[i];
  }
  // ... so that all move up by one.
  for (int32_t e = num_experts; e > 0; --e) begin[e] = begin[e - 1];
  begin[0] = 0;
  begin[num_experts + 1] = static_cast<int32_t>(n * (k + 1));
  for (int64_t i = 0; i < n; ++i) {
    tokens[n * k + i] = static_cast<int32_t>(i);
    weights[n * k + i] = 1.0f;
  }
  int32_t* active = scratch_->moe_active.data();
  int64_t num_active = 0;
  for (int32_t e = 0; e <= num_experts; ++e) {
    if (begin[e + 1] > begin[e]) active[num_active++] = e;
  }
  const auto expert = [&](int32_t e) -> const ExpertWeights& {
    return e == num_experts ? args.shared : args.routed[static_cast<size_t>(e)];
  };
  const auto items_of = [&](int32_t e) { return Item{begin[e], begin[e + 1] - begin[e]}; };
  const int64_t items_each = num_active == 0 ? 0 : n * (k + 1) / num_active + 1;

  const TensorView<const float> quantised =
      official() && any_quantised ? QuantisedInput(args.x) : args.x;
  const int64_t blocks = (max_width + cpu::kRowBlock - 1) / cpu::kRowBlock;
  ForEach(num_active * blocks, 2 * cpu::kRowBlock * dim * (items_each + 2),
          [&](int64_t task, int thread) {
            const int32_t e = active[task / blocks];
            const ExpertWeights& w = expert(e);
            const int row = static_cast<int>(task % blocks) * cpu::kRowBlock;
            if (row >= w.w1.rows) return;
            const int num_rows = std::min(cpu::kRowBlock, w.w1.rows - row);
            const Item items = items_of(e);
            const TensorView<const float>& x = w.w1.quantised() ? quantised : args.x;
            float* gate_rows = scratch_->thread_weights.part(thread);
            float* up_rows = gate_rows + int64_t{cpu::kRowBlock} * dim;
            cpu::DecodeRows(w.w1, row, num_rows, gate_rows);
            cpu::DecodeRows(w.w3, row, num_rows, up_rows);
            alignas(64) float gate[kInputChunk * cpu::kRowBlock];
            alignas(64) float up[kInputChunk * cpu::kRowBlock];
            const float* inputs[kInputChunk];
            for (int64_t first = 0; first < items.count; first += kInputChunk) {
              const int count =
                  static_cast<int>(std::min<int64_t>(kInputChunk, items.count - first));
              for (int i = 0; i < count; ++i) {
                inputs[i] = x.row(tokens[items.begin + first + i]).data();
              }
              cpu::DotBlock(gate_rows, num_rows, dim, inputs, count, gate, cpu::kRowBlock);
              cpu::DotBlock(up_rows, num_rows, dim, inputs, count, up, cpu::kRowBlock);
              for (int i = 0; i < count; ++i) {
                const int64_t item = items.begin + first + i;
                float* h = scratch_->moe_hidden.part(item) + row;
                for (int r = 0; r < num_rows; ++r) {
                  float g = gate[i * cpu::kRowBlock + r];
                  float u = up[i * cpu::kRowBlock + r];
                  if (official()) {
                    g = RoundToBf16(g);
                    u = RoundToBf16(u);
                  }
                  if (args.swiglu_limit > 0.0f) {
                    g = std::min(g, args.swiglu_limit);
                    u = std::clamp(u, -args.swiglu_limit, args.swiglu_limit);
                  }
                  const float product = g / (1.0f + std::exp(-g)) * u * weights[item];
                  h[r] = official() ? RoundToBf16(product) : product;
                }
              }
            }
          });

  if (official()) {
    for (int64_t a = 0; a < num_active; ++a) {
      const WeightView& w2 = expert(active[a]).w2;
      if (!w2.quantised()) continue;
      const Item items = items_of(active[a]);
      ForEach(items.count, w2.cols, [&](int64_t i, int) {
        float* h = scratch_->moe_hidden.part(items.begin + i);
        cpu::QuantiseE4m3Groups({h, static_cast<size_t>(w2.cols)}, 128, h);
      });
    }
  }

  const int64_t out_blocks = (dim + cpu::kRowBlock - 1) / cpu::kRowBlock;
  ForEach(out_blocks, cpu::kRowBlock * int64_t{max_width} * (n * (k + 1) + 2 * num_active),
          [&](int64_t block, int thread) {
            const int row = static_cast<int>(block) * cpu::kRowBlock;
            const int num_rows = static_cast<int>(std::min<int64_t>(cpu::kRowBlock, dim - row));
            for (int64_t i = 0; i < n; ++i)
              std::fill_n(args.out.row(i).data() + row, num_rows, 0.0f);
            for (int64_t a = 0; a < num_active; ++a) {
              const Item items = items_of(active[a]);
              MultiplyRows(
                  expert(active[a]).w2, row, num_rows, items.count,
                  [&](int64_t i) { return scratch_->moe_hidden.part(items.begin + i); }, thread,
                  [&](int64_t first, int count, float* sums) {
                    if (official()) {
                      cpu::RoundBf16({sums, static_cast<size_t>(count) * cpu::kRowBlock}, sums);
                    }
                    for (int i = 0; i < count; ++i) {
                      float* out = args.out.row(tokens[items.begin + first + i]).data() + row;
                      for (int r = 0; r < num_rows; ++r) out[r] += sums[i * cpu::kRowBlock + r];
                    }
                  });
            }
            if (!official()) return;
            for (int64_t i = 0; i < n; ++i) {
              float* out = args.out.row(i).data() + row;
              cpu::RoundBf16({out, static_cast<size_t>(num_rows)}, out);
            }
          });
  return OkStatus();
}

}  // namespace fathom
