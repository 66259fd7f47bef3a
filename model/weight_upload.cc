// ModelWeights::MoveTo.
#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "base/host_memory.h"
#include "model/weight_sizes.h"
#include "model/weights.h"

namespace fathom {
namespace {

using Bytes = std::span<const std::byte>;

// Calls f for the bytes of each tensor and whether they are of an expert that lies on the host, in
// an order that depends on the model alone; f returns where they are from then on.
template <typename F>
class TensorVisitor {
 public:
  TensorVisitor(const ExpertPlacement& placement, F f) : placement_(placement), f_(std::move(f)) {}

  void Visit(ModelWeights& w) {
    Visit(w.embed);
    Visit(w.head);
    Visit(w.norm);
    Visit(w.hc_head);
    for (size_t layer = 0; layer < w.layers.size(); ++layer) {
      Visit(w.layers[layer], static_cast<int>(layer));
    }
  }

 private:
  void Visit(WeightView& w) {
    if (w.empty()) return;
    w.data = f_(Bytes(static_cast<const std::byte*>(w.data),
                      static_cast<size_t>(ValueBytes(w.dtype, w.rows, w.cols))),
                on_host_);
    if (w.scale == nullptr) return;
    const auto scales = static_cast<size_t>(ScaleBytes(w.dtype, w.rows, w.cols));
    w.scale =
        reinterpret_cast<const uint8_t*>(f_(std::as_bytes(std::span(w.scale, scales)), on_host_));
  }
  template <typename T>
  void Visit(TensorView<const T>& view) {
    if (view.empty()) return;
    view = view.At(reinterpret_cast<const T*>(f_(std::as_bytes(view.elements()), on_host_)));
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
  void Visit(LayerWeights& w, int layer) {
    Visit(w.hc_attn);
    Visit(w.hc_ffn);
    Visit(w.attn_norm);
    Visit(w.ffn_norm);
    Visit(w.attn);
    Visit(w.ffn.gate);
    Visit(w.ffn.bias);
    Visit(w.ffn.hash_table);
    for (size_t e = 0; e < w.ffn.routed.size(); ++e) {
      on_host_ = placement_.on_host(layer, static_cast<int>(e));
      Visit(w.ffn.routed[e]);
    }
    on_host_ = false;
    Visit(w.ffn.shared);
  }

  const ExpertPlacement& placement_;
  F f_;
  bool on_host_ = false;
};

// Where tensors lie in buffers of at most `max_bytes` (more where one tensor is), one after the
// other.
class Arenas {
 public:
  explicit Arenas(int64_t max_bytes) : max_bytes_(max_bytes) {}
  struct Place {
    size_t arena = 0;
    int64_t offset = 0;
  };
  Place Add(size_t bytes) {
    const int64_t aligned = AlignedBytes(static_cast<int64_t>(bytes));
    if (sizes_.empty() || sizes_.back() > max_bytes_ - aligned) sizes_.push_back(0);
    const Place place = {sizes_.size() - 1, sizes_.back()};
    sizes_.back() += aligned;
    return place;
  }
  [[nodiscard]] const std::vector<int64_t>& sizes() const { return sizes_; }
  [[nodiscard]] int64_t total() const {
    int64_t sum = 0;
    for (const int64_t size : sizes_) sum += size;
    return sum;
  }

 private:
  int64_t max_bytes_;
  std::vector<int64_t> sizes_;
};

std::string Gb(int64_t bytes) { return Gigabytes(static_cast<uint64_t>(bytes)); }

Arenas DeviceArena() { return Arenas(std::numeric_limits<int64_t>::max()); }
Arenas PinnedArenas() { return Arenas(ModelWeights::kMaxPinnedBytes); }

}  // namespace

int64_t ModelWeights::pinned_bytes() const {
  int64_t bytes = 0;
  for (const DeviceBuffer& buffer : pinned_) bytes += buffer.bytes();
  return bytes;
}

Status ModelWeights::MoveTo(const WeightDestination& destination, WeightWriter& writer,
                            const LoadProgress& progress) {
  mtp.clear();
  const ExpertPlacement& placement = destination.placement;
  Arenas device = DeviceArena(), pinned = PinnedArenas();
  TensorVisitor(placement, [&](Bytes bytes, bool on_host) {
    (on_host ? pinned : device).Add(bytes.size());
    return bytes.data();
  }).Visit(*this);

  FATHOM_ASSIGN_OR_RETURN(const MemoryState state, destination.device.State());
  Result<DeviceBuffer> buffer = OutOfMemory("");
  if (device.total() <= state.free_bytes) buffer = destination.device.Allocate(device.total());
  if (!buffer.ok()) {
    if (buffer.status().code() != StatusCode::kOutOfMemory) return buffer.status();
    return OutOfMemory("the weights take " + Gb(device.total()) + ", and of the " +
                       Gb(state.total_bytes) + " of " + state.name + " " + Gb(state.free_bytes) +
                       " are free; end other programs that use it, put experts into host memory "
                       "(--expert-offload), take a smaller model, or compute with --backend cpu");
  }
  moved_ = std::move(*buffer);
  if (placement.num_on_host() > 0 && destination.pinned == nullptr) {
    return Internal("experts in host memory need a backend that reads it");
  }
  for (const int64_t size : pinned.sizes()) {
    Result<DeviceBuffer> part = destination.pinned->Allocate(size);
    if (part.status().code() == StatusCode::kOutOfMemory) {
      return OutOfMemory(std::to_string(placement.num_on_host()) + " routed experts take " +
                         Gb(pinned.total()) + " of host memory, which the system does not give (" +
                         part.status().message() + "); lower --expert-offload");
    }
    FATHOM_RETURN_IF_ERROR(part.status());
    pinned_.push_back(std::move(*part));
  }

  std::vector<WeightCopy> copies;
  device = DeviceArena();
  pinned = PinnedArenas();
  TensorVisitor(placement, [&](Bytes bytes, bool on_host) {
    const Arenas::Place place = (on_host ? pinned : device).Add(bytes.size());
    const DeviceBuffer& arena = on_host ? pinned_[place.arena] : moved_;
    std::byte* const to = arena.data() + place.offset;
    if (!bytes.empty()) {
      copies.push_back({bytes, to, on_host ? destination.pinned : &destination.device});
    }
    return static_cast<const std::byte*>(to);
  }).Visit(*this);
  const Status status = writer.Write(copies, progress);
  widened_.clear();
  return status;
}

}  // namespace fathom
