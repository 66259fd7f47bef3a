#include "model/activations.h"

#include <algorithm>
#include <utility>

namespace fathom {
namespace {

constexpr int64_t kLine = 16;  // floats or ints of a cache line

// Makes room for `n` elements from the beginning of a cache line on; returns that.
template <typename T>
T* ResizeToLine(std::vector<T>& buffer, int64_t n) {
  static_assert(sizeof(T) == 4);
  buffer.resize(static_cast<size_t>(n + kLine));
  const auto misplaced = reinterpret_cast<uintptr_t>(buffer.data()) / sizeof(T) % kLine;
  return buffer.data() + (misplaced == 0 ? 0 : kLine - static_cast<int64_t>(misplaced));
}

}  // namespace

Activations::Activations(const ModelConfig& c, int max_rows) {
  const int64_t n = max_rows;
  const int pairs = c.rope_dim / 2;
  // Two passes over the same list: the first adds up sizes, the second places the views. Views
  // start on cache lines, which std::vector's memory does not.
  float* floats_begin = nullptr;
  int32_t* ints_begin = nullptr;
  for (const bool place : {false, true}) {
    int64_t floats = 0, ints = 0;
    const auto next = [place](auto& view, auto* begin, int64_t& used, auto... dims) {
      const int64_t size = (int64_t{1} * ... * dims);
      if (place) view = std::remove_reference_t<decltype(view)>(begin + used, dims...);
      used += (size + kLine - 1) / kLine * kLine;
    };
    next(hc, floats_begin, floats, n, int64_t{c.hc_mult}, int64_t{c.hidden_size});
    next(x, floats_begin, floats, n, int64_t{c.hidden_size});
    next(sublayer_out, floats_begin, floats, n, int64_t{c.hidden_size});
    next(post, floats_begin, floats, n, int64_t{c.hc_mult});
    next(comb, floats_begin, floats, n, int64_t{c.hc_mult}, int64_t{c.hc_mult});
    next(q_lora, floats_begin, floats, n, int64_t{c.q_lora_rank});
    next(kv, floats_begin, floats, n, int64_t{c.head_dim});
    next(step_kv, floats_begin, floats, n, int64_t{c.head_dim});
    next(q, floats_begin, floats, n, int64_t{c.num_heads}, int64_t{c.head_dim});
    next(attn_o, floats_begin, floats, n, int64_t{c.num_heads}, int64_t{c.head_dim});
    next(o_lora, floats_begin, floats, n, int64_t{c.o_groups} * c.o_lora_rank);
    next(index_q, floats_begin, floats, n, int64_t{c.index_num_heads}, int64_t{c.index_head_dim});
    next(index_weights, floats_begin, floats, n, int64_t{c.index_num_heads});
    next(expert_weights, floats_begin, floats, n, int64_t{c.num_experts_per_token});
    next(rope_plain, floats_begin, floats, n, int64_t{pairs}, int64_t{2});
    next(rope_compressed, floats_begin, floats, n, int64_t{pairs}, int64_t{2});
    // A step of n rows ends at most one window per row.
    next(rope_anchors_c4, floats_begin, floats, n, int64_t{pairs}, int64_t{2});
    next(rope_anchors_c128, floats_begin, floats, n, int64_t{pairs}, int64_t{2});
    next(entries, ints_begin, ints, n, int64_t{c.index_topk});
    next(num_entries, ints_begin, ints, n);
    next(experts, ints_begin, ints, n, int64_t{c.num_experts_per_token});
    if (!place) {
      floats_begin = ResizeToLine(floats_, floats);
      ints_begin = ResizeToLine(ints_, ints);
    }
  }
  // c4 rows are the widest: two halves of the head.
  const auto row_width = size_t{2} * static_cast<size_t>(std::max(c.head_dim, c.index_head_dim));
  kv_rows_.resize(static_cast<size_t>(n) * row_width);
  score_rows_.resize(static_cast<size_t>(n) * row_width);
  anchors_c4.reserve(static_cast<size_t>(n));
  anchors_c128.reserve(static_cast<size_t>(n));
}

}  // namespace fathom
