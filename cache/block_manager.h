// BlockManager: the page blocks of all sequences, lent out of one memory, and the prefixes that can
// be reused.
//
// A sequence has a table per class. The full class keeps a block per 256 positions; sliding classes
// hold the blocks that positions still to come will read, and nothing behind that. A step is
// Extend (blocks for what it will store), the forward pass, Commit (the positions are computed).
// Content of a block is never changed at positions below the length of a sequence that holds it, or
// below a resume point that leases it: who continues from a partly filled block copies it first,
// and the copies are a list that must be carried out, in order, before the next forward pass. When
// memory is short blocks may also be moved, by such copies: tables are to be read after the last
// Extend, Admit, Fork or Truncate before a forward pass.
//
// Pure accounting, no device calls; nothing is allocated after Create. Single-threaded: owned by
// the engine.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/step_plan.h"
#include "base/status.h"
#include "cache/block_pool.h"
#include "cache/planner.h"
#include "cache/prefix_index.h"

namespace fathom {

using SequenceId = int32_t;  // a slot; valid from Admit or Fork to Release

// Copy the block with table number `from` over the block with number `to`.
struct BlockCopy {
  CacheClass cache_class = CacheClass::kFull;
  int32_t from = 0;
  int32_t to = 0;
};

struct BlockManagerOptions {
  int max_sequences = 1;
  int64_t max_positions = 0;   // of one sequence
  int max_step_positions = 1;  // of one sequence in one step
  bool prefix_caching = true;
};

// Resume points to make in a step, and how far it may be taken back.
struct StepKeeps {
  // Positions in (length, end], ascending. Left out where memory is short, then or when other
  // sequences prepare the same step.
  std::span<const int64_t> points = {};
  // One of the points, or -1: it takes the place of the sequence's last rolling point.
  int64_t rolling = -1;
  // Truncate may follow with any length from here to the end; -1: with the end alone.
  int64_t return_to = -1;
};

class BlockManager {
 public:
  // Manages the planner's layout in `num_slabs` slabs of memory. kInvalidArgument when block tables
  // cannot address that many.
  static Result<std::unique_ptr<BlockManager>> Create(const CachePlanner& planner,
                                                      int64_t num_slabs,
                                                      const BlockManagerOptions& options);

  // What a sequence that begins with `tokens` could reuse now; its last token is always computed.
  [[nodiscard]] PrefixMatch Match(std::span<const TokenId> tokens, const PrefixKeys& keys) const;
  // Whether a new sequence can grow to `length` positions beside all others growing to the lengths
  // that they were admitted for, every cached block given up. The same arithmetic sizes the memory
  // at load (planner.h).
  [[nodiscard]] bool Fits(int64_t length, const PrefixMatch& match) const;
  // Starts a sequence that is to grow to `length` positions at least, at match.position; `match`
  // must come from Match with nothing in between. `keys` are kept and extended by Commit; they must
  // outlive the sequence. Empty when all slots are taken or blocks to copy into cannot be had; a
  // match of nothing needs no copies.
  std::optional<SequenceId> Admit(const PrefixMatch& match, PrefixKeys* keys, int64_t length);

  // Blocks for positions [length, end). False when they cannot be had: nothing has changed then but
  // that blocks behind the window are given back. Does not fail while sequences keep to the lengths
  // that they were admitted for under Fits and all but one of a step compute one position.
  bool Extend(SequenceId id, int64_t end, const StepKeeps& keeps = {});
  // The positions of the last Extend are computed; `tokens` are the sequence's, at least as many as
  // it has positions now (not read where prefixes are not cached). Names whole blocks in the prefix
  // index and makes the step's resume points.
  void Commit(SequenceId id, std::span<const TokenId> tokens);
  // Makes a resume point at `position`, at most the length. False when blocks that it needs are not
  // held any more, or prefixes are not cached.
  bool Keep(SequenceId id, std::span<const TokenId> tokens, int64_t position);
  // Forgets positions from `length` on; they will be computed again, perhaps with other tokens.
  // False, with nothing changed but blocks behind the window given back, when what position
  // `length` reads is not held any more or a block to copy into cannot be had.
  bool Truncate(SequenceId id, int64_t length);
  // A second sequence with the same positions. Shares whole blocks and copies partly filled ones.
  // Between steps only. Empty as Admit's result.
  std::optional<SequenceId> Fork(SequenceId id, PrefixKeys* keys);
  // Ends a sequence. Blocks that resume points lease stay cached.
  void Release(SequenceId id);
  // Forgets all cached prefixes; sequences go on, and what they compute from here is not cached.
  void ClearPrefixes();

  [[nodiscard]] int64_t length(SequenceId id) const { return At(id).length; }
  [[nodiscard]] BlockTable Table(SequenceId id, CacheClass cache_class) const;
  // Copies to carry out before the next forward pass, in order.
  [[nodiscard]] std::span<const BlockCopy> copies() const { return copies_; }
  void ClearCopies() { copies_.clear(); }

  [[nodiscard]] const CachePlanner& planner() const { return planner_; }
  [[nodiscard]] const BlockPool& pool() const { return pool_; }
  [[nodiscard]] const PrefixIndex& prefixes() const { return index_; }
  [[nodiscard]] bool prefix_caching() const { return prefix_caching_; }
  [[nodiscard]] int num_sequences() const { return options_.max_sequences - num_free(); }
  [[nodiscard]] int64_t num_evictions() const { return num_evictions_; }

 private:
  struct ClassTable {
    int32_t* numbers = nullptr;  // capacity as in table_capacity_
    int64_t first = 0;           // logical block of numbers[0]
    int64_t count = 0;
    int64_t held = 0;  // numbers that are not kNoBlock
  };
  struct Sequence {
    bool active = false;
    bool chained = false;   // its whole blocks are in the prefix index up to `node`
    int64_t length = 0;     // positions computed
    int64_t end = 0;        // and being computed
    int64_t target = 0;     // admitted for this many
    int64_t return_to = 0;  // Truncate may go back to here
    PrefixNode node = kRootNode;
    int64_t num_named = 0;  // whole blocks up to `node`
    PrefixKeys* keys = nullptr;
    std::vector<int64_t> points;     // resume points to make at Commit
    int64_t rolling_point = -1;      // which of them is the rolling one
    ResumePoint rolling = kNoIndex;  // made last
    uint64_t rolling_generation = 0;
    std::array<ClassTable, kNumCacheClasses> tables;
  };

  static constexpr auto kFull = static_cast<size_t>(CacheClass::kFull);
  static int64_t PerBlock(size_t c) {
    return CacheLayout::PositionsPerBlock(static_cast<CacheClass>(c));
  }

  BlockManager(const CachePlanner& planner, int64_t num_slabs, const BlockManagerOptions& options);
  [[nodiscard]] const Sequence& At(SequenceId id) const {
    return sequences_[static_cast<size_t>(id)];
  }
  [[nodiscard]] int num_free() const { return static_cast<int>(free_sequences_.size()); }
  [[nodiscard]] bool HasClass(size_t c) const {
    return planner_.BlocksPerSlab(static_cast<CacheClass>(c)) > 0;
  }
  std::optional<SequenceId> TakeSlot(PrefixKeys* keys, int64_t target);
  BlockId Take(CacheClass cache_class);
  bool EvictFor(CacheClass cache_class);
  void EvictCachedIn(int32_t slab);
  bool ReleaseSpare();
  [[nodiscard]] bool Movable(int32_t slab) const;
  bool EmptySlab();
  void Move(CacheClass cache_class, BlockId from, BlockId to);
  [[nodiscard]] int64_t FirstLive(size_t c, int64_t position) const;
  [[nodiscard]] BlockId BlockAt(const ClassTable& table, int64_t logical) const;
  static void SetBlock(ClassTable& table, int64_t logical, int32_t number);
  void DropBlock(ClassTable& table, int64_t logical);
  bool ReleaseBehind(Sequence& sequence);
  bool ExtendTables(Sequence& sequence, int64_t end, int64_t return_to);
  bool TakeWindows(Sequence& sequence, int64_t from, int64_t to);
  void ReturnTaken(Sequence& sequence, size_t kept);
  bool TakeRange(ClassTable& table, size_t c, int64_t begin, int64_t end);
  // A copy of the block that this sequence alone will write; kNoBlock when memory is short.
  BlockId CopyOf(CacheClass cache_class, BlockId block);
  void DropCopiesTo(CacheClass cache_class, BlockId block);
  void Abandon(SequenceId id);
  bool ShareOrCopy(ClassTable& table, size_t c, int64_t logical, BlockId block, int64_t length);
  [[nodiscard]] bool HoldsWindow(const Sequence& sequence, int64_t position) const;
  [[nodiscard]] PrefixNode NodeAt(const Sequence& sequence, int64_t num_blocks) const;
  void NameBlocks(Sequence& sequence, std::span<const TokenId> tokens);
  ResumePoint MakePoint(const Sequence& sequence, std::span<const TokenId> tokens,
                        int64_t position);

  CachePlanner planner_;
  BlockManagerOptions options_;
  bool prefix_caching_;
  BlockPool pool_;
  PrefixIndex index_;
  std::array<int64_t, kNumCacheClasses> table_capacity_{};
  std::array<std::vector<int32_t>, kNumCacheClasses> table_memory_;
  std::vector<Sequence> sequences_;
  std::vector<SequenceId> free_sequences_;
  std::vector<BlockCopy> copies_;
  // Of the step in preparation: blocks taken by Extend, to be returned should it fail.
  struct Taken {
    size_t cache_class;
    int64_t logical;
  };
  std::vector<Taken> taken_;
  bool spare_only_ = false;  // Take may evict, but not take from sequences nor move blocks
  std::vector<PrefixIndex::PointBlock> point_blocks_;
  // Of a slab that is being emptied.
  std::vector<BlockId> moving_;
  std::vector<BlockId> set_aside_;
  int64_t num_evictions_ = 0;
};

}  // namespace fathom
