#include "backend/cuda/device_plan.h"

#include <algorithm>
#include <cstring>

#include "backend/memory_layout.h"
#include "backend/ops/compress_insert.h"

namespace fathom::cuda {
namespace {

constexpr int kRatios[] = {4, 128};
static_assert(AnchorsOf(kRatios[0]) == 0 && AnchorsOf(kRatios[1]) == 1);

PlanShape ShapeOf(const StepPlan& plan) {
  PlanShape shape = {};
  shape.rows = plan.token_ids.size();
  shape.sequences = plan.sequences.size();
  for (size_t c = 0; c < kNumCacheClasses; ++c) shape.tables[c] = plan.tables[c].size();
  for (size_t r = 0; r < std::size(kRatios); ++r) {
    int64_t ending = 0;
    for (const SequenceRows& rows : plan.sequences) ending += EntriesEnding(rows, kRatios[r]).count;
    shape.anchors[r] = plan.anchors[r].size();
    shape.ending[r] = std::max(static_cast<size_t>(ending), shape.anchors[r]);
  }
  shape.logits_rows = plan.logits_rows.size();
  return shape;
}

// Where arrays begin, in bytes behind the plan's begin.
struct Offsets {
  int64_t rows, token_ids, positions, logits_rows, sequences;
  int64_t ending[2], anchors[2];
  int64_t tables[kNumCacheClasses], blocks[kNumCacheClasses];
  int64_t bytes;

  Offsets(const StepPlan& plan, const PlanShape& shape) {
    constexpr int64_t kAlignment = 16;
    MemoryLayout layout(kAlignment);
    const auto add = [&]<typename T>(int64_t& at, const T* /*element*/, size_t count) {
      at = layout.Add<T>(static_cast<int64_t>(count));
    };
    add(rows, static_cast<RowOfStep*>(nullptr), shape.rows);
    add(token_ids, static_cast<TokenId*>(nullptr), shape.rows);
    add(positions, static_cast<Position*>(nullptr), plan.positions.size());
    add(logits_rows, static_cast<int*>(nullptr), shape.logits_rows);
    add(sequences, static_cast<SequenceRows*>(nullptr), shape.sequences);
    for (size_t r = 0; r < std::size(kRatios); ++r) {
      add(ending[r], static_cast<EndingEntry*>(nullptr), shape.ending[r]);
      add(anchors[r], static_cast<Position*>(nullptr), shape.anchors[r]);
    }
    for (size_t c = 0; c < kNumCacheClasses; ++c) {
      add(tables[c], static_cast<BlockTable*>(nullptr), shape.tables[c]);
    }
    for (size_t c = 0; c < kNumCacheClasses; ++c) {
      int64_t num_blocks = 0;
      for (const BlockTable& table : plan.tables[c]) num_blocks += table.num_blocks;
      add(blocks[c], static_cast<int32_t*>(nullptr), static_cast<size_t>(num_blocks));
    }
    bytes = layout.bytes();
  }
};

template <typename T>
void Put(std::span<const T> from, std::byte* to) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size_bytes());
}

void PutRows(const StepPlan& plan, RowOfStep* rows) {
  std::fill_n(rows, plan.num_rows(), RowOfStep());
  for (size_t s = 0; s < plan.sequences.size(); ++s) {
    const SequenceRows& sequence = plan.sequences[s];
    for (int i = 0; i < sequence.num_rows; ++i) {
      rows[sequence.first_row + i] = {static_cast<int32_t>(s), sequence.start + i};
    }
  }
}

void PutEnding(const StepPlan& plan, int ratio, size_t count, EndingEntry* entries) {
  EndingEntry* entry = entries;
  for (size_t s = 0; s < plan.sequences.size(); ++s) {
    const EndingEntries ending = EntriesEnding(plan.sequences[s], ratio);
    for (int j = 0; j < ending.count; ++j) {
      *entry++ = {static_cast<int32_t>(s), ending.first + j};
    }
  }
  std::fill(entry, entries + count, EndingEntry());
}

}  // namespace

Result<PlanCopy> CopyPlan(const StepPlan& plan, StagingRing& ring) {
  PlanCopy copy;
  copy.shape = ShapeOf(plan);
  const Offsets at(plan, copy.shape);
  FATHOM_ASSIGN_OR_RETURN(const StagingRing::Place place, ring.Reserve(at.bytes));
  const auto host = [&]<typename T>(int64_t offset, const T* /*element*/) {
    return reinterpret_cast<T*>(place.host + offset);
  };
  const auto point = [&]<typename T>(const T*& to, int64_t offset) {
    to = reinterpret_cast<const T*>(place.device + offset);
  };
  DevicePlan& device = copy.plan;
  device.num_rows = plan.num_rows();
  PutRows(plan, host(at.rows, device.rows));
  Put(plan.token_ids, place.host + at.token_ids);
  Put(plan.positions, place.host + at.positions);
  Put(plan.logits_rows, place.host + at.logits_rows);
  Put(plan.sequences, place.host + at.sequences);
  point(device.rows, at.rows);
  copy.operands.token_ids = reinterpret_cast<TokenId*>(place.device + at.token_ids);
  point(copy.operands.positions, at.positions);
  point(copy.operands.logits_rows, at.logits_rows);
  point(device.sequences, at.sequences);
  for (size_t r = 0; r < std::size(kRatios); ++r) {
    EndingList& ending = device.ending[r];
    ending.count = static_cast<int>(copy.shape.ending[r]);
    PutEnding(plan, kRatios[r], copy.shape.ending[r], host(at.ending[r], ending.entries));
    Put(plan.anchors[r], place.host + at.anchors[r]);
    point(ending.entries, at.ending[r]);
    point(copy.operands.anchors[r], at.anchors[r]);
  }
  for (size_t c = 0; c < kNumCacheClasses; ++c) {
    if (plan.tables[c].empty()) continue;
    BlockTable* tables = host(at.tables[c], device.tables[c]);
    int64_t blocks = at.blocks[c];
    for (const BlockTable& table : plan.tables[c]) {
      const int64_t bytes = table.num_blocks * static_cast<int64_t>(sizeof(int32_t));
      if (bytes > 0) std::memcpy(place.host + blocks, table.blocks, static_cast<size_t>(bytes));
      *tables++ = {reinterpret_cast<const int32_t*>(place.device + blocks), table.num_blocks,
                   table.first};
      blocks += bytes;
    }
    point(device.tables[c], at.tables[c]);
  }
  FATHOM_RETURN_IF_ERROR(ring.Send(place));
  return copy;
}

}  // namespace fathom::cuda
