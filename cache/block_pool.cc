#include "cache/block_pool.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace fathom {
namespace {

constexpr int64_t kMaxNumber = std::numeric_limits<int32_t>::max();

// Bytes from one block of the class to the next in a slab, when tables count in units of `unit`.
int64_t Stride(const CachePlanner& planner, size_t c, int64_t unit) {
  return CeilDiv(planner.layout().BlockBytes(static_cast<CacheClass>(c)), unit) * unit;
}

// Whether slabs hold as many blocks as the planner counts although blocks begin at multiples of
// `unit` only.
bool UnitFits(const CachePlanner& planner, int64_t unit) {
  if (planner.slab_bytes() % unit != 0) return false;
  for (size_t c = 0; c < kNumCacheClasses; ++c) {
    const int64_t stride = Stride(planner, c, unit);
    if (stride != 0 &&
        planner.slab_bytes() / stride != planner.BlocksPerSlab(static_cast<CacheClass>(c))) {
      return false;
    }
  }
  return true;
}

// The smallest unit in which tables can address `bytes`; 0 when no unit can.
int64_t UnitFor(const CachePlanner& planner, int64_t bytes) {
  for (int64_t unit = kBlockAlignment; UnitFits(planner, unit); unit *= 2) {
    if (bytes / unit <= kMaxNumber) return unit;
  }
  return 0;
}

}  // namespace

int64_t BlockPool::MaxSlabs(const CachePlanner& planner) {
  int64_t unit = kBlockAlignment;
  while (UnitFits(planner, unit * 2)) unit *= 2;
  int64_t ids_per_slab = 1;
  for (size_t c = 0; c < kNumCacheClasses; ++c) {
    ids_per_slab = std::max(ids_per_slab, planner.BlocksPerSlab(static_cast<CacheClass>(c)));
  }
  return std::min(kMaxNumber / (planner.slab_bytes() / unit), kMaxNumber / ids_per_slab);
}

BlockPool::BlockPool(const CachePlanner& planner, int64_t num_slabs)
    : slab_bytes_(planner.slab_bytes()),
      unit_bytes_(UnitFor(planner, num_slabs * planner.slab_bytes())) {
  FATHOM_CHECK(num_slabs >= 0 && num_slabs <= MaxSlabs(planner) && unit_bytes_ > 0,
               "more slabs than block tables can address");
  for (size_t c = 0; c < kNumCacheClasses; ++c) {
    block_stride_[c] = Stride(planner, c, unit_bytes_);
    blocks_per_slab_[c] = static_cast<int32_t>(planner.BlocksPerSlab(static_cast<CacheClass>(c)));
    ids_per_slab_ = std::max<int64_t>(ids_per_slab_, blocks_per_slab_[c]);
    buckets_[c].resize(static_cast<size_t>(blocks_per_slab_[c]) + 1);
  }
  blocks_.resize(static_cast<size_t>(num_slabs * ids_per_slab_));
  block_links_.resize(blocks_.size());
  slabs_.resize(static_cast<size_t>(num_slabs));
  slab_links_.resize(slabs_.size());
  drained_links_.resize(slabs_.size());
  // From the end: the first blocks lent have the highest numbers, so that tests and daily work meet
  // offsets beyond 32 bits as soon as there are any.
  for (int64_t slab = num_slabs - 1; slab >= 0; --slab) {
    free_slabs_.PushBack(slab_links_, static_cast<int32_t>(slab));
  }
  num_free_slabs_ = num_slabs;
}

CacheClass BlockPool::ClassOfBlock(BlockId block) const { return OwnerOf(SlabOf(block)); }

CacheClass BlockPool::OwnerOf(int32_t slab) const {
  return static_cast<CacheClass>(slabs_[static_cast<size_t>(slab)].owner);
}

BlockPool::BlockRange BlockPool::BlocksOf(int32_t slab) const {
  const int owner = slabs_[static_cast<size_t>(slab)].owner;
  const auto first = static_cast<BlockId>(slab * ids_per_slab_);
  return {first, first + (owner < 0 ? 0 : blocks_per_slab_[static_cast<size_t>(owner)])};
}

BlockId BlockPool::CachedBlockIn(int32_t slab) const {
  const BlockRange blocks = BlocksOf(slab);
  for (BlockId b = blocks.first; b < blocks.end; ++b) {
    if (At(b).refs == 0 && At(b).leases > 0) return b;
  }
  return kNoBlock;
}

int32_t BlockPool::Number(BlockId block) const {
  const int32_t slab = SlabOf(block);
  const auto owner = static_cast<size_t>(slabs_[static_cast<size_t>(slab)].owner);
  const int64_t offset = slab * slab_bytes_ + block % ids_per_slab_ * block_stride_[owner];
  return static_cast<int32_t>(offset / unit_bytes_);
}

BlockId BlockPool::FromNumber(int32_t number) const {
  const int64_t offset = number * unit_bytes_;
  const int64_t slab = offset / slab_bytes_;
  const auto owner = static_cast<size_t>(slabs_[static_cast<size_t>(slab)].owner);
  return static_cast<BlockId>(slab * ids_per_slab_ + offset % slab_bytes_ / block_stride_[owner]);
}

int32_t BlockPool::FullestWithRoom(int owner) const {
  const std::vector<IndexList>& buckets = buckets_[static_cast<size_t>(owner)];
  for (size_t used = buckets.size() - 1; used-- > 0;) {
    if (!buckets[used].empty()) return buckets[used].front();
  }
  return kNoIndex;
}

bool BlockPool::LendSlab(int owner) {
  const auto c = static_cast<size_t>(owner);
  if (blocks_per_slab_[c] == 0) return false;  // no layer has a kind of this class
  const int32_t index = free_slabs_.PopFront(slab_links_);
  if (index == kNoIndex) return false;
  --num_free_slabs_;
  Slab& slab = slabs_[static_cast<size_t>(index)];
  slab.owner = owner;
  for (int32_t i = 0; i < blocks_per_slab_[c]; ++i) {
    slab.free.PushBack(block_links_, static_cast<BlockId>(index * ids_per_slab_ + i));
  }
  Bucket(owner, 0).PushBack(slab_links_, index);
  use_[c].free += blocks_per_slab_[c];
  return true;
}

BlockId BlockPool::Allocate(CacheClass cache_class) {
  const auto owner = static_cast<int>(cache_class);
  int32_t index = FullestWithRoom(owner);
  if (index == kNoIndex) {
    if (!LendSlab(owner)) return kNoBlock;
    index = FullestWithRoom(owner);
  }
  Slab& slab = slabs_[static_cast<size_t>(index)];
  const BlockId block = slab.free.PopFront(block_links_);
  SetUsed(index, slab.used + 1);
  --use_[static_cast<size_t>(owner)].free;
  ++use_[static_cast<size_t>(owner)].in_use;
  if (slab.in_use++ == 0 && slab.drained_tick != 0) {
    drained_.Remove(drained_links_, index);
    slab.drained_tick = 0;
  }
  At(block).refs = 1;
  return block;
}

void BlockPool::Ref(BlockId block) {
  Block& b = At(block);
  FATHOM_CHECK(b.refs > 0 || b.leases > 0, "a free block has no content to refer to");
  if (b.refs++ > 0) return;
  LeaveCached(block);
  const int32_t index = SlabOf(block);
  Slab& slab = slabs_[static_cast<size_t>(index)];
  ++use_[static_cast<size_t>(slab.owner)].in_use;
  if (slab.in_use++ == 0) {
    drained_.Remove(drained_links_, index);
    slab.drained_tick = 0;
  }
}

void BlockPool::Unref(BlockId block) {
  Block& b = At(block);
  FATHOM_CHECK(b.refs > 0, "reference returned twice");
  if (--b.refs > 0) return;
  const int32_t index = SlabOf(block);
  Slab& slab = slabs_[static_cast<size_t>(index)];
  --use_[static_cast<size_t>(slab.owner)].in_use;
  ++tick_;
  if (--slab.in_use == 0) {
    slab.drained_tick = tick_;
    drained_.PushBack(drained_links_, index);
  }
  b.leases > 0 ? EnterCached(block) : Free(block);
}

void BlockPool::Lease(BlockId block) {
  FATHOM_CHECK(At(block).refs > 0 || At(block).leases > 0, "a free block has no content to keep");
  ++At(block).leases;
}

void BlockPool::Unlease(BlockId block) {
  Block& b = At(block);
  FATHOM_CHECK(b.leases > 0, "lease returned twice");
  if (--b.leases > 0 || b.refs > 0) return;
  LeaveCached(block);
  Free(block);
}

void BlockPool::Touch(BlockId block) {
  if (At(block).refs > 0 || At(block).leases == 0) return;
  ++tick_;
  LeaveCached(block);
  EnterCached(block);
  const int32_t index = SlabOf(block);
  Slab& slab = slabs_[static_cast<size_t>(index)];
  if (slab.drained_tick == 0) return;
  drained_.Remove(drained_links_, index);
  drained_.PushBack(drained_links_, index);
  slab.drained_tick = tick_;
}

void BlockPool::SetUsed(int32_t index, int32_t used) {
  Slab& slab = slabs_[static_cast<size_t>(index)];
  Bucket(slab.owner, slab.used).Remove(slab_links_, index);
  slab.used = used;
  Bucket(slab.owner, used).PushBack(slab_links_, index);
}

void BlockPool::EnterCached(BlockId block) {
  const auto c = static_cast<size_t>(ClassOfBlock(block));
  At(block).tick = tick_;
  cached_[c].PushBack(block_links_, block);
  ++use_[c].cached;
}

void BlockPool::LeaveCached(BlockId block) {
  const auto c = static_cast<size_t>(ClassOfBlock(block));
  cached_[c].Remove(block_links_, block);
  --use_[c].cached;
}

void BlockPool::Free(BlockId block) {
  const int32_t index = SlabOf(block);
  Slab& slab = slabs_[static_cast<size_t>(index)];
  const auto c = static_cast<size_t>(slab.owner);
  slab.free.PushFront(block_links_, block);
  SetUsed(index, slab.used - 1);
  ++use_[c].free;
  if (slab.used > 0) return;
  // Empty: back to whoever needs it.
  Bucket(slab.owner, 0).Remove(slab_links_, index);
  drained_.Remove(drained_links_, index);
  use_[c].free -= blocks_per_slab_[c];
  slab = Slab{};
  free_slabs_.PushFront(slab_links_, index);
  ++num_free_slabs_;
}

}  // namespace fathom
