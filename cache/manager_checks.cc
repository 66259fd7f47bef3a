#include "cache/manager_checks.h"

#include <map>

namespace fathom {
namespace {

std::string Name(size_t c, int64_t number) {
  return "class " + std::to_string(c) + " number " + std::to_string(number);
}

}  // namespace

std::string ContradictionIn(const BlockManager& manager, std::span<const SequenceId> sequences) {
  const BlockPool& pool = manager.pool();
  const CacheLayout& layout = manager.planner().layout();
  std::map<int64_t, int64_t> spans;  // begin and end of blocks in use, in bytes
  std::array<BlockPool::ClassUse, kNumCacheClasses> want{};
  std::vector<bool> in_use(static_cast<size_t>(pool.num_blocks()));
  for (size_t c = 0; c < kNumCacheClasses; ++c) {
    const auto cache_class = static_cast<CacheClass>(c);
    std::map<int32_t, int32_t> holders;
    for (const SequenceId id : sequences) {
      const BlockTable table = manager.Table(id, cache_class);
      for (int64_t i = 0; i < table.num_blocks; ++i) {
        if (table.blocks[i] != kNoBlock) ++holders[table.blocks[i]];
      }
    }
    want[c].in_use = static_cast<int64_t>(holders.size());
    for (const auto& [number, count] : holders) {
      const BlockId block = pool.FromNumber(number);
      if (block < 0 || block >= pool.num_blocks()) return Name(c, number) + " is no block";
      in_use[static_cast<size_t>(block)] = true;
      if (pool.Number(block) != number) return Name(c, number) + " is not its block's number";
      if (pool.ClassOfBlock(block) != cache_class) return Name(c, number) + " is of another class";
      if (pool.refs(block) != count) {
        return Name(c, number) + " has " + std::to_string(pool.refs(block)) + " references, " +
               std::to_string(count) + " holders";
      }
      const int64_t begin = number * pool.unit_bytes();
      const int64_t end = begin + layout.BlockBytes(cache_class);
      const int64_t slab_bytes = manager.planner().slab_bytes();
      if (begin / slab_bytes != (end - 1) / slab_bytes || end > pool.memory_bytes()) {
        return Name(c, number) + " is not inside a slab";
      }
      if (!spans.emplace(begin, end).second) return Name(c, number) + " begins where another does";
    }
  }
  int64_t last_end = 0;
  for (const auto& [begin, end] : spans) {
    if (begin < last_end) return "blocks overlap at byte " + std::to_string(begin);
    last_end = end;
  }

  const int64_t ids_per_slab = pool.num_blocks() / pool.num_slabs();
  int64_t free_slabs = 0;
  for (int64_t slab = 0; slab < pool.num_slabs(); ++slab) {
    const CacheClass owner = pool.OwnerOf(static_cast<int32_t>(slab));
    const bool lent = static_cast<int>(owner) >= 0;
    free_slabs += lent ? 0 : 1;
    const int64_t num_blocks = lent ? manager.planner().BlocksPerSlab(owner) : 0;
    int64_t num_taken = 0;
    for (int64_t i = 0; i < ids_per_slab; ++i) {
      const auto block = static_cast<BlockId>(slab * ids_per_slab + i);
      const bool taken = pool.refs(block) > 0 || pool.leases(block) > 0;
      if (taken && i >= num_blocks) return "block beyond its slab's blocks is held";
      if (pool.refs(block) > 0 && !in_use[static_cast<size_t>(block)]) {
        return "block " + std::to_string(block) + " has references and no holder";
      }
      num_taken += taken ? 1 : 0;
      if (i >= num_blocks) continue;
      BlockPool::ClassUse& use = want[static_cast<size_t>(owner)];
      if (!taken) ++use.free;
      if (taken && pool.refs(block) == 0) ++use.cached;
    }
    if (lent && num_taken == 0) return "slab " + std::to_string(slab) + " is lent and empty";
  }
  if (free_slabs != pool.num_free_slabs()) return "count of free slabs";
  for (size_t c = 0; c < kNumCacheClasses; ++c) {
    const BlockPool::ClassUse use = pool.Use(static_cast<CacheClass>(c));
    if (use.in_use != want[c].in_use || use.cached != want[c].cached || use.free != want[c].free) {
      return "class " + std::to_string(c) + ": " + std::to_string(use.in_use) + " in use, " +
             std::to_string(use.cached) + " cached, " + std::to_string(use.free) +
             " free; counted " + std::to_string(want[c].in_use) + ", " +
             std::to_string(want[c].cached) + ", " + std::to_string(want[c].free);
    }
  }
  return "";
}

}  // namespace fathom
