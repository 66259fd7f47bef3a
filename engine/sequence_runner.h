// SequenceRunner: one sequence, its cache and the steps that extend it.
//
// Turns "compute these tokens next" into a StepPlan and runs the model. Owned by one thread.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/step_plan.h"
#include "base/status.h"
#include "cache/block_manager.h"
#include "cache/cache_memory.h"
#include "model/model.h"

namespace fathom {

// The cache geometry of a model's main layers, and of its MTP blocks behind them where asked for.
CacheGeometry CacheGeometryOf(const ModelConfig& config, bool with_mtp = false);

class SequenceRunner {
 public:
  enum class Logits { kNone, kLast, kAll };

  // `model` must outlive the runner. Reserves a cache for max_positions tokens in the memory of its
  // backend, in the formats that go with the numerics or in others (kInvalidArgument when they
  // cannot go with them).
  static Result<std::unique_ptr<SequenceRunner>> Create(Model& model, Numerics numerics,
                                                        int64_t max_positions,
                                                        std::optional<CacheDTypes> dtypes = {});

  // Computes `tokens` at the positions that follow, in one step (at most model.max_rows() tokens).
  // An error leaves the sequence as it was. `logits` receives [vocab] of the last token, [tokens,
  // vocab], or nothing.
  Status Step(std::span<const TokenId> tokens, Logits wanted, std::span<float> logits,
              ForwardObserver* observer = nullptr);
  // A layer alone on a given residual stream [tokens, hc_mult, D], at the positions that follow;
  // the cache of the other layers is not written. For checks.
  Status StepLayer(int layer, std::span<const TokenId> tokens, TensorView<float> hc,
                   ForwardObserver* observer = nullptr);

  // Goes on by `num_positions` that are not computed: their entries, window and states included,
  // are copies of the sequence's own from its beginning on, again and again. For benchmarks, where
  // what entries say does not matter but how many there are and that they differ. Length and
  // `num_positions` must be whole blocks (kBlockPositions) above 0: kInvalidArgument, with nothing
  // changed, as beyond the longest length.
  Status Repeat(int64_t num_positions);

  // Forgets the sequence.
  void Clear();
  [[nodiscard]] Position length() const {
    return static_cast<Position>(manager_->length(sequence_));
  }
  [[nodiscard]] const BlockManager& cache() const { return *manager_; }

 private:
  SequenceRunner(Model& model, std::unique_ptr<BlockManager> manager,
                 std::unique_ptr<CacheMemory> memory, int64_t max_positions);
  // Makes room in the cache and describes the step; the plan borrows from this object.
  Result<StepPlan> BeginStep(std::span<const TokenId> tokens, Logits wanted);
  // Settles what BeginStep began.
  Status EndStep(Status status);
  // Takes the room back that was made for a step when copies of blocks went wrong.
  Status EndCopies(Status status);

  Model& model_;
  std::unique_ptr<BlockManager> manager_;
  std::unique_ptr<CacheMemory> memory_;
  int64_t max_positions_;
  SequenceId sequence_ = -1;
  SequenceRows rows_;
  std::vector<Position> positions_;
  std::vector<int> logits_rows_;
  std::array<BlockTable, kNumCacheClasses> tables_{};
};

}  // namespace fathom
