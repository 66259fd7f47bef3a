// PrefixIndex: which prefixes of past sequences can be continued, and from which blocks.
//
// A node stands for a whole block of 256 tokens behind a known prefix and leases its page block of
// the full class. A resume point at position p hangs on the node of the last whole block before p,
// carries the token ids between them (fewer than 256), and leases what else computing position p
// reads: the partly filled block of the full class, the window and the compressor states. A prefix
// can be continued where it has a resume point; nodes without one below them are kept only while a
// sequence uses their block, and to notice where sequences begin to differ.
//
// All memory is allocated by the constructor. Single-threaded: owned by the engine.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/block_pool.h"
#include "cache/prefix_keys.h"
#include "cache/prefix_miss.h"

namespace fathom {

using PrefixNode = int32_t;
using ResumePoint = int32_t;
inline constexpr PrefixNode kRootNode = 0;

struct PrefixMatch {
  ResumePoint point = kNoIndex;  // kNoIndex: start at position 0
  PrefixNode node = kRootNode;   // of the last whole block before the point
  int64_t position = 0;          // tokens that need not be computed
  // End of the whole blocks that are cached, where that is beyond `position`, else 0: two sequences
  // shared this much, so a third one may.
  int64_t junction = 0;
  PrefixMiss miss = PrefixMiss::kNone;
};

class PrefixIndex {
 public:
  // `pool` must outlive the index. At most `max_points` resume points exist at a time; the one used
  // longest ago makes room.
  PrefixIndex(const CachePlanner& planner, BlockPool& pool, int64_t max_points);

  // Blocks that one resume point leases at most, that of the full class included.
  [[nodiscard]] static int64_t MaxPointBlocks(const CachePlanner& planner);

  // The longest cached prefix of `tokens` of at most `limit` positions. Changes nothing.
  [[nodiscard]] PrefixMatch Match(std::span<const TokenId> tokens, const PrefixKeys& keys,
                                  int64_t limit) const;

  // The child of `parent` named `key`; kNoIndex: none.
  [[nodiscard]] PrefixNode Find(PrefixNode parent, const PrefixKey& key) const;
  // Adds it, with the block that holds it (in use). Must not exist yet.
  PrefixNode AddNode(PrefixNode parent, const PrefixKey& key, BlockId block);
  [[nodiscard]] BlockId BlockOf(PrefixNode node) const { return At(node).block; }
  [[nodiscard]] PrefixNode ParentOf(PrefixNode node) const { return At(node).parent; }
  // The node of a block; kNoIndex: it has none.
  [[nodiscard]] PrefixNode NodeOf(BlockId block) const {
    return block_nodes_[static_cast<size_t>(block)];
  }

  // Blocks that a resume point leases, by class and logical block of the class, ascending.
  struct PointBlock {
    CacheClass cache_class = CacheClass::kFull;
    int64_t logical = 0;
    BlockId block = kNoBlock;
  };
  // Adds a resume point behind `tail` on `node` under `root` (of PrefixKeys), or touches the one
  // that is there. The blocks are in use. Never fails: when memory for points is used up the oldest
  // goes.
  ResumePoint AddPoint(PrefixNode node, const PrefixKey& root, std::span<const TokenId> tail,
                       std::span<const PointBlock> blocks);
  [[nodiscard]] std::span<const PointBlock> BlocksOf(ResumePoint point) const;
  [[nodiscard]] int64_t PositionOf(ResumePoint point) const;
  // Somebody continued from it: its blocks are the most recently used ones.
  void Touch(ResumePoint point);
  [[nodiscard]] bool WasUsed(ResumePoint point) const {
    return points_[static_cast<size_t>(point)].used;
  }
  void RemovePoint(ResumePoint point);
  // Distinguishes points that had the same number one after the other.
  [[nodiscard]] uint64_t GenerationOf(ResumePoint point) const {
    return points_[static_cast<size_t>(point)].generation;
  }
  // Largest position of a resume point that leases the block; -1: none does.
  [[nodiscard]] int64_t LastPointOn(BlockId block) const;

  // What leases `from` leases `to` from now on, which has the same content. Both are in use.
  void Move(BlockId from, BlockId to);
  // Drops everything that leases a cached block, which is free afterwards. What can only be reached
  // through it goes too.
  void Evict(BlockId block);
  // Drops the node and its ancestors as far as nobody uses their blocks and nothing can be reached
  // through them.
  void Prune(PrefixNode node);
  // Forgets all prefixes; blocks in use stay with their sequences.
  void Clear();

  [[nodiscard]] int64_t num_points() const { return num_points_; }
  [[nodiscard]] int64_t num_nodes() const { return num_nodes_; }  // without the root

 private:
  struct Node {
    PrefixKey key{};
    PrefixNode parent = kNoIndex;
    int32_t depth = 0;  // whole blocks up to and with this one
    BlockId block = kNoBlock;
    IndexList children;
    IndexList points;
  };
  struct Point {
    PrefixNode node = kNoIndex;  // kNoIndex: unused
    int32_t tail_size = 0;
    int32_t num_blocks = 0;
    PrefixKey root{};  // read where node is the root node, whose children's keys carry it else
    uint64_t generation = 0;
    bool used = false;
  };
  // A lease of one point on one block, in the block's list of leases. Index: point * max + i.
  [[nodiscard]] const Node& At(PrefixNode node) const { return nodes_[static_cast<size_t>(node)]; }
  [[nodiscard]] Node& At(PrefixNode node) { return nodes_[static_cast<size_t>(node)]; }
  [[nodiscard]] std::span<const TokenId> TailOf(ResumePoint point) const;
  [[nodiscard]] ResumePoint FindPoint(PrefixNode node, const PrefixKey& root,
                                      std::span<const TokenId> tokens, size_t limit) const;
  void RemoveNode(PrefixNode node);
  void RemoveSubtree(PrefixNode node);
  void DropPoint(ResumePoint point);
  [[nodiscard]] size_t SlotOf(PrefixNode parent, const PrefixKey& key) const;
  void EraseSlot(size_t slot);

  BlockPool& pool_;
  std::vector<Node> nodes_;
  std::vector<IndexLink> child_links_;
  std::vector<int32_t> free_nodes_;
  // Open addressing over keys, linear probing; a power of two of at least twice the nodes.
  std::vector<PrefixNode> table_;

  std::vector<Point> points_;
  std::vector<TokenId> tails_;            // [points, 255]
  std::vector<PointBlock> point_blocks_;  // [points, max_point_blocks_]
  size_t max_point_blocks_ = 0;
  std::vector<IndexLink> point_links_;   // of a node's points
  std::vector<IndexLink> recent_links_;  // of all points, by last use
  IndexList recent_;
  std::vector<int32_t> free_points_;

  std::vector<PrefixNode> block_nodes_;  // by block
  std::vector<IndexList> block_leases_;  // by block, of point * max_point_blocks_ + i
  std::vector<IndexLink> lease_links_;
  int64_t num_points_ = 0;
  int64_t num_nodes_ = 0;
  uint64_t next_generation_ = 1;
};

}  // namespace fathom
