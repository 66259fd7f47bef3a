// OpCache: the cache of one sequence that stands at a position, with random entries, and the plan
// of the step that computes its next rows.
//
// Two layers, of ratio 4 and 128, in the official formats. Blocks and tables are the block
// manager's, as in a real step. The step is never committed, so operations can be run on it over
// and over. Single-threaded.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "backend/step_plan.h"
#include "base/status.h"
#include "cache/block_manager.h"
#include "cache/cache_memory.h"
#include "checkpoint/config.h"

namespace fathom::bench {

class OpCache {
 public:
  static constexpr int kC4Layer = 0;
  static constexpr int kC128Layer = 1;

  // `num_rows` tokens behind `context` ones. What the host cannot write in `memory` is made beside
  // it and copied in.
  static Result<std::unique_ptr<OpCache>> Create(const ModelConfig& config, DeviceMemory& memory,
                                                 int64_t context, int num_rows);

  [[nodiscard]] const StepPlan& plan() const { return plan_; }
  [[nodiscard]] const PageView& Pages(int layer, CacheKind kind) const {
    return plan_.Pages(layer, kind);
  }
  [[nodiscard]] int64_t EntryBytes(CacheKind kind) const {
    return manager_->planner().layout().Format(kind).entry_bytes();
  }

 private:
  OpCache() = default;
  // Entries [begin, end), in pages that the host writes.
  void Fill(CacheKind kind, const PageView& pages, int64_t begin, int64_t end);

  std::unique_ptr<BlockManager> manager_;
  std::unique_ptr<CacheMemory> memory_;
  std::vector<TokenId> ids_;
  std::vector<Position> positions_;
  SequenceRows rows_;
  std::array<BlockTable, kNumCacheClasses> tables_{};
  StepPlan plan_;
};

}  // namespace fathom::bench
