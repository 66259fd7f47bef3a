// What a BlockManager keeps of the past, and what new sequences can have of it.
#include <algorithm>

#include "base/check.h"
#include "cache/block_manager.h"

namespace fathom {

PrefixMatch BlockManager::Match(std::span<const TokenId> tokens, const PrefixKeys& keys) const {
  if (!prefix_caching_) {
    PrefixMatch none;
    none.miss = PrefixMiss::kDisabled;
    return none;
  }
  return index_.Match(tokens, keys, static_cast<int64_t>(tokens.size()) - 1);
}

// The node of the sequence's first `num_blocks` whole blocks, which are named.
PrefixNode BlockManager::NodeAt(const Sequence& s, int64_t num_blocks) const {
  PrefixNode node = s.node;
  for (int64_t k = s.num_named; k > num_blocks; --k) node = index_.ParentOf(node);
  return node;
}

void BlockManager::NameBlocks(Sequence& s, std::span<const TokenId> tokens) {
  const int64_t num_blocks = s.length / kBlockPositions;
  if (num_blocks == s.num_named) return;
  s.keys->Extend(tokens.first(static_cast<size_t>(num_blocks * kBlockPositions)));
  for (; s.num_named < num_blocks; ++s.num_named) {
    const PrefixKey& key = s.keys->block(static_cast<int>(s.num_named));
    ClassTable& table = s.tables[kFull];
    const BlockId own = BlockAt(table, s.num_named);
    const PrefixNode there = index_.Find(s.node, key);
    if (there == kNoIndex) {
      s.node = index_.AddNode(s.node, key, own);
      continue;
    }
    // Another sequence computed the same block. The bits are the same, so one of them is enough.
    s.node = there;
    if (index_.BlockOf(there) == own) continue;
    pool_.Ref(index_.BlockOf(there));
    DropBlock(table, s.num_named);
    SetBlock(table, s.num_named, pool_.Number(index_.BlockOf(there)));
  }
}

// kNoIndex when blocks that computing `position` reads are not held any more.
ResumePoint BlockManager::MakePoint(const Sequence& s, std::span<const TokenId> tokens,
                                    int64_t position) {
  if (!HoldsWindow(s, position)) return kNoIndex;
  const int64_t whole = position / kBlockPositions;
  point_blocks_.clear();
  for (size_t c = 0; c < kNumCacheClasses; ++c) {
    if (!HasClass(c)) continue;
    const auto cache_class = static_cast<CacheClass>(c);
    const int64_t begin = c == kFull ? whole * kBlockPositions : FirstLive(c, position);
    if (begin >= position) continue;
    for (int64_t b = begin / PerBlock(c); b * PerBlock(c) < position; ++b) {
      point_blocks_.push_back({cache_class, b, BlockAt(s.tables[c], b)});
    }
  }
  const auto tail_begin = static_cast<size_t>(whole * kBlockPositions);
  return index_.AddPoint(NodeAt(s, whole), s.keys->root(),
                         tokens.subspan(tail_begin, static_cast<size_t>(position) - tail_begin),
                         point_blocks_);
}

void BlockManager::Commit(SequenceId id, std::span<const TokenId> tokens) {
  Sequence& s = sequences_[static_cast<size_t>(id)];
  FATHOM_CHECK(s.active && s.end > s.length, "a step was prepared");
  s.length = s.end;
  if (!s.chained) return;
  FATHOM_CHECK(static_cast<int64_t>(tokens.size()) >= s.length, "its tokens are known");
  NameBlocks(s, tokens);
  for (const int64_t position : s.points) {
    const ResumePoint point = MakePoint(s, tokens, position);
    if (point == kNoIndex || position != s.rolling_point) continue;
    if (s.rolling != kNoIndex && s.rolling != point &&
        index_.GenerationOf(s.rolling) == s.rolling_generation && !index_.WasUsed(s.rolling)) {
      index_.RemovePoint(s.rolling);
    }
    s.rolling = point;
    s.rolling_generation = index_.GenerationOf(point);
  }
  s.points.clear();
}

bool BlockManager::Keep(SequenceId id, std::span<const TokenId> tokens, int64_t position) {
  const Sequence& s = At(id);
  FATHOM_CHECK(s.active && position <= s.length, "only positions that were computed");
  return s.chained && position > 0 && MakePoint(s, tokens, position) != kNoIndex;
}

void BlockManager::ClearPrefixes() {
  index_.Clear();
  for (Sequence& s : sequences_) {
    s.chained = false;
    s.node = kRootNode;
    s.num_named = 0;
    s.points.clear();
  }
}

}  // namespace fathom
