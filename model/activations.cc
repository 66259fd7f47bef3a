#include "model/activations.h"

#include <algorithm>
#include <utility>

namespace fathom {

Activations::Activations(const ModelConfig& c, int max_rows) {
  const int64_t n = max_rows;
  const int pairs = c.rope_dim / 2;
  // Two passes over the same list: the first adds up sizes, the second places the views. Views
  // start on cache lines.
  for (const bool place : {false, true}) {
    int64_t floats = 0, ints = 0;
    const auto next = [place](auto& view, auto& buffer, int64_t& used, auto... dims) {
      const int64_t size = (int64_t{1} * ... * dims);
      if (place) view = std::remove_reference_t<decltype(view)>(buffer.data() + used, dims...);
      used += (size + 15) / 16 * 16;
    };
    next(hc, floats_, floats, n, int64_t{c.hc_mult}, int64_t{c.hidden_size});
    next(x, floats_, floats, n, int64_t{c.hidden_size});
    next(sublayer_out, floats_, floats, n, int64_t{c.hidden_size});
    next(post, floats_, floats, n, int64_t{c.hc_mult});
    next(comb, floats_, floats, n, int64_t{c.hc_mult}, int64_t{c.hc_mult});
    next(q_lora, floats_, floats, n, int64_t{c.q_lora_rank});
    next(kv, floats_, floats, n, int64_t{c.head_dim});
    next(step_kv, floats_, floats, n, int64_t{c.head_dim});
    next(q, floats_, floats, n, int64_t{c.num_heads}, int64_t{c.head_dim});
    next(attn_o, floats_, floats, n, int64_t{c.num_heads}, int64_t{c.head_dim});
    next(o_lora, floats_, floats, n, int64_t{c.o_groups} * c.o_lora_rank);
    next(index_q, floats_, floats, n, int64_t{c.index_num_heads}, int64_t{c.index_head_dim});
    next(index_weights, floats_, floats, n, int64_t{c.index_num_heads});
    next(expert_weights, floats_, floats, n, int64_t{c.num_experts_per_token});
    next(rope_plain, floats_, floats, n, int64_t{pairs}, int64_t{2});
    next(rope_compressed, floats_, floats, n, int64_t{pairs}, int64_t{2});
    // A step of n rows ends at most one window per row.
    next(rope_anchors_c4, floats_, floats, n, int64_t{pairs}, int64_t{2});
    next(rope_anchors_c128, floats_, floats, n, int64_t{pairs}, int64_t{2});
    next(entries, ints_, ints, n, int64_t{c.index_topk});
    next(num_entries, ints_, ints, n);
    next(experts, ints_, ints, n, int64_t{c.num_experts_per_token});
    if (!place) {
      floats_.resize(static_cast<size_t>(floats));
      ints_.resize(static_cast<size_t>(ints));
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
