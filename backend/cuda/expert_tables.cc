#include "backend/cuda/expert_tables.h"

#include <algorithm>
#include <string>
#include <utility>

#include "backend/cuda/tile_products.h"

namespace fathom::cuda {
namespace {

// Whether the tile kernels take an expert.
bool ExpertHasTiles(const ExpertWeights& e) {
  for (const WeightView* w : {&e.w1, &e.w2, &e.w3}) {
    if (!HasTiles(*w) || !w->quantised()) return false;
  }
  return e.w1.dtype == e.w3.dtype;
}

bool SameMatrix(const WeightView& a, const WeightView& b) {
  return a.data == b.data && a.scale == b.scale && a.dtype == b.dtype && a.rows == b.rows &&
         a.cols == b.cols;
}

Status Fits(const char* what, int64_t value, int64_t limit) {
  if (value <= limit) return OkStatus();
  return InvalidArgument("experts: " + std::string(what) + ": " + std::to_string(value) +
                         " exceeds the prepared limit of " + std::to_string(limit));
}

bool SameExperts(std::span<const ExpertWeights> a, std::span<const ExpertWeights> b) {
  return a.data() == b.data() && a.size() == b.size();
}

// Copies the table behind all operations called before.
Status CopyTable(std::span<const ExpertWeights> routed, const ExpertWeights& shared,
                 ExpertWeights* to, DeviceMemory& memory) {
  auto* const bytes = reinterpret_cast<std::byte*>(to);
  FATHOM_RETURN_IF_ERROR(memory.CopyIn(bytes, std::as_bytes(routed)));
  return memory.CopyIn(bytes + routed.size_bytes(), std::as_bytes(std::span(&shared, 1)));
}

// Gives experts of the host their second places, one behind the other.
class Stager {
 public:
  Stager(const PinnedMemory& pinned, std::byte* to, int64_t bytes)
      : pinned_(pinned), at_(to), end_(to + bytes) {}

  // Points the expert to its second place; it stays where it is if it is not the host's, has no
  // room, or has arrays elsewhere than where the second place would have them.
  void Stage(ExpertWeights& expert) {
    WeightView* const matrices[] = {&expert.w1, &expert.w2, &expert.w3};
    const std::byte* at = at_;
    for (const WeightView* w : matrices) {
      for (const Bytes array : {DataOf(*w), ScalesOf(*w)}) {
        if (array.empty()) continue;
        const bool aligned = reinterpret_cast<uintptr_t>(array.data()) % kAlignment == 0;
        if (!aligned || !Holds(array) || Aligned(array) > end_ - at) return;
        at += Aligned(array);
      }
    }
    for (WeightView* w : matrices) {
      const Bytes scales = ScalesOf(*w);
      w->data = Add(DataOf(*w));
      if (!scales.empty()) w->scale = reinterpret_cast<const uint8_t*>(Add(scales));
    }
  }
  // One copy for arrays that are neighbours in both places.
  std::vector<StagedCopy> TakeCopies() { return std::move(copies_); }

 private:
  using Bytes = std::span<const std::byte>;
  static constexpr int64_t kAlignment = DeviceMemory::kAlignment;

  static Bytes DataOf(const WeightView& w) {
    return {static_cast<const std::byte*>(w.data),
            static_cast<size_t>(ValueBytes(w.dtype, w.rows, w.cols))};
  }
  static Bytes ScalesOf(const WeightView& w) {
    if (w.scale == nullptr) return {};
    return std::as_bytes(
        std::span(w.scale, static_cast<size_t>(ScaleBytes(w.dtype, w.rows, w.cols))));
  }
  static int64_t Aligned(Bytes array) {
    return (static_cast<int64_t>(array.size()) + kAlignment - 1) / kAlignment * kAlignment;
  }
  [[nodiscard]] bool Holds(Bytes array) const {
    const Bytes buffer = pinned_.BufferOf(array.data());
    return !buffer.empty() &&
           static_cast<int64_t>(array.size()) <= buffer.data() + buffer.size() - array.data();
  }
  const std::byte* Add(Bytes array) {
    std::byte* const to = at_;
    at_ += Aligned(array);
    const auto bytes = static_cast<int64_t>(array.size());
    if (!copies_.empty()) {
      StagedCopy& last = copies_.back();
      // Not across buffers that happen to be neighbours.
      const bool neighbours = array.data() - last.from == to - last.to;
      if (neighbours &&
          pinned_.BufferOf(last.from).data() == pinned_.BufferOf(array.data()).data()) {
        last.bytes = to - last.to + bytes;
        return to;
      }
    }
    copies_.push_back({array.data(), to, bytes});
    return to;
  }

  const PinnedMemory& pinned_;
  std::byte* at_;
  std::byte* const end_;
  std::vector<StagedCopy> copies_;
};

}  // namespace

Result<ExpertShape> ShapeOf(std::span<const ExpertWeights> routed, const ExpertWeights& shared) {
  ExpertShape shape = {shared.w1.rows, shared.w1.quantised(), ExpertHasTiles(shared)};
  for (const ExpertWeights& e : routed) {
    shape.width = std::max(shape.width, e.w1.rows);
    shape.quantised = shape.quantised || e.w1.quantised();
    if (e.w1.quantised() != e.w3.quantised()) {
      return InvalidArgument("moe: w1 and w3 must take the same input format");
    }
    shape.tiles = shape.tiles && ExpertHasTiles(e);
  }
  return shape;
}

void ExpertTables::Reset(const BackendLimits& limits, const Scratch& scratch) {
  limits_ = limits;
  scratch_ = scratch;
  layers_.clear();
  layers_.reserve(static_cast<size_t>(limits.num_expert_layers));
}

Status ExpertTables::Add(std::span<const ExpertWeights> routed, const ExpertWeights& shared,
                         DeviceMemory& memory, const PinnedMemory& pinned) {
  const auto before = static_cast<int64_t>(layers_.size());
  FATHOM_RETURN_IF_ERROR(Fits("layers", before + 1, limits_.num_expert_layers));
  FATHOM_RETURN_IF_ERROR(
      Fits("of a layer", static_cast<int64_t>(routed.size()), limits_.max_experts));
  FATHOM_ASSIGN_OR_RETURN(const ExpertShape shape, ShapeOf(routed, shared));
  FATHOM_RETURN_IF_ERROR(Fits("width", shape.width, limits_.max_expert_width));
  const int64_t first = before * (int64_t{limits_.max_experts} + 1);
  Layer layer = {routed, shared, shape, scratch_.expert_tables + first, nullptr, nullptr, {}};
  FATHOM_RETURN_IF_ERROR(CopyTable(routed, shared, scratch_.expert_tables + first, memory));
  std::vector<uint8_t> on_host(routed.size() + 1, 0);
  for (size_t e = 0; e < routed.size(); ++e) {
    const bool there = !pinned.BufferOf(static_cast<const std::byte*>(routed[e].w1.data)).empty();
    if (!there) continue;
    on_host[e] = 1;
    layer.on_host = scratch_.experts_on_host + first;
  }
  FATHOM_RETURN_IF_ERROR(
      memory.CopyIn(reinterpret_cast<std::byte*>(scratch_.experts_on_host + first),
                    std::as_bytes(std::span(on_host))));
  if (scratch_.staged_experts != nullptr) {
    Stager stager(pinned, scratch_.staged_experts,
                  limits_.host_experts_per_layer * limits_.host_expert_bytes);
    std::vector<ExpertWeights> staged(routed.begin(), routed.end());
    for (ExpertWeights& expert : staged) stager.Stage(expert);
    layer.copies = stager.TakeCopies();
    if (!layer.copies.empty()) {
      layer.staged_table = scratch_.staged_tables + first;
      FATHOM_RETURN_IF_ERROR(CopyTable(staged, shared, scratch_.staged_tables + first, memory));
    }
  }
  layers_.push_back(std::move(layer));
  return OkStatus();
}

const ExpertTables::Layer* ExpertTables::Find(std::span<const ExpertWeights> routed,
                                              const ExpertWeights& shared) const {
  for (const Layer& layer : layers_) {
    const ExpertWeights& own = layer.shared;
    if (SameExperts(layer.routed, routed) && SameMatrix(own.w1, shared.w1) &&
        SameMatrix(own.w2, shared.w2) && SameMatrix(own.w3, shared.w3)) {
      return &layer;
    }
  }
  return nullptr;
}

const ExpertTables::Layer* ExpertTables::Find(std::span<const ExpertWeights> routed) const {
  for (const Layer& layer : layers_) {
    if (SameExperts(layer.routed, routed)) return &layer;
  }
  return nullptr;
}

}  // namespace fathom::cuda
