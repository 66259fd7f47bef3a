// StepBuilder: a StepPlan from scheduled rows.
//
// All arrays of the plan lie in one buffer of fixed size, at places that do not move from step to
// step; block numbers stay in the block manager's tables, one row per sequence slot. Owned by the
// engine thread.
#pragma once

#include <memory>
#include <span>

#include "backend/step_plan.h"
#include "cache/block_manager.h"
#include "engine/scheduler.h"

namespace fathom {

class StepBuilder {
 public:
  // `pages` of the cache memory must stay valid.
  StepBuilder(int max_rows, int max_sequences, std::span<const LayerPages> pages);

  // The plan is valid until the next call; it borrows from this object and from the manager's
  // tables. At most max_rows tokens and max_sequences requests.
  [[nodiscard]] const StepPlan& Build(std::span<const ScheduledRows> rows,
                                      const BlockManager& manager);

 private:
  int max_rows_;
  int max_sequences_;
  std::unique_ptr<std::byte[]> buffer_;
  TokenId* token_ids_ = nullptr;       // [max_rows]
  Position* positions_ = nullptr;      // [max_rows]
  SequenceRows* sequences_ = nullptr;  // [max_sequences]
  int* logits_rows_ = nullptr;         // [max_rows]
  TokenSource* sources_ = nullptr;     // [max_sequences]
  BlockTable* tables_ = nullptr;       // [classes, max_sequences]
  StepPlan plan_;
};

}  // namespace fathom
