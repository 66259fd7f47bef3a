#include "backend/cuda/device_plan.h"

#include <cstring>

#include "backend/memory_layout.h"

namespace fathom::cuda {
Result<DevicePlan> CopyPlan(const StepPlan& plan, StagingRing& ring) {
  const auto num_sequences = static_cast<int64_t>(plan.sequences.size());
  constexpr int64_t kAlignment = 16;
  MemoryLayout layout(kAlignment);
  const int64_t rows_at = layout.Add<RowOfStep>(plan.num_rows());
  const int64_t sequences_at = layout.Add<SequenceRows>(num_sequences);
  int64_t tables_at[kNumCacheClasses] = {};
  int64_t blocks_at[kNumCacheClasses] = {};
  for (size_t c = 0; c < kNumCacheClasses; ++c) {
    int64_t num_blocks = 0;
    for (const BlockTable& table : plan.tables[c]) num_blocks += table.num_blocks;
    tables_at[c] = layout.Add<BlockTable>(static_cast<int64_t>(plan.tables[c].size()));
    blocks_at[c] = layout.Add<int32_t>(num_blocks);
  }
  FATHOM_ASSIGN_OR_RETURN(const StagingRing::Place place, ring.Reserve(layout.bytes()));

  DevicePlan device;
  device.num_rows = plan.num_rows();
  auto* rows = reinterpret_cast<RowOfStep*>(place.host + rows_at);
  for (int i = 0; i < plan.num_rows(); ++i) rows[i] = {};
  for (size_t s = 0; s < plan.sequences.size(); ++s) {
    const SequenceRows& sequence = plan.sequences[s];
    for (int i = 0; i < sequence.num_rows; ++i) {
      rows[sequence.first_row + i] = {static_cast<int32_t>(s), sequence.start + i};
    }
  }
  device.rows = reinterpret_cast<const RowOfStep*>(place.device + rows_at);
  if (!plan.sequences.empty()) {
    std::memcpy(place.host + sequences_at, plan.sequences.data(), plan.sequences.size_bytes());
  }
  device.sequences = reinterpret_cast<const SequenceRows*>(place.device + sequences_at);
  for (size_t c = 0; c < kNumCacheClasses; ++c) {
    if (plan.tables[c].empty()) continue;
    auto* tables = reinterpret_cast<BlockTable*>(place.host + tables_at[c]);
    int64_t at = blocks_at[c];
    for (const BlockTable& table : plan.tables[c]) {
      const int64_t bytes = table.num_blocks * static_cast<int64_t>(sizeof(int32_t));
      if (bytes > 0) std::memcpy(place.host + at, table.blocks, static_cast<size_t>(bytes));
      *tables++ = {reinterpret_cast<const int32_t*>(place.device + at), table.num_blocks,
                   table.first};
      at += bytes;
    }
    device.tables[c] = reinterpret_cast<const BlockTable*>(place.device + tables_at[c]);
  }
  FATHOM_RETURN_IF_ERROR(ring.Send(place));
  return device;
}

}  // namespace fathom::cuda
