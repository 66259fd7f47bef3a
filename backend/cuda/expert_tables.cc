#include "backend/cuda/expert_tables.h"

#include <algorithm>
#include <string>

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
  tables_ = scratch.expert_tables;
  layers_.clear();
  layers_.reserve(static_cast<size_t>(limits.num_expert_layers));
}

Status ExpertTables::Add(std::span<const ExpertWeights> routed, const ExpertWeights& shared,
                         DeviceMemory& memory) {
  const auto before = static_cast<int64_t>(layers_.size());
  FATHOM_RETURN_IF_ERROR(Fits("layers", before + 1, limits_.num_expert_layers));
  FATHOM_RETURN_IF_ERROR(
      Fits("of a layer", static_cast<int64_t>(routed.size()), limits_.max_experts));
  FATHOM_ASSIGN_OR_RETURN(const ExpertShape shape, ShapeOf(routed, shared));
  FATHOM_RETURN_IF_ERROR(Fits("width", shape.width, limits_.max_expert_width));
  ExpertWeights* const table = tables_ + before * (int64_t{limits_.max_experts} + 1);
  auto* const bytes = reinterpret_cast<std::byte*>(table);
  FATHOM_RETURN_IF_ERROR(memory.CopyIn(bytes, std::as_bytes(routed)));
  FATHOM_RETURN_IF_ERROR(
      memory.CopyIn(bytes + routed.size_bytes(), std::as_bytes(std::span(&shared, 1))));
  layers_.push_back({routed, shared, shape, table});
  return OkStatus();
}

const ExpertTables::Layer* ExpertTables::Find(std::span<const ExpertWeights> routed,
                                              const ExpertWeights& shared) const {
  for (const Layer& layer : layers_) {
    if (layer.routed.data() != routed.data() || layer.routed.size() != routed.size()) continue;
    const ExpertWeights& own = layer.shared;
    if (SameMatrix(own.w1, shared.w1) && SameMatrix(own.w2, shared.w2) &&
        SameMatrix(own.w3, shared.w3)) {
      return &layer;
    }
  }
  return nullptr;
}

}  // namespace fathom::cuda
