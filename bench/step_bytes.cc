#include "bench/step_bytes.h"

#include <algorithm>

#include "checkpoint/inventory.h"

namespace fathom::bench {

StepBytes::StepBytes(const ModelConfig& config, const CacheLayout& layout)
    : config_(config),
      layout_(layout),
      seen_(static_cast<size_t>(config.num_layers) * static_cast<size_t>(config.num_experts)) {
  for (const PartBytes& part : InventoryOf(config)) {
    const auto bytes = static_cast<int64_t>(part.main_bytes);
    const auto per_token = static_cast<int64_t>(part.bytes_per_token);
    switch (part.part) {
      case Part::kRoutedExperts:
        expert_bytes_ = bytes / (int64_t{config.num_layers} * config.num_experts);
        break;
      case Part::kEmbedding:
        row_bytes_ += per_token;
        break;
      case Part::kHead:
        head_bytes_ += per_token;
        break;
      default:
        dense_bytes_ += per_token;
    }
  }
  // Rows of hash tables are counted among the other parts: num_experts_per_token ids of 8 bytes.
  const int64_t hash_row_bytes =
      int64_t{config.num_hash_layers} * config.num_experts_per_token * int64_t{sizeof(int64_t)};
  dense_bytes_ -= hash_row_bytes;
  row_bytes_ += hash_row_bytes;
}

void StepBytes::BeginStep() {
  std::fill(seen_.begin(), seen_.end(), uint8_t{0});
  num_experts_ = 0;
}

void StepBytes::OnRoute(int layer, TensorView<const int32_t> experts,
                        TensorView<const float> /*weights*/) {
  uint8_t* seen = seen_.data() + static_cast<ptrdiff_t>(layer) * config_.num_experts;
  for (const int32_t expert : experts.elements()) {
    num_experts_ += seen[expert] == 0;
    seen[expert] = 1;
  }
}

int64_t StepBytes::WeightBytes(int num_rows, bool has_logits) const {
  return dense_bytes_ + (has_logits ? head_bytes_ : 0) + num_rows * row_bytes_ +
         num_experts_ * expert_bytes_;
}

int64_t StepBytes::CacheBytes(int64_t start, int num_rows) const {
  const auto entry = [&](CacheKind kind) { return layout_.Format(kind).entry_bytes(); };
  const int64_t end = start + num_rows;
  int64_t bytes = 0;
  for (const int ratio : config_.compress_ratios) {
    bytes += std::min<int64_t>(start, config_.window - 1) * entry(CacheKind::kSwaKv);
    if (ratio == 0) continue;
    const int64_t visible = VisibleEntries(static_cast<Position>(end - 1), ratio);
    if (ratio != 4) {
      bytes += visible * entry(CacheKind::kC128Kv);
      continue;
    }
    const int64_t most = int64_t{num_rows} * config_.index_topk;
    bytes += std::min(visible, most) * entry(CacheKind::kC4Kv);
    if (visible > config_.index_topk) bytes += visible * entry(CacheKind::kC4IndexKeys);
  }
  return bytes;
}

}  // namespace fathom::bench
