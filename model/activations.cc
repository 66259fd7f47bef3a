#include "model/activations.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "backend/memory_layout.h"

namespace fathom {

Result<Activations> Activations::Create(const ModelConfig& c, int max_rows, DeviceMemory& memory) {
  const int64_t n = max_rows;
  const int pairs = c.rope_dim / 2;
  // c4 rows are the widest: two halves of the head.
  const int64_t row_width = int64_t{2} * std::max(c.head_dim, c.index_head_dim);
  Activations a;
  // Two passes over the same list: the first adds up sizes, the second places the views.
  for (const bool place : {false, true}) {
    MemoryLayout layout(DeviceMemory::kAlignment);
    const auto take = [&]<typename T>(T*& to, int64_t elements) {
      const int64_t offset = layout.Add<T>(elements);
      to = place ? reinterpret_cast<T*>(a.buffer_.data() + offset) : nullptr;
    };
    const auto next = [&take]<typename T>(TensorView<T>& view, auto... dims) {
      T* data = nullptr;
      take(data, (int64_t{1} * ... * dims));
      view = TensorView<T>(data, dims...);
    };
    next(a.hc, n, int64_t{c.hc_mult}, int64_t{c.hidden_size});
    next(a.x, n, int64_t{c.hidden_size});
    next(a.sublayer_out, n, int64_t{c.hidden_size});
    next(a.post, n, int64_t{c.hc_mult});
    next(a.comb, n, int64_t{c.hc_mult}, int64_t{c.hc_mult});
    next(a.q_lora, n, int64_t{c.q_lora_rank});
    next(a.kv, n, int64_t{c.head_dim});
    next(a.step_kv, n, int64_t{c.head_dim});
    next(a.q, n, int64_t{c.num_heads}, int64_t{c.head_dim});
    next(a.attn_o, n, int64_t{c.num_heads}, int64_t{c.head_dim});
    next(a.o_lora, n, int64_t{c.o_groups} * c.o_lora_rank);
    next(a.index_q, n, int64_t{c.index_num_heads}, int64_t{c.index_head_dim});
    next(a.index_weights, n, int64_t{c.index_num_heads});
    next(a.expert_weights, n, int64_t{c.num_experts_per_token});
    next(a.rope_plain, n, int64_t{pairs}, int64_t{2});
    next(a.rope_compressed, n, int64_t{pairs}, int64_t{2});
    // A step of n rows ends at most one window per row.
    next(a.rope_anchors_c4, n, int64_t{pairs}, int64_t{2});
    next(a.rope_anchors_c128, n, int64_t{pairs}, int64_t{2});
    next(a.entries, n, int64_t{c.index_topk});
    next(a.num_entries, n);
    next(a.experts, n, int64_t{c.num_experts_per_token});
    take(a.kv_rows_, n * row_width);
    take(a.score_rows_, n * row_width);
    if (place) break;
    Result<DeviceBuffer> buffer = memory.Allocate(layout.bytes());
    if (buffer.status().code() == StatusCode::kOutOfMemory) {
      return OutOfMemory("activations of a step of " + std::to_string(max_rows) + " tokens: " +
                         buffer.status().message() + "; lower --max-num-batched-tokens");
    }
    FATHOM_RETURN_IF_ERROR(buffer.status());
    a.buffer_ = std::move(*buffer);
    // On the host each page is taken here and not in the first steps.
    if (memory.host_readable())
      std::memset(a.buffer_.data(), 0, static_cast<size_t>(layout.bytes()));
  }
  a.anchors_c4.reserve(static_cast<size_t>(n));
  a.anchors_c128.reserve(static_cast<size_t>(n));
  return a;
}

}  // namespace fathom
