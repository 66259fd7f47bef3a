// See backend/ops/moe.h for the contract.
//
// An item is one (token, expert) pair. Items are sorted by expert, tokens in order; the shared
// expert's follow as a last group with every token in it. Three loops:
//   1. (group, row block of w1 and w3): gate, up and the product h of all items of the group;
//   groups
//      with most items come first;
//   2. items: h in the form that w2 takes;
//   3. row blocks of w2, groups ascending inside: y added to the tokens' outputs. One task owns its
//      channels of all tokens, so every sum runs over experts in ascending order, whoever computes
//      it.
#include <algorithm>

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
  FATHOM_RETURN_IF_ERROR(CheckExpertIds(args));
  const int64_t n = args.x.dim(0);
  const int64_t k = args.experts.dim(1);
  const int64_t dim = args.x.dim(1);
  const auto num_experts = static_cast<int32_t>(args.routed.size());
  const BackendLimits& limits = scratch_->limits;
  int max_width = args.shared.w1.rows;
  for (const ExpertWeights& e : args.routed) {
    max_width = std::max(max_width, e.w1.rows);
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

  // x in every form that an expert takes, and each item's row of it.
  const float** rows = scratch_->item_rows.data();
  const void** bytes = scratch_->item_bytes.data();
  bool needed[kNumInputForms] = {};
  for (int64_t a = 0; a < num_active; ++a) {
    needed[static_cast<size_t>(FormOf(expert(active[a]).w1))] = true;
  }
  cpu::InputRows inputs[kNumInputForms];
  for (size_t form = 0; form < kNumInputForms; ++form) {
    if (needed[form]) inputs[form] = PrepareInput(args.x, static_cast<InputForm>(form));
  }
  for (int64_t a = 0; a < num_active; ++a) {
    const InputForm form = FormOf(expert(active[a]).w1);
    const cpu::InputRows& x = inputs[static_cast<size_t>(form)];
    for (int64_t i = begin[active[a]]; i < begin[active[a] + 1]; ++i) {
      if (x.bytes != nullptr) {
        bytes[i] = x.bytes[tokens[i]];
      } else {
        rows[i] = (x.floats != nullptr ? x.floats : x.permuted)[tokens[i]];
      }
    }
  }
  // Steps of a few tokens multiply stored rows, longer ones panels, whatever a group's size.
  const bool permute = n > cpu::kDirectInputs;
  const auto input_rows = [&](Item items, InputForm form) -> cpu::InputRows {
    if (form == InputForm::kBytes || form == InputForm::kInt8) {
      return {nullptr, nullptr, bytes + items.begin, items.count, ByteFormOf(form)};
    }
    const float* const* first = rows + items.begin;
    return {permute ? nullptr : first, permute ? first : nullptr, nullptr, items.count};
  };

  int32_t* by_size = scratch_->moe_by_size.data();
  std::copy_n(active, num_active, by_size);
  std::sort(by_size, by_size + num_active, [&](int32_t a, int32_t b) {
    const int64_t count_a = items_of(a).count, count_b = items_of(b).count;
    return count_a != count_b ? count_a > count_b : a < b;
  });
  const int64_t blocks = (max_width + cpu::kRowBlock - 1) / cpu::kRowBlock;
  ForBlocks(num_active * blocks, 2 * cpu::kRowBlock * dim * (items_each + 2),
            2 * ValueBytes(args.routed[0].w1.dtype, cpu::kRowBlock, dim), /*group=*/blocks,
            [&](int64_t task, int thread) {
              const int32_t e = by_size[task / blocks];
              const ExpertWeights& w = expert(e);
              const int row = static_cast<int>(task % blocks) * cpu::kRowBlock;
              if (row >= w.w1.rows) return;
              const int num_rows = std::min(cpu::kRowBlock, w.w1.rows - row);
              const Item items = items_of(e);
              MultiplyRows({&w.w1, row, num_rows, Int8Of(w.w1)},
                           {&w.w3, row, num_rows, Int8Of(w.w3)}, input_rows(items, FormOf(w.w1)),
                           thread, [&](int64_t first, int count, const float* sums) {
                             for (int i = 0; i < count; ++i, sums += cpu::kSumStride) {
                               const int64_t item = items.begin + first + i;
                               cpu::SwigluRow(sums, sums + cpu::kRowBlock, num_rows,
                                              args.swiglu_limit, weights[item], official(),
                                              scratch_->moe_hidden.part(item) + row);
                             }
                           });
            });

  ForEach(n * (k + 1), 4 * int64_t{max_width}, [&](int64_t item, int thread) {
    const auto e = static_cast<int32_t>(
        std::upper_bound(begin, begin + num_experts + 1, static_cast<int32_t>(item)) - begin - 1);
    const WeightView& w2 = expert(e).w2;
    float* hidden = scratch_->moe_hidden.part(item);
    rows[item] = hidden;
    bytes[item] = hidden;
    PrepareRow({hidden, static_cast<size_t>(w2.cols)}, FormOf(w2), permute, thread, hidden);
  });

  // Experts' rows lie apart, so a task takes long stretches of them where there are many.
  constexpr int kRows = 2 * cpu::kRowBlock;
  constexpr int kStretch = 2 * kRows;
  ForBlocks((dim + kStretch - 1) / kStretch,
            kStretch * int64_t{max_width} * (n * (k + 1) + 2 * num_active),
            num_active * ValueBytes(args.routed[0].w2.dtype, kStretch, max_width), /*group=*/0,
            [&](int64_t stretch, int thread) {
              const auto begin_row = static_cast<int>(stretch) * kStretch;
              const auto end_row = static_cast<int>(std::min<int64_t>(begin_row + kStretch, dim));
              const auto out_of = [&](int64_t token) {
                return args.out.row(token).subspan(static_cast<size_t>(begin_row),
                                                   static_cast<size_t>(end_row - begin_row));
              };
              for (int64_t i = 0; i < n; ++i) std::ranges::fill(out_of(i), 0.0f);
              for (int64_t a = 0; a < num_active; ++a) {
                const Item items = items_of(active[a]);
                const WeightView& w2 = expert(active[a]).w2;
                const cpu::InputRows hidden = input_rows(items, FormOf(w2));
                for (int row = begin_row; row < end_row; row += kRows) {
                  const int num_rows = std::min(kRows, end_row - row);
                  const cpu::RowRange first_rows = {&w2, row, std::min(cpu::kRowBlock, num_rows),
                                                    Int8Of(w2)};
                  cpu::RowRange rest;
                  if (num_rows > cpu::kRowBlock) {
                    rest = {&w2, row + cpu::kRowBlock, num_rows - cpu::kRowBlock, Int8Of(w2)};
                  }
                  MultiplyRows(
                      first_rows, rest, hidden, thread, [&](int64_t first, int count, float* sums) {
                        for (int i = 0; i < count; ++i, sums += cpu::kSumStride) {
                          if (official()) cpu::RoundBf16({sums, kRows}, sums);
                          float* out = args.out.row(tokens[items.begin + first + i]).data();
                          cpu::AddRow({sums, static_cast<size_t>(num_rows)}, out + row);
                        }
                      });
                }
              }
              if (!official()) return;
              for (int64_t i = 0; i < n; ++i) cpu::RoundBf16(out_of(i), out_of(i).data());
            });
  return OkStatus();
}

}  // namespace fathom
