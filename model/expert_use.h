// ExpertUse: how often each routed expert was chosen.
//
// Counted by a model that was asked to (Model::CountExpertUse), kept in a file by the engine
// (engine/expert_use_file.h), and read to decide which experts may lie in slower memory
// (model/expert_placement.h). A value; single-threaded.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/config.h"

namespace fathom {

class ExpertUse {
 public:
  // Nothing counted yet, for the main layers of such a model.
  explicit ExpertUse(const ModelConfig& config)
      : ExpertUse(config.num_layers, config.num_experts, config.num_experts_per_token) {}
  ExpertUse(int num_layers, int num_experts, int experts_per_token);

  [[nodiscard]] int num_layers() const { return num_layers_; }
  [[nodiscard]] int num_experts() const { return num_experts_; }  // of a layer
  [[nodiscard]] int experts_per_token() const { return experts_per_token_; }

  // Counts what rows chose in a layer; ids that are no expert's, which a backend tells apart, are
  // left out.
  void Add(int layer, std::span<const int32_t> experts);
  [[nodiscard]] std::span<const int64_t> layer(int layer) const {
    return std::span(counts_).subspan(Index(layer, 0), static_cast<size_t>(num_experts_));
  }
  [[nodiscard]] int64_t count(int layer, int expert) const { return counts_[Index(layer, expert)]; }
  void Set(int layer, int expert, int64_t count) { counts_[Index(layer, expert)] = count; }

 private:
  [[nodiscard]] size_t Index(int layer, int expert) const {
    return static_cast<size_t>(int64_t{layer} * num_experts_ + expert);
  }
  int num_layers_, num_experts_, experts_per_token_;
  std::vector<int64_t> counts_;  // [layers, experts]
};

}  // namespace fathom
