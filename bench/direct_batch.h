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
#include "engine/engine_core.h"
#include "engine/step_builder.h"
#include "model/model.h"

namespace fathom::bench {

class DirectBatch {
 public:
  // Backend, threads, numerics, cache formats and rows of a step as in the engine's options.
  // `checkpoint` must outlive the batch. Room for `max_sequences` of `max_positions` tokens each.
  static Result<std::unique_ptr<DirectBatch>> Create(const Checkpoint& checkpoint,
                                                     const LocalEngineOptions& options,
                                                     int max_sequences, int64_t max_positions);

  // Forgets what it had and computes all but the last token of each sequence (two tokens or more).
  Status Start(std::vector<std::vector<TokenId>> sequences);
  // One forward pass over the last token of every sequence, with logits. `forward_ms` is the time
  // of the pass alone.
  Status Step(double* forward_ms);
  // Of the last step: [sequences, vocabulary].
  [[nodiscard]] std::span<const float> logits() const { return logits_; }
  // What comes next in each sequence, after a step.
  void Append(std::span<const TokenId> tokens);

 private:
  DirectBatch() = default;
  Status Forward(std::span<const ScheduledRows> rows, double* forward_ms);

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<BlockManager> manager_;
  std::unique_ptr<CacheMemory> memory_;
  std::unique_ptr<StepBuilder> builder_;
  std::vector<ScheduledRequest> sequences_;
  std::vector<ScheduledRows> rows_;
  std::vector<float> logits_;
};

}  // namespace fathom::bench
