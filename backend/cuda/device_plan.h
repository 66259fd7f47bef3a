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

// Pointers are the device's; passed to kernels by value.
struct DevicePlan {
  int num_rows = 0;
  const RowOfStep* rows = nullptr;          // [num_rows]
  const SequenceRows* sequences = nullptr;  // [sequences]
  // By class, one table per sequence, with blocks of the device; null where the plan has none.
  const BlockTable* tables[kNumCacheClasses] = {};

  [[nodiscard]] constexpr const BlockTable* TablesFor(CacheKind kind) const {
    return tables[static_cast<int>(ClassOf(kind))];
  }
};

// Copies rows, sequences and tables of all classes in one piece.
Result<DevicePlan> CopyPlan(const StepPlan& plan, StagingRing& ring);

}  // namespace fathom::cuda
