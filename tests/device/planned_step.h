// PlannedStep: a sequence's first rows through a model, by hand, for plans with whatever a test
// wants.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "cache/cache_memory.h"
#include "engine/cache_sizing.h"
#include "engine/sequence_runner.h"
#include "model/model.h"
#include "tests/test_data.h"

namespace fathom {

inline Checkpoint TinyA() {
  return Checkpoint::Open(ProjectPath("tests/data/tiny-a/checkpoint")).value();
}

class PlannedStep {
 public:
  PlannedStep(Backend& backend, int num_rows)
      : checkpoint_(TinyA()), model_(Model::Create(checkpoint_, backend, num_rows, 256).value()) {
    BlockManagerOptions options;
    options.max_positions = 256;
    options.max_step_positions = 256;
    options.prefix_caching = false;
    const CachePlanner planner = PlannerFor(model_->config(), Numerics::kOfficial, {}).value();
    manager_ =
        BlockManager::Create(planner, planner.BytesFor(1, 256) / planner.slab_bytes(), options)
            .value();
    memory_ = CacheMemory::Create(planner.layout(), manager_->pool(), backend.memory()).value();
    sequence_ = manager_->Admit({}, nullptr, 256).value();
    FATHOM_CHECK(manager_->Extend(sequence_, num_rows), "room for the step");
    FATHOM_CHECK(memory_->CarryOut(*manager_).ok(), "copies");
    for (int i = 0; i < num_rows; ++i) {
      tokens_.push_back((i * 31 + 7) % vocab());
      positions_.push_back(i);
    }
    rows_ = {0, num_rows, 0};
    plan.token_ids = tokens_;
    plan.positions = positions_;
    plan.sequences = {&rows_, 1};
    for (size_t c = 0; c < kNumCacheClasses; ++c) {
      tables_[c] = manager_->Table(sequence_, static_cast<CacheClass>(c));
      plan.tables[c] = {&tables_[c], 1};
    }
    plan.pages = memory_->pages();
  }
  [[nodiscard]] int vocab() const { return model_->config().vocab_size; }
  Model& model() { return *model_; }

  StepPlan plan;

 private:
  Checkpoint checkpoint_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<BlockManager> manager_;
  std::unique_ptr<CacheMemory> memory_;
  SequenceId sequence_ = -1;
  std::vector<TokenId> tokens_;
  std::vector<Position> positions_;
  SequenceRows rows_;
  std::array<BlockTable, kNumCacheClasses> tables_{};
};

}  // namespace fathom
