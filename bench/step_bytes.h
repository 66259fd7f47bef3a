// StepBytes: how many bytes of weights and cache a step has to read, whatever kernels do.
//
// Weights are counted as stored, each once a step: all dense ones, the head where logits are
// wanted, a row of the embedding (and of hash tables) per token, and the routed experts that the
// router chose. Cache entries are counted once a step and sequence: the window in front of the
// step, the compressed entries that its queries attend to and, where there are more than top-k, all
// index keys. Activations are not counted: they stay in caches. Single-threaded.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/step_plan.h"
#include "cache/cache_layout.h"
#include "checkpoint/config.h"
#include "model/model.h"

namespace fathom::bench {

class StepBytes final : public ForwardObserver {
 public:
  StepBytes(const ModelConfig& config, const CacheLayout& layout);

  // Forgets the experts seen so far. To be called in front of every step.
  void BeginStep();
  [[nodiscard]] bool Wants(Observed what) const override { return what == Observed::kRoute; }
  void OnRoute(int layer, TensorView<const int32_t> experts,
               TensorView<const float> weights) override;

  // Of the step since BeginStep, of `num_rows` tokens.
  [[nodiscard]] int64_t WeightBytes(int num_rows, bool has_logits) const;
  // Different experts of all layers together.
  [[nodiscard]] int64_t num_experts() const { return num_experts_; }
  [[nodiscard]] int64_t expert_bytes() const { return expert_bytes_; }  // of one routed expert
  // Entries that `num_rows` tokens of one sequence from position `start` on read.
  [[nodiscard]] int64_t CacheBytes(int64_t start, int num_rows) const;

 private:
  ModelConfig config_;
  CacheLayout layout_;
  int64_t dense_bytes_ = 0;  // without head, embedding and routed experts
  int64_t head_bytes_ = 0;
  int64_t row_bytes_ = 0;  // of tables of which each token reads a row
  int64_t expert_bytes_ = 0;
  int64_t num_experts_ = 0;
  std::vector<uint8_t> seen_;  // [layers, experts]
};

}  // namespace fathom::bench
