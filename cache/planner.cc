#include "cache/planner.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace fathom {
namespace {

constexpr int64_t kSlabUnit = 64 * 1024;
constexpr int64_t kMaxWastePercent = 3;

constexpr std::array<CacheClass, kNumCacheClasses> kClasses = {
    CacheClass::kFull, CacheClass::kSwa, CacheClass::kState4, CacheClass::kState128};

// Blocks of `per_block` positions that [begin, end) touches.
int64_t BlocksTouched(int64_t begin, int64_t end, int64_t per_block) {
  begin = std::max<int64_t>(begin, 0);
  return begin >= end ? 0 : (end - 1) / per_block - begin / per_block + 1;
}

// The largest n in [0, limit] for which fits(n) holds, given that smaller n fit as well.
template <typename Fits>
int64_t LargestThatFits(int64_t limit, const Fits& fits) {
  int64_t good = 0;
  int64_t bad = limit + 1;
  while (bad - good > 1) {
    const int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

}  // namespace

int64_t SlabBytes(const CacheLayout& layout) {
  int64_t largest = 0;
  for (const CacheClass c : kClasses) largest = std::max(largest, layout.BlockBytes(c));
  // Waste is less than one block, so the search ends before largest * 100 / 3.
  for (int64_t slab = CeilDiv(largest, kSlabUnit) * kSlabUnit;; slab += kSlabUnit) {
    if (std::all_of(kClasses.begin(), kClasses.end(), [&](CacheClass c) {
          const int64_t block = layout.BlockBytes(c);
          return block == 0 || slab % block * 100 <= slab * kMaxWastePercent;
        })) {
      return slab;
    }
  }
}

CachePlanner::CachePlanner(CacheLayout layout)
    : layout_(std::move(layout)), slab_bytes_(SlabBytes(layout_)) {}

int64_t CachePlanner::BlocksPerSlab(CacheClass cache_class) const {
  const int64_t block = layout_.BlockBytes(cache_class);
  return block == 0 ? 0 : slab_bytes_ / (CeilDiv(block, kBlockAlignment) * kBlockAlignment);
}

ClassCounts CachePlanner::BlocksAt(int64_t length) const {
  ClassCounts counts{};
  for (const CacheClass c : kClasses) {
    if (layout_.BlockBytes(c) == 0) continue;
    const int64_t begin = c == CacheClass::kFull ? 0 : length - layout_.WindowPositions(c);
    counts[static_cast<size_t>(c)] =
        BlocksTouched(begin, length, CacheLayout::PositionsPerBlock(c));
  }
  return counts;
}

ClassCounts CachePlanner::MaxBlocks(int64_t length) const {
  ClassCounts counts{};
  for (const CacheClass c : kClasses) {
    if (layout_.BlockBytes(c) == 0) continue;
    const int64_t per_block = CacheLayout::PositionsPerBlock(c);
    int64_t& count = counts[static_cast<size_t>(c)];
    count = CeilDiv(length, per_block);
    if (c != CacheClass::kFull) {
      count = std::min(count, CeilDiv(layout_.WindowPositions(c) - 1, per_block) + 1);
    }
  }
  return counts;
}

ClassCounts CachePlanner::ChunkBlocks(int64_t length) const {
  const ClassCounts most = MaxBlocks(length);
  ClassCounts counts{};
  for (const CacheClass c : kClasses) {
    if (layout_.BlockBytes(c) == 0 || c == CacheClass::kFull) continue;
    const int64_t per_block = CacheLayout::PositionsPerBlock(c);
    const auto i = static_cast<size_t>(c);
    counts[i] = std::min(CeilDiv(layout_.WindowPositions(c) - 1, per_block) + 1,
                         CeilDiv(length, per_block) - most[i]);
  }
  return counts;
}

ClassCounts CachePlanner::MaxBlocks(int64_t num_sequences, int64_t length) const {
  ClassCounts counts = MaxBlocks(length);
  const ClassCounts chunk = num_sequences > 0 ? ChunkBlocks(length) : ClassCounts{};
  for (size_t c = 0; c < kNumCacheClasses; ++c) counts[c] = counts[c] * num_sequences + chunk[c];
  return counts;
}

ClassCounts CachePlanner::ResumePointBlocks(int64_t position) const {
  ClassCounts counts{};
  for (const CacheClass c : kClasses) {
    if (layout_.BlockBytes(c) == 0 || c == CacheClass::kFull) continue;
    counts[static_cast<size_t>(c)] =
        BlocksTouched(layout_.LiveBegin(c, position), position, CacheLayout::PositionsPerBlock(c));
  }
  return counts;
}

int64_t CachePlanner::BlockBytes(const ClassCounts& blocks) const {
  int64_t bytes = 0;
  for (const CacheClass c : kClasses) {
    bytes += blocks[static_cast<size_t>(c)] * layout_.BlockBytes(c);
  }
  return bytes;
}

int64_t CachePlanner::SlabsFor(const ClassCounts& blocks) const {
  int64_t slabs = 0;
  for (const CacheClass c : kClasses) {
    if (const int64_t per_slab = BlocksPerSlab(c); per_slab > 0) {
      slabs += CeilDiv(blocks[static_cast<size_t>(c)], per_slab);
    }
  }
  return slabs;
}

int64_t CachePlanner::BytesFor(int64_t num_sequences, int64_t length) const {
  const ClassCounts blocks = MaxBlocks(num_sequences, length);
  // A product of an absurd geometry and an absurd request stays a number that fits nowhere.
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const int64_t slabs = SlabsFor(blocks);
  return slabs > kMost / slab_bytes_ ? kMost : slabs * slab_bytes_;
}

int64_t CachePlanner::MaxSequences(int64_t length, int64_t budget_bytes) const {
  const ClassCounts blocks = MaxBlocks(length);
  const int64_t slabs = std::max<int64_t>(budget_bytes, 0) / slab_bytes_;
  // No class alone can have more; this also keeps the products below inside the budget.
  int64_t limit = std::numeric_limits<int32_t>::max();
  for (const CacheClass c : kClasses) {
    if (const int64_t count = blocks[static_cast<size_t>(c)]; count > 0) {
      limit = std::min(limit, slabs * BlocksPerSlab(c) / count);
    }
  }
  return LargestThatFits(limit,
                         [&](int64_t n) { return BytesFor(n, length) <= slabs * slab_bytes_; });
}

int64_t CachePlanner::MaxLength(int64_t num_sequences, int64_t budget_bytes, int64_t limit) const {
  return LargestThatFits(
      limit, [&](int64_t length) { return BytesFor(num_sequences, length) <= budget_bytes; });
}

EntryBytes EntryBytesAt(const CacheLayout& layout, int64_t length) {
  const auto stored = [&](CacheKind kind, int64_t positions, int num_layers) {
    return positions / CacheLayout::PositionsPerEntry(kind) * layout.Format(kind).entry_bytes() *
           num_layers;
  };
  const auto all = [&](CacheKind kind, int64_t positions) {
    return stored(kind, positions, layout.NumLayers(kind));
  };
  const int mtp = layout.geometry().num_mtp_layers;
  const int64_t window = std::min<int64_t>(length, layout.WindowPositions(CacheClass::kSwa));
  const int64_t last8 = std::min<int64_t>(length, layout.WindowPositions(CacheClass::kState4));
  const int64_t last128 = std::min<int64_t>(length, layout.WindowPositions(CacheClass::kState128));
  EntryBytes bytes;
  bytes.window = stored(CacheKind::kSwaKv, window, layout.NumLayers(CacheKind::kSwaKv) - mtp);
  bytes.mtp_window = stored(CacheKind::kSwaKv, window, mtp);
  bytes.c4_kv = all(CacheKind::kC4Kv, length);
  bytes.c4_index_keys = all(CacheKind::kC4IndexKeys, length);
  bytes.c128_kv = all(CacheKind::kC128Kv, length);
  bytes.state = all(CacheKind::kC4State, last8) + all(CacheKind::kC4IndexState, last8) +
                all(CacheKind::kC128State, last128);
  return bytes;
}

ReadBytes ReadBytesPerToken(const CacheLayout& layout, int64_t length, int index_topk) {
  const EntryBytes stored = EntryBytesAt(layout, length);
  const int64_t chosen = std::min<int64_t>(length / 4, index_topk);
  ReadBytes bytes;
  bytes.window = stored.window;
  bytes.c4_index_keys = stored.c4_index_keys;
  bytes.c4_chosen =
      chosen * layout.Format(CacheKind::kC4Kv).entry_bytes() * layout.NumLayers(CacheKind::kC4Kv);
  bytes.c128_kv = stored.c128_kv;
  return bytes;
}

int64_t V32StyleBytes(int num_layers, int64_t length) {
  constexpr int64_t kBytes = (512 + 64) * 2 + 128 * 2;
  return kBytes * num_layers * length;
}

}  // namespace fathom
