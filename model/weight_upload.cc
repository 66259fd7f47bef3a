// ModelWeights::MoveTo.
#include <string>
#include <utility>

#include "base/host_memory.h"
#include "model/weights.h"

namespace fathom {
namespace {

using Bytes = std::span<const std::byte>;

// Calls f for the bytes of each tensor, in an order that depends on the model alone; f returns
// where they are from then on.
template <typename F>
class TensorVisitor {
 public:
  explicit TensorVisitor(F f) : f_(std::move(f)) {}

  void Visit(ModelWeights& w) {
    Visit(w.embed);
    Visit(w.head);
    Visit(w.norm);
    Visit(w.hc_head);
    for (LayerWeights& layer : w.layers) Visit(layer);
  }

 private:
  void Visit(WeightView& w) {
    if (w.empty()) return;
    w.data = f_(Bytes(static_cast<const std::byte*>(w.data),
                      static_cast<size_t>(ValueBytes(w.dtype, w.rows, w.cols))));
    if (w.scale == nullptr) return;
    const auto scales = static_cast<size_t>(ScaleBytes(w.dtype, w.rows, w.cols));
    w.scale = reinterpret_cast<const uint8_t*>(f_(std::as_bytes(std::span(w.scale, scales))));
  }
  template <typename T>
  void Visit(TensorView<const T>& view) {
    if (view.empty()) return;
    view = view.At(reinterpret_cast<const T*>(f_(std::as_bytes(view.elements()))));
  }
  void Visit(HyperConnectionWeights& w) {
    Visit(w.fn);
    Visit(w.base);
    Visit(w.scale);
  }
  void Visit(CompressorWeights& w) {
    Visit(w.wkv);
    Visit(w.wgate);
    Visit(w.ape);
    Visit(w.norm);
  }
  void Visit(ExpertWeights& w) {
    Visit(w.w1);
    Visit(w.w2);
    Visit(w.w3);
  }
  void Visit(AttentionWeights& w) {
    for (WeightView* matrix : {&w.wq_a, &w.wq_b, &w.wkv, &w.wo_a, &w.wo_b}) Visit(*matrix);
    for (TensorView<const float>* view : {&w.q_norm, &w.kv_norm, &w.sink}) Visit(*view);
    Visit(w.compressor);
    Visit(w.indexer.wq_b);
    Visit(w.indexer.weights_proj);
    Visit(w.indexer.compressor);
  }
  void Visit(LayerWeights& w) {
    Visit(w.hc_attn);
    Visit(w.hc_ffn);
    Visit(w.attn_norm);
    Visit(w.ffn_norm);
    Visit(w.attn);
    Visit(w.ffn.gate);
    Visit(w.ffn.bias);
    Visit(w.ffn.hash_table);
    for (ExpertWeights& expert : w.ffn.routed) Visit(expert);
    Visit(w.ffn.shared);
  }

  F f_;
};

int64_t Aligned(size_t bytes) {
  constexpr int64_t kAlignment = DeviceMemory::kAlignment;
  return (static_cast<int64_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

Status ModelWeights::MoveTo(DeviceMemory& memory, const LoadProgress& progress) {
  mtp.clear();
  int64_t total = 0;
  TensorVisitor([&total](Bytes bytes) {
    total += Aligned(bytes.size());
    return bytes.data();
  }).Visit(*this);
  FATHOM_ASSIGN_OR_RETURN(const MemoryState state, memory.State());
  Result<DeviceBuffer> buffer = OutOfMemory("");
  if (total <= state.free_bytes) buffer = memory.Allocate(total);
  if (!buffer.ok()) {
    if (buffer.status().code() != StatusCode::kOutOfMemory) return buffer.status();
    return OutOfMemory(
        "the weights take " + Gigabytes(static_cast<uint64_t>(total)) + ", and of the " +
        Gigabytes(static_cast<uint64_t>(state.total_bytes)) + " of " + state.name + " " +
        Gigabytes(static_cast<uint64_t>(state.free_bytes)) +
        " are free; end other programs that use it, take a smaller model, or compute "
        "with --backend cpu");
  }
  moved_ = std::move(*buffer);
  int64_t done = 0;
  Status status;
  TensorVisitor([&](Bytes bytes) {
    std::byte* const to = moved_.data() + done;
    if (status.ok()) status = memory.CopyIn(to, bytes);
    done += Aligned(bytes.size());
    if (progress) progress(static_cast<uint64_t>(done), static_cast<uint64_t>(total));
    return static_cast<const std::byte*>(to);
  }).Visit(*this);
  widened_.clear();
  return status;
}

}  // namespace fathom
