// DirectBatch: a model computing one token of many sequences at once, with nothing around it.
//
// No scheduler, no requests, no samplers: what an engine's throughput is measured against. It also
// has no business choosing tokens; whoever drives it says which come next. Single-threaded.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "cache/cache_memory.h"
#include "checkpoint/checkpoint.h"
#include "engine/local_model.h"
#include "engine/step_builder.h"

namespace fathom::bench {

class DirectBatch {
 public:
  // Backend, threads, numerics, cache formats and rows of a step as in the engine's options.
  // `checkpoint` must outlive the batch. Room for `max_sequences` of `max_positions` tokens each.
  static Result<std::unique_ptr<DirectBatch>> Create(Checkpoint& checkpoint,
                                                     const LocalEngineOptions& options,
                                                     int max_sequences, int64_t max_positions);
  // The same on a model that is there already and must outlive the batch; at most as many sequences
  // as it has rows.
  static Result<std::unique_ptr<DirectBatch>> Create(Model& model,
                                                     const LocalEngineOptions& options,
                                                     int max_sequences, int64_t max_positions);

  // Forgets what it had and computes all but the last token of each sequence (two tokens or more).
  Status Start(std::vector<std::vector<TokenId>> sequences);
  // One forward pass over the last token of every sequence, with logits. `forward_ms` is the time
  // of the pass alone.
  Status Step(double* forward_ms) { return Step(static_cast<int>(sequences_.size()), forward_ms); }
  // The same over the first `num_sequences` alone.
  Status Step(int num_sequences, double* forward_ms, ForwardObserver* observer = nullptr);
  // Of the last step: [sequences of the step, vocabulary].
  [[nodiscard]] std::span<const float> logits() const { return logits_; }
  [[nodiscard]] int64_t length(int sequence) const {
    return sequences_[static_cast<size_t>(sequence)].computed;
  }
  // What comes next in each sequence of a step, after it.
  void Append(std::span<const TokenId> tokens);

 private:
  DirectBatch() = default;
  Status Forward(std::span<const ScheduledRows> rows, double* forward_ms,
                 ForwardObserver* observer = nullptr);

  std::unique_ptr<LocalModel> own_model_;  // where the batch made its model
  Model* model_ = nullptr;
  std::unique_ptr<BlockManager> manager_;
  std::unique_ptr<CacheMemory> memory_;
  std::unique_ptr<StepBuilder> builder_;
  std::vector<ScheduledRequest> sequences_;
  std::vector<ScheduledRows> rows_;
  std::vector<float> logits_;
};

}  // namespace fathom::bench
