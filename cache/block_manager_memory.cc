// Where a BlockManager's blocks come from: free memory, then what is cached and was used longest
// ago, then what can be put closer together.
#include <algorithm>

#include "cache/block_manager.h"

namespace fathom {

BlockId BlockManager::Take(CacheClass cache_class) {
  for (;;) {
    const BlockId block = pool_.Allocate(cache_class);
    if (block != kNoBlock) return block;
    if (EvictFor(cache_class)) continue;
    if (spare_only_ || (!ReleaseSpare() && !EmptySlab())) return kNoBlock;
  }
}

// Gives up the content that was used longest ago, of those whose end makes room for a block of the
// class: one of its own cached blocks, or all blocks of a slab that nobody uses.
bool BlockManager::EvictFor(CacheClass cache_class) {
  const BlockId block = pool_.OldestCached(cache_class);
  const int32_t slab = pool_.OldestDrainedSlab();
  if (block == kNoBlock && slab == kNoIndex) return false;
  if (slab == kNoIndex ||
      (block != kNoBlock && pool_.LastUsed(block) <= pool_.DrainedSince(slab))) {
    index_.Evict(block);
    ++num_evictions_;
    return true;
  }
  EvictCachedIn(slab);
  return true;
}

void BlockManager::EvictCachedIn(int32_t slab) {
  BlockId block = pool_.CachedBlockIn(slab);
  for (; block != kNoBlock; block = pool_.CachedBlockIn(slab)) {
    index_.Evict(block);
    ++num_evictions_;
  }
}

// Gives back what sequences hold and nobody counted on: what they would give back with their next
// steps anyway, and the windows of resume points that steps in preparation were to make.
bool BlockManager::ReleaseSpare() {
  bool released = false;
  for (Sequence& s : sequences_) {
    if (!s.active) continue;
    if (s.end == s.length) {
      released = ReleaseBehind(s) || released;
      continue;
    }
    for (size_t c = 0; c < kNumCacheClasses; ++c) {
      if (c == kFull || !HasClass(c)) continue;
      ClassTable& table = s.tables[c];
      const int64_t held = table.held;
      const int64_t end = FirstLive(c, s.return_to) / PerBlock(c);
      for (int64_t b = (s.length + PerBlock(c) - 1) / PerBlock(c); b < end; ++b)
        DropBlock(table, b);
      released = released || table.held < held;
    }
  }
  return released;
}

// Whether all references on the slab's blocks come from tables, which can be changed.
bool BlockManager::Movable(int32_t slab) const {
  int64_t refs = 0;
  const BlockPool::BlockRange blocks = pool_.BlocksOf(slab);
  for (BlockId b = blocks.first; b < blocks.end; ++b) refs += pool_.refs(b);
  const auto c = static_cast<size_t>(pool_.OwnerOf(slab));
  for (const Sequence& s : sequences_) {
    const ClassTable& table = s.tables[c];
    for (int64_t i = 0; i < table.count; ++i) {
      if (table.numbers[i] == kNoBlock) continue;
      refs -= pool_.SlabOf(pool_.FromNumber(table.numbers[i])) == slab ? 1 : 0;
    }
  }
  return refs == 0;
}

// When no slab is free and none drained, a class may still have more slabs than its blocks in use
// need: they lie scattered, between cached ones. Moves those of one slab together with others, so
// that what adds up (Fits) can also be had. Rare, and takes time with the size of all tables.
bool BlockManager::EmptySlab() {
  int32_t slab = kNoIndex;
  for (int32_t i = 0; i < pool_.num_slabs(); ++i) {
    const CacheClass owner = pool_.OwnerOf(i);
    const BlockPool::ClassUse use = pool_.Use(owner);
    if (use.cached + use.free < planner_.BlocksPerSlab(owner)) continue;
    if (slab != kNoIndex && pool_.InUseIn(slab) <= pool_.InUseIn(i)) continue;
    if (Movable(i)) slab = i;
  }
  if (slab == kNoIndex) return false;
  EvictCachedIn(slab);
  moving_.clear();
  set_aside_.clear();
  const BlockPool::BlockRange blocks = pool_.BlocksOf(slab);
  for (BlockId b = blocks.first; b < blocks.end; ++b) {
    if (pool_.refs(b) > 0) moving_.push_back(b);
  }
  const CacheClass owner = pool_.OwnerOf(slab);
  for (const BlockId from : moving_) {
    BlockId to = kNoBlock;
    while (to == kNoBlock) {
      to = pool_.Allocate(owner);
      if (to == kNoBlock) {
        index_.Evict(pool_.OldestCached(owner));
        ++num_evictions_;
      } else if (pool_.SlabOf(to) == slab) {
        set_aside_.push_back(to);
        to = kNoBlock;
      }
    }
    Move(owner, from, to);
  }
  for (const BlockId block : set_aside_) pool_.Unref(block);
  return true;
}

// `to` has one reference, and all of `from` in the end.
void BlockManager::Move(CacheClass cache_class, BlockId from, BlockId to) {
  const int32_t old_number = pool_.Number(from);
  const int32_t number = pool_.Number(to);
  copies_.push_back({cache_class, old_number, number});
  index_.Move(from, to);
  for (int64_t more = pool_.refs(from) - 1; more > 0; --more) pool_.Ref(to);
  for (Sequence& s : sequences_) {
    const ClassTable& table = s.tables[static_cast<size_t>(cache_class)];
    std::replace(table.numbers, table.numbers + table.count, old_number, number);
  }
  while (pool_.refs(from) > 0) pool_.Unref(from);
}

bool BlockManager::Fits(int64_t length, const PrefixMatch& match) const {
  ClassCounts blocks = planner_.MaxBlocks(length);
  const ClassCounts chunk = planner_.ChunkBlocks(options_.max_positions);
  for (size_t c = 0; c < kNumCacheClasses; ++c) {
    blocks[c] += chunk[c] + pool_.Use(static_cast<CacheClass>(c)).in_use;
  }
  // Blocks of the prefix are counted once: in use already, or now.
  for (PrefixNode node = match.node; node != kRootNode; node = index_.ParentOf(node)) {
    if (pool_.refs(index_.BlockOf(node)) > 0) --blocks[kFull];
  }
  for (const Sequence& s : sequences_) {
    if (!s.active) continue;
    const ClassCounts most = planner_.MaxBlocks(std::max(s.target, s.end));
    for (size_t c = 0; c < kNumCacheClasses; ++c) {
      blocks[c] += std::max<int64_t>(0, most[c] - s.tables[c].held);
    }
  }
  return planner_.SlabsFor(blocks) <= pool_.num_slabs();
}

}  // namespace fathom
