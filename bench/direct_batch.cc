#include "bench/direct_batch.h"

#include <algorithm>
#include <string>
#include <utility>

#include "bench/workload.h"
#include "engine/cache_sizing.h"

namespace fathom::bench {

Result<std::unique_ptr<DirectBatch>> DirectBatch::Create(Checkpoint& checkpoint,
                                                         const LocalEngineOptions& options,
                                                         int max_sequences, int64_t max_positions) {
  const int max_rows = std::max(options.max_batched_tokens, max_sequences);
  FATHOM_ASSIGN_OR_RETURN(const CacheDemand cache, CacheDemandOf(checkpoint.config(), options,
                                                                 max_sequences, max_positions));
  FATHOM_ASSIGN_OR_RETURN(std::unique_ptr<LocalModel> local,
                          LocalModel::Load(checkpoint, options, max_rows, max_positions, cache));
  FATHOM_ASSIGN_OR_RETURN(std::unique_ptr<DirectBatch> batch,
                          Create(local->model(), options, max_sequences, max_positions));
  batch->own_model_ = std::move(local);
  return batch;
}

Result<std::unique_ptr<DirectBatch>> DirectBatch::Create(Model& model,
                                                         const LocalEngineOptions& options,
                                                         int max_sequences, int64_t max_positions) {
  const int max_rows = model.max_rows();
  if (max_sequences > max_rows) {
    return InvalidArgument(std::to_string(max_sequences) + " sequences, the model has room for " +
                           std::to_string(max_rows) + " rows");
  }
  std::unique_ptr<DirectBatch> batch(new DirectBatch);
  batch->model_ = &model;
  FATHOM_ASSIGN_OR_RETURN(const CachePlanner planner,
                          PlannerFor(model.config(), options.numerics, options.cache_dtypes));
  BlockManagerOptions cache;
  cache.max_sequences = max_sequences;
  cache.max_positions = max_positions;
  cache.max_step_positions = max_rows;
  cache.prefix_caching = false;
  const int64_t slabs = planner.BytesFor(max_sequences, max_positions) / planner.slab_bytes();
  FATHOM_ASSIGN_OR_RETURN(batch->manager_, BlockManager::Create(planner, slabs, cache));
  FATHOM_ASSIGN_OR_RETURN(
      batch->memory_,
      CacheMemory::Create(planner.layout(), batch->manager_->pool(), model.backend().memory()));
  batch->builder_ = std::make_unique<StepBuilder>(max_rows, max_sequences, batch->memory_->pages());
  return batch;
}

Status DirectBatch::Start(std::vector<std::vector<TokenId>> sequences) {
  for (const ScheduledRequest& s : sequences_) manager_->Release(s.sequence);
  sequences_.clear();
  logits_.resize(sequences.size() * static_cast<size_t>(model_->config().vocab_size));
  for (std::vector<TokenId>& tokens : sequences) {
    const auto known = static_cast<int64_t>(tokens.size());
    if (known < 2) return InvalidArgument("a sequence of less than two tokens");
    const std::optional<SequenceId> id = manager_->Admit({}, nullptr, known);
    if (!id) return InvalidArgument("more sequences than the batch was made for");
    ScheduledRequest& s = sequences_.emplace_back();
    s.tokens = std::move(tokens);
    s.sequence = *id;
    while (s.computed < known - 1) {
      const auto n =
          static_cast<int>(std::min<int64_t>(known - 1 - s.computed, model_->max_rows()));
      const ScheduledRows rows = {&s, n, false};
      FATHOM_RETURN_IF_ERROR(Forward({&rows, 1}, nullptr));
    }
  }
  return OkStatus();
}

Status DirectBatch::Step(int num_sequences, double* forward_ms, ForwardObserver* observer) {
  rows_.clear();
  for (ScheduledRequest& s : std::span(sequences_).first(static_cast<size_t>(num_sequences))) {
    rows_.push_back({&s, 1, true});
  }
  return Forward(rows_, forward_ms, observer);
}

void DirectBatch::Append(std::span<const TokenId> tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) sequences_[i].tokens.push_back(tokens[i]);
}

Status DirectBatch::Forward(std::span<const ScheduledRows> rows, double* forward_ms,
                            ForwardObserver* observer) {
  for (const ScheduledRows& r : rows) {
    if (!manager_->Extend(r.request->sequence, r.request->computed + r.num_tokens)) {
      return OutOfMemory("the batch is longer than what it was made for");
    }
  }
  FATHOM_RETURN_IF_ERROR(memory_->CarryOut(*manager_));
  const StepPlan& plan = builder_->Build(rows, *manager_);
  const auto begin = std::chrono::steady_clock::now();
  FATHOM_RETURN_IF_ERROR(
      model_->Forward(plan,
                      {logits_.data(), static_cast<int64_t>(plan.logits_rows.size()),
                       int64_t{model_->config().vocab_size}},
                      observer));
  if (forward_ms != nullptr) *forward_ms = MillisecondsSince(begin);
  for (const ScheduledRows& r : rows) {
    manager_->Commit(r.request->sequence, r.request->tokens);
    r.request->computed += r.num_tokens;
  }
  return OkStatus();
}

}  // namespace fathom::bench
