#include "cache/block_manager.h"

#include <algorithm>
#include <limits>
#include <string>

#include "base/check.h"

namespace fathom {
namespace {

// Resume points cost about 1.5 KiB each beside their blocks.
constexpr int64_t kMaxResumePoints = 16'384;
constexpr int64_t kMaxPointBlocks = 32 * kMaxResumePoints;

int64_t MaxPoints(const CachePlanner& planner, int64_t num_slabs) {
  // Every resume point leases at least one block of a window, which a few others may share. Windows
  // far beyond the usual 128 positions take memory for their lists of blocks.
  const int64_t most = std::clamp<int64_t>(kMaxPointBlocks / PrefixIndex::MaxPointBlocks(planner),
                                           16, kMaxResumePoints);
  return std::clamp<int64_t>(4 * num_slabs * planner.BlocksPerSlab(CacheClass::kSwa), 16, most);
}

}  // namespace

Result<std::unique_ptr<BlockManager>> BlockManager::Create(const CachePlanner& planner,
                                                           int64_t num_slabs,
                                                           const BlockManagerOptions& options) {
  FATHOM_CHECK(options.max_sequences > 0 && options.max_positions > 0 &&
                   options.max_positions <= std::numeric_limits<Position>::max() &&
                   options.max_step_positions > 0,
               "the caller checks its limits");
  if (num_slabs < 1 || num_slabs > BlockPool::MaxSlabs(planner)) {
    return InvalidArgument("cache memory of " + std::to_string(num_slabs) + " slabs of " +
                           std::to_string(planner.slab_bytes()) +
                           " bytes: block tables can address 1 to " +
                           std::to_string(BlockPool::MaxSlabs(planner)));
  }
  return std::unique_ptr<BlockManager>(new BlockManager(planner, num_slabs, options));
}

BlockManager::BlockManager(const CachePlanner& planner, int64_t num_slabs,
                           const BlockManagerOptions& options)
    : planner_(planner),
      options_(options),
      // A prefix is named by blocks of the full class; a model without compressed layers has none.
      prefix_caching_(options.prefix_caching && planner.BlocksPerSlab(CacheClass::kFull) > 0),
      pool_(planner, num_slabs),
      index_(planner, pool_, MaxPoints(planner, num_slabs)) {
  const auto sequences = static_cast<size_t>(options.max_sequences);
  sequences_.resize(sequences);
  for (size_t c = 0; c < kNumCacheClasses; ++c) {
    if (!HasClass(c)) continue;
    const int64_t blocks = CeilDiv(options.max_positions, PerBlock(c));
    table_capacity_[c] = blocks;
    if (c != kFull) {
      // Window and step may both begin inside a block.
      const int64_t window = planner.layout().WindowPositions(static_cast<CacheClass>(c));
      table_capacity_[c] =
          std::min(blocks, CeilDiv(window + options.max_step_positions, PerBlock(c)) + 2);
    }
    table_memory_[c].assign(sequences * static_cast<size_t>(table_capacity_[c]), kNoBlock);
    for (size_t s = 0; s < sequences; ++s) {
      sequences_[s].tables[c].numbers =
          table_memory_[c].data() + s * static_cast<size_t>(table_capacity_[c]);
    }
  }
  const int64_t step_blocks = options.max_step_positions / kBlockPositions + 4;
  for (size_t s = sequences; s > 0; --s) {
    sequences_[s - 1].points.reserve(static_cast<size_t>(step_blocks));
    free_sequences_.push_back(static_cast<SequenceId>(s - 1));
  }
  // Copies of partly filled blocks, and of some slabs that had to be emptied.
  const int64_t blocks_per_slab = pool_.num_blocks() / pool_.num_slabs();
  copies_.reserve(sequences * kNumCacheClasses + static_cast<size_t>(4 * blocks_per_slab));
  moving_.reserve(static_cast<size_t>(blocks_per_slab));
  set_aside_.reserve(static_cast<size_t>(blocks_per_slab));
  int64_t taken = 0;
  for (int64_t capacity : table_capacity_) taken += capacity;
  taken_.reserve(static_cast<size_t>(taken));
  point_blocks_.reserve(static_cast<size_t>(PrefixIndex::MaxPointBlocks(planner)));
}

// Tables ---------------------------------------------------------------------------------------

// The first position that computing `position` reads.
int64_t BlockManager::FirstLive(size_t c, int64_t position) const {
  return std::max<int64_t>(0, planner_.layout().LiveBegin(static_cast<CacheClass>(c), position));
}

BlockId BlockManager::BlockAt(const ClassTable& table, int64_t logical) const {
  const int64_t i = logical - table.first;
  if (i < 0 || i >= table.count || table.numbers[i] == kNoBlock) return kNoBlock;
  return pool_.FromNumber(table.numbers[i]);
}

// `logical` is at or behind the table's first block; blocks in between are none.
void BlockManager::SetBlock(ClassTable& table, int64_t logical, int32_t number) {
  const int64_t i = logical - table.first;
  for (; table.count <= i; ++table.count) table.numbers[table.count] = kNoBlock;
  table.held += (number != kNoBlock) - (table.numbers[i] != kNoBlock);
  table.numbers[i] = number;
}

void BlockManager::DropBlock(ClassTable& table, int64_t logical) {
  const BlockId block = BlockAt(table, logical);
  if (block == kNoBlock) return;
  SetBlock(table, logical, kNoBlock);
  pool_.Unref(block);
}

// Gives back the blocks of sliding classes that computing `return_to` and what follows does not
// read. Whether there were any.
bool BlockManager::ReleaseBehind(Sequence& s) {
  bool released = false;
  for (size_t c = 0; c < kNumCacheClasses; ++c) {
    if (c == kFull || !HasClass(c)) continue;
    ClassTable& table = s.tables[c];
    const int64_t begin = FirstLive(c, s.return_to) / PerBlock(c);
    if (begin <= table.first) continue;
    const int64_t gone = std::min(begin - table.first, table.count);
    const int64_t held = table.held;
    for (int64_t i = 0; i < gone; ++i) DropBlock(table, table.first + i);
    released = released || table.held < held;
    std::copy(table.numbers + gone, table.numbers + table.count, table.numbers);
    table.count -= gone;
    table.first = begin;
  }
  return released;
}

// Blocks for positions [begin, end) that the table has not.
bool BlockManager::TakeRange(ClassTable& table, size_t c, int64_t begin, int64_t end) {
  if (begin >= end) return true;
  for (int64_t logical = begin / PerBlock(c); logical * PerBlock(c) < end; ++logical) {
    if (BlockAt(table, logical) != kNoBlock) continue;
    const BlockId block = Take(static_cast<CacheClass>(c));
    if (block == kNoBlock) return false;
    SetBlock(table, logical, pool_.Number(block));
    taken_.push_back({c, logical});
  }
  return true;
}

// Blocks for positions that the sequence has not, from each class's window in front of `from` on.
bool BlockManager::TakeWindows(Sequence& s, int64_t from, int64_t to) {
  const size_t num_taken = taken_.size();
  for (size_t c = 0; c < kNumCacheClasses; ++c) {
    if (!HasClass(c) || c == kFull) continue;
    if (TakeRange(s.tables[c], c, std::max(FirstLive(c, from), s.length), to)) continue;
    ReturnTaken(s, num_taken);
    return false;
  }
  return true;
}

// Gives back what was taken for the step, but for the first `kept` blocks.
void BlockManager::ReturnTaken(Sequence& s, size_t kept) {
  for (; taken_.size() > kept; taken_.pop_back()) {
    DropBlock(s.tables[taken_.back().cache_class], taken_.back().logical);
  }
}

bool BlockManager::ExtendTables(Sequence& s, int64_t end, int64_t return_to) {
  taken_.clear();
  if ((HasClass(kFull) && !TakeRange(s.tables[kFull], kFull, s.length, end)) ||
      !TakeWindows(s, return_to, end)) {
    ReturnTaken(s, 0);
    return false;
  }
  for (size_t c = 0; c < kNumCacheClasses; ++c) {
    // The table reaches to the end of the step even where nothing is stored.
    const int64_t last = CeilDiv(end, PerBlock(c)) - 1;
    if (HasClass(c) && c != kFull && last >= s.tables[c].first + s.tables[c].count) {
      SetBlock(s.tables[c], last, kNoBlock);
    }
  }
  return true;
}

bool BlockManager::Extend(SequenceId id, int64_t end, const StepKeeps& keeps) {
  Sequence& s = sequences_[static_cast<size_t>(id)];
  FATHOM_CHECK(s.active && s.end == s.length, "a step begins after the last one is committed");
  FATHOM_CHECK(end > s.length && end <= options_.max_positions &&
                   end - s.length <= options_.max_step_positions,
               "a step has at least one position and no more than it may");
  FATHOM_CHECK(
      keeps.points.empty() || (keeps.points.front() > s.length && keeps.points.back() <= end),
      "resume points lie in the step");
  s.return_to = s.length;
  ReleaseBehind(s);
  const int64_t return_to = keeps.return_to < 0 ? end : std::max(keeps.return_to, s.length);
  if (!ExtendTables(s, end, return_to)) return false;
  // Windows of resume points, the last ones first: they are worth more. They may take the place of
  // what was used longer ago, and of nothing that anybody counts on.
  const std::span<const int64_t> points = s.chained ? keeps.points : std::span<const int64_t>();
  spare_only_ = true;
  for (size_t i = points.size(); i-- > 0;) TakeWindows(s, points[i], points[i]);
  spare_only_ = false;
  s.points.clear();
  for (const int64_t point : points) {
    if (HoldsWindow(s, point)) s.points.push_back(point);
  }
  s.rolling_point = keeps.rolling;
  s.return_to = return_to;
  s.end = end;
  return true;
}

BlockTable BlockManager::Table(SequenceId id, CacheClass cache_class) const {
  const ClassTable& table = At(id).tables[static_cast<size_t>(cache_class)];
  return {table.numbers, table.count, table.first};
}

// Sequences ------------------------------------------------------------------------------------

std::optional<SequenceId> BlockManager::TakeSlot(PrefixKeys* keys, int64_t target) {
  if (free_sequences_.empty()) return std::nullopt;
  const SequenceId id = free_sequences_.back();
  free_sequences_.pop_back();
  Sequence& s = sequences_[static_cast<size_t>(id)];
  s.active = true;
  s.chained = prefix_caching_;
  s.keys = keys;
  s.target = std::min(target, options_.max_positions);
  return id;
}

BlockId BlockManager::CopyOf(CacheClass cache_class, BlockId block) {
  pool_.Ref(block);  // it must not be evicted to make room for its copy
  const BlockId copy = Take(cache_class);
  if (copy != kNoBlock) {
    copies_.push_back({cache_class, pool_.Number(block), pool_.Number(copy)});
  }
  pool_.Unref(block);
  return copy;
}

// Of copies to a block that is given up before they are carried out.
void BlockManager::DropCopiesTo(CacheClass cache_class, BlockId block) {
  const int32_t number = pool_.Number(block);
  std::erase_if(copies_, [&](const BlockCopy& copy) {
    return copy.cache_class == cache_class && copy.to == number;
  });
}

// Gives up a sequence that could not get all its blocks.
void BlockManager::Abandon(SequenceId id) {
  for (size_t c = 0; c < kNumCacheClasses; ++c) {
    const ClassTable& table = At(id).tables[c];
    for (int64_t b = table.first; b < table.first + table.count; ++b) {
      const BlockId block = BlockAt(table, b);
      if (block == kNoBlock || pool_.refs(block) > 1 || pool_.leases(block) > 0) continue;
      DropCopiesTo(static_cast<CacheClass>(c), block);
    }
  }
  Release(id);
}

// Puts a block into the table of a sequence that has `length` positions: itself when it is full, a
// copy when the sequence will write into it.
bool BlockManager::ShareOrCopy(ClassTable& table, size_t c, int64_t logical, BlockId block,
                               int64_t length) {
  if ((logical + 1) * PerBlock(c) > length) {
    block = CopyOf(static_cast<CacheClass>(c), block);
    if (block == kNoBlock) return false;
  } else {
    pool_.Ref(block);
  }
  SetBlock(table, logical, pool_.Number(block));
  return true;
}

std::optional<SequenceId> BlockManager::Admit(const PrefixMatch& match, PrefixKeys* keys,
                                              int64_t length) {
  const std::optional<SequenceId> id = TakeSlot(keys, length);
  if (!id) return id;
  Sequence& s = sequences_[static_cast<size_t>(*id)];
  s.length = s.end = s.return_to = match.position;
  s.node = match.node;
  s.num_named = match.position / kBlockPositions;
  if (match.point == kNoIndex) return id;

  // All shared blocks before any copy: what is in use is not evicted.
  int64_t logical = s.num_named;
  for (PrefixNode node = match.node; node != kRootNode; node = index_.ParentOf(node)) {
    pool_.Ref(index_.BlockOf(node));
    SetBlock(s.tables[kFull], --logical, pool_.Number(index_.BlockOf(node)));
  }
  for (size_t c = 0; c < kNumCacheClasses; ++c) {
    if (c != kFull) s.tables[c].first = FirstLive(c, match.position) / PerBlock(c);
  }
  const std::span<const PrefixIndex::PointBlock> blocks = index_.BlocksOf(match.point);
  for (const auto& b : blocks) pool_.Ref(b.block);
  bool done = true;
  for (const auto& b : blocks) {
    const auto c = static_cast<size_t>(b.cache_class);
    done = done && ShareOrCopy(s.tables[c], c, b.logical, b.block, match.position);
  }
  for (const auto& b : blocks) pool_.Unref(b.block);
  if (!done) {
    Abandon(*id);
    return std::nullopt;
  }
  index_.Touch(match.point);
  return id;
}

std::optional<SequenceId> BlockManager::Fork(SequenceId from, PrefixKeys* keys) {
  const std::optional<SequenceId> id = TakeSlot(keys, At(from).target);
  if (!id) return id;
  const Sequence& source = At(from);
  FATHOM_CHECK(source.active && source.end == source.length, "sequences fork between steps");
  Sequence& s = sequences_[static_cast<size_t>(*id)];
  s.chained = source.chained;
  s.length = s.end = s.return_to = source.length;
  s.node = source.node;
  s.num_named = source.num_named;
  for (size_t c = 0; c < kNumCacheClasses; ++c) {
    if (!HasClass(c)) continue;
    s.tables[c].first = FirstLive(c, s.length) / PerBlock(c);
    for (int64_t logical = s.tables[c].first; logical * PerBlock(c) < s.length; ++logical) {
      const BlockId block = BlockAt(source.tables[c], logical);
      if (block == kNoBlock) continue;
      if (ShareOrCopy(s.tables[c], c, logical, block, s.length)) continue;
      Abandon(*id);
      return std::nullopt;
    }
  }
  return id;
}

bool BlockManager::HoldsWindow(const Sequence& s, int64_t position) const {
  for (size_t c = 0; c < kNumCacheClasses; ++c) {
    if (!HasClass(c)) continue;
    const int64_t begin = FirstLive(c, position);
    if (begin >= position) continue;
    for (int64_t b = begin / PerBlock(c); b * PerBlock(c) < position; ++b) {
      if (BlockAt(s.tables[c], b) == kNoBlock) return false;
    }
  }
  return true;
}

bool BlockManager::Truncate(SequenceId id, int64_t length) {
  Sequence& s = sequences_[static_cast<size_t>(id)];
  FATHOM_CHECK(s.active && length >= 0 && length <= s.length, "only positions that were computed");
  if (!HoldsWindow(s, length)) return false;
  s.return_to = std::min(s.return_to, length);
  // Partly kept blocks that somebody else may read behind `length` are copied, all or none.
  std::array<BlockId, kNumCacheClasses> copied;
  copied.fill(kNoBlock);
  for (size_t c = 0; c < kNumCacheClasses; ++c) {
    if (!HasClass(c) || length % PerBlock(c) == 0) continue;
    const BlockId block = BlockAt(s.tables[c], length / PerBlock(c));
    if (block == kNoBlock) continue;  // nothing in it is read again
    if (pool_.refs(block) == 1 && index_.NodeOf(block) == kNoIndex &&
        index_.LastPointOn(block) <= length) {
      continue;
    }
    copied[c] = CopyOf(static_cast<CacheClass>(c), block);
    if (copied[c] != kNoBlock) continue;
    for (size_t other = 0; other < kNumCacheClasses; ++other) {
      if (copied[other] == kNoBlock) continue;
      DropCopiesTo(static_cast<CacheClass>(other), copied[other]);
      pool_.Unref(copied[other]);
    }
    return false;
  }
  const PrefixNode last = s.node;
  if (s.chained && length / kBlockPositions < s.num_named) {
    s.node = NodeAt(s, length / kBlockPositions);
    s.num_named = length / kBlockPositions;
  }
  for (size_t c = 0; c < kNumCacheClasses; ++c) {
    ClassTable& table = s.tables[c];
    const int64_t kept = HasClass(c) ? CeilDiv(length, PerBlock(c)) : 0;
    for (int64_t b = table.first + table.count - 1; b >= std::max(kept, table.first); --b) {
      DropBlock(table, b);
    }
    table.count = std::clamp<int64_t>(kept - table.first, 0, table.count);
    // Where no window lies in front of `length` the table may have begun behind it.
    table.first = std::min(table.first, length / PerBlock(c));
    if (copied[c] == kNoBlock) continue;
    DropBlock(table, length / PerBlock(c));
    SetBlock(table, length / PerBlock(c), pool_.Number(copied[c]));
  }
  s.length = s.end = length;
  s.points.clear();
  if (s.keys != nullptr) s.keys->Truncate(static_cast<int>(length / kBlockPositions));
  index_.Prune(last);
  return true;
}

void BlockManager::Release(SequenceId id) {
  Sequence& s = sequences_[static_cast<size_t>(id)];
  FATHOM_CHECK(s.active, "a sequence ends once");
  // From the end: what is farther from the beginning is less likely to be of use again, and goes
  // first.
  for (ClassTable& table : s.tables) {
    for (int64_t i = table.count - 1; i >= 0; --i) DropBlock(table, table.first + i);
    table.first = table.count = 0;
  }
  index_.Prune(s.node);
  s.active = false;
  s.length = s.end = s.return_to = s.target = 0;
  s.node = kRootNode;
  s.num_named = 0;
  s.keys = nullptr;
  s.points.clear();
  s.rolling = kNoIndex;
  free_sequences_.push_back(id);
}

}  // namespace fathom
