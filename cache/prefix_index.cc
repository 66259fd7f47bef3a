#include "cache/prefix_index.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace fathom {
namespace {

constexpr size_t kMaxTail = kBlockPositions - 1;

// Keys are uniform already.
size_t HashOf(const PrefixKey& key) {
  size_t hash = 0;
  std::memcpy(&hash, key.data(), sizeof(hash));
  return hash;
}

}  // namespace

int64_t PrefixIndex::MaxPointBlocks(const CachePlanner& planner) {
  ClassCounts most = planner.MaxBlocks(std::numeric_limits<Position>::max());
  most[static_cast<size_t>(CacheClass::kFull)] = 1;
  return std::accumulate(most.begin(), most.end(), int64_t{0});
}

PrefixIndex::PrefixIndex(const CachePlanner& planner, BlockPool& pool, int64_t max_points)
    : pool_(pool), max_point_blocks_(static_cast<size_t>(MaxPointBlocks(planner))) {
  const auto max_nodes =
      static_cast<size_t>(pool.num_slabs() * planner.BlocksPerSlab(CacheClass::kFull));
  nodes_.resize(max_nodes + 1);
  child_links_.resize(nodes_.size());
  free_nodes_.reserve(max_nodes);
  for (size_t n = max_nodes; n > 0; --n) free_nodes_.push_back(static_cast<int32_t>(n));
  table_.assign(std::bit_ceil(2 * max_nodes + 2), kNoIndex);

  const auto points = static_cast<size_t>(max_points);
  points_.resize(points);
  tails_.resize(points * kMaxTail);
  point_blocks_.resize(points * max_point_blocks_);
  lease_links_.resize(point_blocks_.size());
  point_links_.resize(points);
  recent_links_.resize(points);
  free_points_.reserve(points);
  for (size_t p = points; p > 0; --p) free_points_.push_back(static_cast<int32_t>(p - 1));

  block_nodes_.assign(static_cast<size_t>(pool.num_blocks()), kNoIndex);
  block_leases_.resize(static_cast<size_t>(pool.num_blocks()));
}

PrefixMatch PrefixIndex::Match(std::span<const TokenId> tokens, const PrefixKeys& keys,
                               int64_t limit) const {
  PrefixMatch match;
  PrefixNode deepest = kRootNode;
  for (int k = 0; k < keys.num_blocks() && int64_t{kBlockPositions} * (k + 1) <= limit; ++k) {
    const PrefixNode child = Find(deepest, keys.block(k));
    if (child == kNoIndex) break;
    deepest = child;
  }
  const int64_t cached = int64_t{kBlockPositions} * At(deepest).depth;
  for (PrefixNode node = deepest; node != kNoIndex; node = At(node).parent) {
    const int64_t begin = int64_t{kBlockPositions} * At(node).depth;
    match.point = FindPoint(node, keys.root(), tokens.subspan(static_cast<size_t>(begin)),
                            static_cast<size_t>(limit - begin));
    if (match.point == kNoIndex) continue;
    match.node = node;
    match.position = PositionOf(match.point);
    break;
  }
  if (cached > match.position) match.junction = cached;
  if (match.position < limit) {
    match.miss = match.junction > 0 ? PrefixMiss::kNoResumePoint : PrefixMiss::kMissingBlock;
  }
  return match;
}

// The point on `node` with the longest tail that `tokens` begins with, of at most `limit` tokens.
ResumePoint PrefixIndex::FindPoint(PrefixNode node, const PrefixKey& root,
                                   std::span<const TokenId> tokens, size_t limit) const {
  ResumePoint best = kNoIndex;
  int32_t longest = -1;
  for (ResumePoint p = At(node).points.front(); p != kNoIndex;
       p = point_links_[static_cast<size_t>(p)].next) {
    const Point& point = points_[static_cast<size_t>(p)];
    const auto size = static_cast<size_t>(point.tail_size);
    if (point.tail_size <= longest || size > limit || size > tokens.size()) continue;
    if (node == kRootNode && point.root != root) continue;
    const std::span<const TokenId> tail = TailOf(p);
    if (!std::equal(tail.rbegin(), tail.rend(), tokens.first(size).rbegin())) continue;
    best = p;
    longest = point.tail_size;
  }
  return best;
}

PrefixNode PrefixIndex::Find(PrefixNode parent, const PrefixKey& key) const {
  return table_[SlotOf(parent, key)];
}

// Where a key's node stands in the table, or the empty slot where it would.
size_t PrefixIndex::SlotOf(PrefixNode parent, const PrefixKey& key) const {
  const size_t mask = table_.size() - 1;
  for (size_t slot = HashOf(key) & mask;; slot = (slot + 1) & mask) {
    const PrefixNode node = table_[slot];
    if (node == kNoIndex || (At(node).key == key && At(node).parent == parent)) return slot;
  }
}

PrefixNode PrefixIndex::AddNode(PrefixNode parent, const PrefixKey& key, BlockId block) {
  const size_t slot = SlotOf(parent, key);
  FATHOM_CHECK(table_[slot] == kNoIndex && !free_nodes_.empty(),
               "one node per prefix and one prefix per block");
  FATHOM_CHECK(NodeOf(block) == kNoIndex, "a block holds one prefix");
  const PrefixNode node = free_nodes_.back();
  free_nodes_.pop_back();
  table_[slot] = node;
  At(node) = {key, parent, At(parent).depth + 1, block, {}, {}};
  At(parent).children.PushBack(child_links_, node);
  block_nodes_[static_cast<size_t>(block)] = node;
  pool_.Lease(block);
  ++num_nodes_;
  return node;
}

std::span<const TokenId> PrefixIndex::TailOf(ResumePoint point) const {
  return {tails_.data() + static_cast<size_t>(point) * kMaxTail,
          static_cast<size_t>(points_[static_cast<size_t>(point)].tail_size)};
}

std::span<const PrefixIndex::PointBlock> PrefixIndex::BlocksOf(ResumePoint point) const {
  return {point_blocks_.data() + static_cast<size_t>(point) * max_point_blocks_,
          static_cast<size_t>(points_[static_cast<size_t>(point)].num_blocks)};
}

int64_t PrefixIndex::PositionOf(ResumePoint point) const {
  const Point& p = points_[static_cast<size_t>(point)];
  return int64_t{kBlockPositions} * At(p.node).depth + p.tail_size;
}

ResumePoint PrefixIndex::AddPoint(PrefixNode node, const PrefixKey& root,
                                  std::span<const TokenId> tail,
                                  std::span<const PointBlock> blocks) {
  FATHOM_CHECK(tail.size() <= kMaxTail && blocks.size() <= max_point_blocks_,
               "a resume point lies less than a block behind its node");
  const ResumePoint there = FindPoint(node, root, tail, tail.size());
  if (there != kNoIndex && TailOf(there).size() == tail.size()) {
    Touch(there);
    return there;
  }
  // Its blocks may be those of the new point; they are in use, so they stay.
  if (free_points_.empty()) RemovePoint(recent_.front());
  const ResumePoint p = free_points_.back();
  free_points_.pop_back();
  const auto index = static_cast<size_t>(p);
  points_[index] = {node,
                    static_cast<int32_t>(tail.size()),
                    static_cast<int32_t>(blocks.size()),
                    root,
                    next_generation_++,
                    false};
  std::copy(tail.begin(), tail.end(), tails_.begin() + static_cast<ptrdiff_t>(index * kMaxTail));
  for (size_t i = 0; i < blocks.size(); ++i) {
    const size_t lease = index * max_point_blocks_ + i;
    point_blocks_[lease] = blocks[i];
    pool_.Lease(blocks[i].block);
    block_leases_[static_cast<size_t>(blocks[i].block)].PushBack(lease_links_,
                                                                 static_cast<int32_t>(lease));
  }
  At(node).points.PushBack(point_links_, p);
  recent_.PushBack(recent_links_, p);
  ++num_points_;
  return p;
}

void PrefixIndex::Touch(ResumePoint point) {
  points_[static_cast<size_t>(point)].used = true;
  recent_.Remove(recent_links_, point);
  recent_.PushBack(recent_links_, point);
  for (const PointBlock& b : BlocksOf(point)) pool_.Touch(b.block);
}

// Takes the point away and its leases with it; leaves its node alone.
void PrefixIndex::DropPoint(ResumePoint point) {
  const auto index = static_cast<size_t>(point);
  Point& p = points_[index];
  At(p.node).points.Remove(point_links_, point);
  recent_.Remove(recent_links_, point);
  for (size_t i = 0; i < static_cast<size_t>(p.num_blocks); ++i) {
    const size_t lease = index * max_point_blocks_ + i;
    const BlockId block = point_blocks_[lease].block;
    block_leases_[static_cast<size_t>(block)].Remove(lease_links_, static_cast<int32_t>(lease));
    pool_.Unlease(block);
  }
  p = {};
  free_points_.push_back(point);
  --num_points_;
}

void PrefixIndex::RemovePoint(ResumePoint point) {
  const PrefixNode node = points_[static_cast<size_t>(point)].node;
  DropPoint(point);
  Prune(node);
}

int64_t PrefixIndex::LastPointOn(BlockId block) const {
  int64_t last = -1;
  for (int32_t lease = block_leases_[static_cast<size_t>(block)].front(); lease != kNoIndex;
       lease = lease_links_[static_cast<size_t>(lease)].next) {
    last = std::max(
        last, PositionOf(static_cast<ResumePoint>(static_cast<size_t>(lease) / max_point_blocks_)));
  }
  return last;
}

void PrefixIndex::Move(BlockId from, BlockId to) {
  const auto move_lease = [&] {
    pool_.Lease(to);
    pool_.Unlease(from);
  };
  if (const PrefixNode node = NodeOf(from); node != kNoIndex) {
    At(node).block = to;
    block_nodes_[static_cast<size_t>(to)] = node;
    block_nodes_[static_cast<size_t>(from)] = kNoIndex;
    move_lease();
  }
  IndexList& leases = block_leases_[static_cast<size_t>(from)];
  while (!leases.empty()) {
    const int32_t lease = leases.PopFront(lease_links_);
    point_blocks_[static_cast<size_t>(lease)].block = to;
    block_leases_[static_cast<size_t>(to)].PushBack(lease_links_, lease);
    move_lease();
  }
}

void PrefixIndex::Evict(BlockId block) {
  const auto b = static_cast<size_t>(block);
  // Points first: each may take its node's whole branch with it, this block included.
  while (!block_leases_[b].empty()) {
    RemovePoint(static_cast<ResumePoint>(static_cast<size_t>(block_leases_[b].front()) /
                                         max_point_blocks_));
  }
  if (const PrefixNode node = block_nodes_[b]; node != kNoIndex) {
    const PrefixNode parent = At(node).parent;
    RemoveSubtree(node);
    Prune(parent);
  }
}

void PrefixIndex::Prune(PrefixNode node) {
  while (node != kRootNode && At(node).children.empty() && At(node).points.empty() &&
         pool_.refs(At(node).block) == 0) {
    const PrefixNode parent = At(node).parent;
    RemoveNode(node);
    node = parent;
  }
}

// A node without children; its points go with it.
void PrefixIndex::RemoveNode(PrefixNode node) {
  while (!At(node).points.empty()) DropPoint(At(node).points.front());
  EraseSlot(SlotOf(At(node).parent, At(node).key));
  At(At(node).parent).children.Remove(child_links_, node);
  const BlockId block = At(node).block;
  block_nodes_[static_cast<size_t>(block)] = kNoIndex;
  At(node) = {};
  free_nodes_.push_back(node);
  --num_nodes_;
  pool_.Unlease(block);
}

void PrefixIndex::RemoveSubtree(PrefixNode top) {
  // Down to a leaf, remove it, back up: needs no stack, however long the chain.
  for (PrefixNode node = top;;) {
    if (!At(node).children.empty()) {
      node = At(node).children.front();
      continue;
    }
    const PrefixNode parent = At(node).parent;
    RemoveNode(node);
    if (node == top) return;
    node = parent;
  }
}

void PrefixIndex::Clear() {
  while (!At(kRootNode).points.empty()) DropPoint(At(kRootNode).points.front());
  while (!At(kRootNode).children.empty()) RemoveSubtree(At(kRootNode).children.front());
}

// Deletion under linear probing: later entries of the run move up where their probe would not find
// them behind a hole.
void PrefixIndex::EraseSlot(size_t hole) {
  const size_t mask = table_.size() - 1;
  for (size_t slot = (hole + 1) & mask; table_[slot] != kNoIndex; slot = (slot + 1) & mask) {
    const size_t home = HashOf(At(table_[slot]).key) & mask;
    if (((slot - home) & mask) < ((slot - hole) & mask)) continue;
    table_[hole] = table_[slot];
    hole = slot;
  }
  table_[hole] = kNoIndex;
}

}  // namespace fathom
