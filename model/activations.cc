#include "model/activations.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "backend/memory_layout.h"

namespace fathom {

int64_t Activations::LayOut(const ModelConfig& c, int max_rows, std::byte* base) {
  const int64_t n = max_rows;
  const int pairs = c.rope_dim / 2;
  // c4 rows are the widest: two halves of the head.
  const int64_t row_width = int64_t{2} * c.head_dim;
  const int64_t index_row_width = int64_t{2} * c.index_head_dim;
  MemoryLayout layout(DeviceMemory::kAlignment);
  const auto take = [&]<typename T>(T*& to, int64_t elements) {
    const int64_t offset = layout.Add<T>(elements);
    to = base == nullptr ? nullptr : reinterpret_cast<T*>(base + offset);
  };
  const auto next = [&take]<typename T>(TensorView<T>& view, auto... dims) {
    T* data = nullptr;
    take(data, (int64_t{1} * ... * dims));
    view = TensorView<T>(data, dims...);
  };
  next(hc, n, int64_t{c.hc_mult}, int64_t{c.hidden_size});
  next(x, n, int64_t{c.hidden_size});
  next(sublayer_out, n, int64_t{c.hidden_size});
  next(post, n, int64_t{c.hc_mult});
  next(comb, n, int64_t{c.hc_mult}, int64_t{c.hc_mult});
  next(q_lora, n, int64_t{c.q_lora_rank});
  next(kv, n, int64_t{c.head_dim});
  next(step_kv, n, int64_t{c.head_dim});
  next(q, n, int64_t{c.num_heads}, int64_t{c.head_dim});
  next(attn_o, n, int64_t{c.num_heads}, int64_t{c.head_dim});
  next(o_lora, n, int64_t{c.o_groups} * c.o_lora_rank);
  next(index_q, n, int64_t{c.index_num_heads}, int64_t{c.index_head_dim});
  next(index_weights, n, int64_t{c.index_num_heads});
  next(expert_weights, n, int64_t{c.num_experts_per_token});
  next(rope_plain, n, int64_t{pairs}, int64_t{2});
  next(rope_compressed, n, int64_t{pairs}, int64_t{2});
  // A step of n rows ends at most one window per row.
  for (TensorView<float>& rope : rope_anchors) next(rope, n, int64_t{pairs}, int64_t{2});
  next(entries, n, int64_t{c.index_topk});
  next(num_entries, n);
  next(experts, n, int64_t{c.num_experts_per_token});
  take(kv_rows_, n * row_width);
  take(score_rows_, n * row_width);
  take(index_kv_rows_, n * index_row_width);
  take(index_score_rows_, n * index_row_width);
  return layout.bytes();
}

int64_t Activations::Bytes(const ModelConfig& config, int max_rows) {
  return Activations().LayOut(config, max_rows, nullptr);
}

Result<Activations> Activations::Create(const ModelConfig& c, int max_rows, DeviceMemory& memory) {
  Activations a;
  const int64_t bytes = Bytes(c, max_rows);
  Result<DeviceBuffer> buffer = memory.Allocate(bytes);
  if (buffer.status().code() == StatusCode::kOutOfMemory) {
    return OutOfMemory("activations of a step of " + std::to_string(max_rows) + " tokens: " +
                       buffer.status().message() + "; lower --max-num-batched-tokens");
  }
  FATHOM_RETURN_IF_ERROR(buffer.status());
  a.buffer_ = std::move(*buffer);
  a.LayOut(c, max_rows, a.buffer_.data());
  // On the host each page is taken here and not in the first steps.
  if (memory.host_readable()) std::memset(a.buffer_.data(), 0, static_cast<size_t>(bytes));
  const auto n = static_cast<size_t>(max_rows);
  for (std::vector<Position>& anchors : a.anchors) anchors.reserve(n);
  return a;
}

}  // namespace fathom
