// DevicePlan: a StepPlan whose arrays the device reads.
#pragma once

#include "backend/cuda/staging.h"
#include "backend/step_plan.h"

namespace fathom::cuda {

// One row of the step; `sequence` is -1 for a row of none.
struct RowOfStep {
  int32_t sequence = -1;
  Position position = 0;
};

// An entry that ends in the step; `sequence` is -1 for none.
struct EndingEntry {
  int32_t sequence = -1;
  int32_t entry = 0;
};
struct EndingList {
  const EndingEntry* entries = nullptr;  // [count], in CompressInsert's order
  int count = 0;
};

// Pointers are the device's; passed to kernels by value.
struct DevicePlan {
  int num_rows = 0;
  const RowOfStep* rows = nullptr;          // [num_rows]
  const SequenceRows* sequences = nullptr;  // [sequences]
  // By class, one table per sequence, with blocks of the device; null where the plan has none.
  const BlockTable* tables[kNumCacheClasses] = {};
  EndingList ending[2];  // as StepPlan::anchors, at least as many

  [[nodiscard]] constexpr const BlockTable* TablesFor(CacheKind kind) const {
    return tables[static_cast<int>(ClassOf(kind))];
  }
};

// The plan's arrays that operations are given as spans of their own.
struct DeviceOperands {
  TokenId* token_ids = nullptr;  // RunsBehind writes some
  const Position* positions = nullptr;
  const Position* anchors[2] = {};
  const int* logits_rows = nullptr;
};

// What the addresses of a copy follow from, for copies that begin at the same one.
struct PlanShape {
  size_t rows = 0;
  size_t sequences = 0;
  size_t tables[kNumCacheClasses] = {};
  size_t ending[2] = {};
  size_t anchors[2] = {};
  size_t logits_rows = 0;

  friend bool operator==(const PlanShape&, const PlanShape&) = default;
};

struct PlanCopy {
  DevicePlan plan;
  DeviceOperands operands;
  PlanShape shape;
};

// Copies a plan in one piece. Arrays of rows come first and block numbers last, so that the
// addresses of token ids and positions follow from the number of rows, and all but those of block
// numbers from the shape.
Result<PlanCopy> CopyPlan(const StepPlan& plan, StagingRing& ring);

}  // namespace fathom::cuda
