#include "cache/sequence_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <string>

namespace fathom {

Result<std::unique_ptr<SequenceCache>> SequenceCache::Create(const CacheLayout& layout,
                                                             int64_t max_positions,
                                                             int max_step_rows) {
  if (max_positions < 1 || max_positions > INT32_MAX || max_step_rows < 1) {
    return InvalidArgument("cache: need 1 <= positions <= 2^31 - 1 and at least one row per step");
  }
  std::unique_ptr<SequenceCache> cache(new SequenceCache(layout, max_positions, max_step_rows));
  FATHOM_RETURN_IF_ERROR(cache->Reserve());
  return cache;
}

SequenceCache::SequenceCache(const CacheLayout& layout, int64_t max_positions, int max_step_rows)
    : layout_(layout), max_positions_(max_positions), max_step_rows_(max_step_rows) {}

SequenceCache::~SequenceCache() {
  for (ClassMemory& memory : classes_) {
    if (memory.base != nullptr) munmap(memory.base, memory.bytes);
  }
}

Status SequenceCache::Reserve() {
  std::array<std::byte*, kNumCacheClasses> bases{};
  for (int c = 0; c < kNumCacheClasses; ++c) {
    const auto cache_class = static_cast<CacheClass>(c);
    ClassMemory& memory = classes_[static_cast<size_t>(c)];
    const int64_t per_block = CacheLayout::PositionsPerBlock(cache_class);
    const int64_t logical_blocks = (max_positions_ + per_block - 1) / per_block;
    memory.num_blocks = logical_blocks;
    if (const int window = layout_.WindowPositions(cache_class); window > 0) {
      // Window and step may both begin inside a block.
      memory.num_blocks = std::min(logical_blocks, (window + max_step_rows_) / per_block + 2);
    }
    memory.table.assign(static_cast<size_t>(logical_blocks), kNoBlock);
    memory.bytes = static_cast<size_t>(memory.num_blocks * layout_.BlockBytes(cache_class));
    if (memory.bytes == 0) continue;  // no layer has a kind of this class
    void* base = mmap(nullptr, memory.bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
      return OutOfMemory("cache: cannot reserve " + std::to_string(memory.bytes) + " bytes for " +
                         std::to_string(max_positions_) + " positions; lower --max-model-len");
    }
    memory.base = static_cast<std::byte*>(base);
    bases[static_cast<size_t>(c)] = memory.base;
  }
  views_ = layout_.Views(bases);
  Clear();
  return OkStatus();
}

void SequenceCache::Clear() {
  length_ = 0;
  for (ClassMemory& memory : classes_) {
    std::fill(memory.table.begin(), memory.table.end(), kNoBlock);
    memory.begin = memory.end = 0;
    memory.free.clear();
    memory.free.reserve(static_cast<size_t>(memory.num_blocks));
    for (int64_t id = memory.num_blocks - 1; id >= 0; --id) {
      memory.free.push_back(static_cast<int32_t>(id));
    }
  }
}

Status SequenceCache::BeginStep(Position start, Position end) {
  if (start != length_ || end <= start || end - start > max_step_rows_) {
    return InvalidArgument("cache: step [" + std::to_string(start) + ", " + std::to_string(end) +
                           ") does not follow position " + std::to_string(length_) +
                           " by at most " + std::to_string(max_step_rows_) + " rows");
  }
  if (end > max_positions_) {
    return OutOfMemory("cache: position " + std::to_string(end) +
                       " is beyond the model length of " + std::to_string(max_positions_));
  }
  for (int c = 0; c < kNumCacheClasses; ++c) {
    const auto cache_class = static_cast<CacheClass>(c);
    ClassMemory& memory = classes_[static_cast<size_t>(c)];
    const int64_t per_block = CacheLayout::PositionsPerBlock(cache_class);
    if (const int window = layout_.WindowPositions(cache_class); window > 0) {
      const int64_t first_needed = std::max<int64_t>(0, start - window + 1) / per_block;
      for (; memory.begin < std::min(first_needed, memory.end); ++memory.begin) {
        int32_t& block = memory.table[static_cast<size_t>(memory.begin)];
        memory.free.push_back(block);
        block = kNoBlock;
      }
    }
    for (const int64_t want = (end + per_block - 1) / per_block; memory.end < want; ++memory.end) {
      FATHOM_CHECK(!memory.free.empty(), "window and step fit the reserved blocks");
      memory.table[static_cast<size_t>(memory.end)] = memory.free.back();
      memory.free.pop_back();
    }
  }
  length_ = end;
  return OkStatus();
}

BlockTable SequenceCache::Table(CacheClass cache_class) const {
  const ClassMemory& memory = classes_[static_cast<size_t>(cache_class)];
  return {memory.table.data(), static_cast<int64_t>(memory.table.size())};
}

int64_t SequenceCache::NumBlocks(CacheClass cache_class) const {
  const ClassMemory& memory = classes_[static_cast<size_t>(cache_class)];
  return memory.end - memory.begin;
}

}  // namespace fathom
