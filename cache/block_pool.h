// BlockPool: who holds which page block, in memory cut into slabs.
//
// Slabs are lent to one class at a time, cut into its page blocks, and returned when all of those
// are free. A block is held by references (sequences that use it) and leases (the prefix index,
// which may want its content again):
//
//   free      no reference, no lease: anyone of the class may have it
//   cached    leases only: keeps its content, and may be evicted by whoever drops the leases
//   in use    references
//
// Pure accounting: it never touches the memory. All memory is allocated by the constructor;
// operations are O(1). Single-threaded: owned by the engine.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cache/index_list.h"
#include "cache/planner.h"

namespace fathom {

// A block of any class: slab * blocks per slab of the largest class + place in the slab.
using BlockId = int32_t;

class BlockPool {
 public:
  // `num_slabs` of planner.slab_bytes() each; at most MaxSlabs(planner).
  BlockPool(const CachePlanner& planner, int64_t num_slabs);

  // What 31 bits of block table can address.
  [[nodiscard]] static int64_t MaxSlabs(const CachePlanner& planner);

  // A block with one reference: from the fullest slab of the class that has room, so that other
  // slabs drain, else from a free slab. kNoBlock when there is neither.
  BlockId Allocate(CacheClass cache_class);
  void Ref(BlockId block);
  void Unref(BlockId block);
  void Lease(BlockId block);
  void Unlease(BlockId block);
  // A cached block counts as used now; no effect on others.
  void Touch(BlockId block);

  [[nodiscard]] int32_t refs(BlockId block) const { return At(block).refs; }
  [[nodiscard]] int32_t leases(BlockId block) const { return At(block).leases; }
  [[nodiscard]] CacheClass ClassOfBlock(BlockId block) const;

  // The cached block of the class that was used longest ago; kNoBlock: none.
  [[nodiscard]] BlockId OldestCached(CacheClass cache_class) const {
    return cached_[static_cast<size_t>(cache_class)].front();
  }
  // When a cached block was last used, in a time that counts releases.
  [[nodiscard]] uint64_t LastUsed(BlockId block) const { return At(block).tick; }
  // The slab without blocks in use that has been so longest; kNoIndex: none. Its blocks are cached
  // or free.
  [[nodiscard]] int32_t OldestDrainedSlab() const { return drained_.front(); }
  [[nodiscard]] uint64_t DrainedSince(int32_t slab) const {
    return slabs_[static_cast<size_t>(slab)].drained_tick;
  }
  [[nodiscard]] CacheClass OwnerOf(int32_t slab) const;
  [[nodiscard]] int32_t SlabOf(BlockId block) const {
    return static_cast<int32_t>(block / ids_per_slab_);
  }
  // Blocks [first, end) of a slab; none where it is free.
  struct BlockRange {
    BlockId first = 0;
    BlockId end = 0;
  };
  [[nodiscard]] BlockRange BlocksOf(int32_t slab) const;
  [[nodiscard]] int32_t InUseIn(int32_t slab) const {
    return slabs_[static_cast<size_t>(slab)].in_use;
  }
  // Any cached block of the slab; kNoBlock: none.
  [[nodiscard]] BlockId CachedBlockIn(int32_t slab) const;

  // Block tables hold numbers: number * unit_bytes() is the block's offset in the memory, 64-bit.
  [[nodiscard]] int64_t unit_bytes() const { return unit_bytes_; }
  [[nodiscard]] int32_t Number(BlockId block) const;
  [[nodiscard]] BlockId FromNumber(int32_t number) const;

  [[nodiscard]] int64_t memory_bytes() const { return num_slabs() * slab_bytes_; }
  [[nodiscard]] int64_t num_slabs() const { return static_cast<int64_t>(slabs_.size()); }
  [[nodiscard]] int64_t num_free_slabs() const { return num_free_slabs_; }
  [[nodiscard]] int64_t num_blocks() const { return static_cast<int64_t>(blocks_.size()); }
  struct ClassUse {
    int64_t in_use = 0;
    int64_t cached = 0;
    int64_t free = 0;  // in slabs lent to the class
  };
  [[nodiscard]] ClassUse Use(CacheClass cache_class) const {
    return use_[static_cast<size_t>(cache_class)];
  }

 private:
  struct Block {
    int32_t refs = 0;
    int32_t leases = 0;
    uint64_t tick = 0;
  };
  struct Slab {
    int owner = -1;      // class; -1: free
    int32_t used = 0;    // blocks that are not free
    int32_t in_use = 0;  // blocks with references
    IndexList free;      // of its blocks
    uint64_t drained_tick = 0;
  };
  [[nodiscard]] const Block& At(BlockId block) const { return blocks_[static_cast<size_t>(block)]; }
  [[nodiscard]] Block& At(BlockId block) { return blocks_[static_cast<size_t>(block)]; }
  [[nodiscard]] IndexList& Bucket(int owner, int32_t used) {
    return buckets_[static_cast<size_t>(owner)][static_cast<size_t>(used)];
  }
  int32_t FullestWithRoom(int owner) const;
  bool LendSlab(int owner);
  void SetUsed(int32_t slab, int32_t used);
  void EnterCached(BlockId block);
  void LeaveCached(BlockId block);
  void Free(BlockId block);

  int64_t slab_bytes_ = 0;
  int64_t unit_bytes_ = 0;
  int64_t ids_per_slab_ = 0;
  std::array<int64_t, kNumCacheClasses> block_stride_{};  // bytes
  std::array<int32_t, kNumCacheClasses> blocks_per_slab_{};
  std::vector<Block> blocks_;
  std::vector<IndexLink> block_links_;  // of the free lists and the cached lists
  std::vector<Slab> slabs_;
  std::vector<IndexLink> slab_links_;  // of the buckets and the list of free slabs
  std::vector<IndexLink> drained_links_;
  IndexList free_slabs_;
  int64_t num_free_slabs_ = 0;
  IndexList drained_;
  // Slabs of a class by number of used blocks.
  std::array<std::vector<IndexList>, kNumCacheClasses> buckets_;
  std::array<IndexList, kNumCacheClasses> cached_;
  std::array<ClassUse, kNumCacheClasses> use_{};
  uint64_t tick_ = 0;
};

}  // namespace fathom
