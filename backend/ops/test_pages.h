// A step's pages, block tables and plan, as cache and planner would provide them.
//
// Blocks of all sequences are scattered over one memory per kind. Everything that nobody wrote is
// 0xFF, which every format reads as NaN: an operation that reads a wrong entry shows it. The block
// id kNoBlock leads to such bytes as well, and so does the gap behind each page.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <numeric>
#include <vector>

#include "backend/ops/test_values.h"
#include "backend/page_codec.h"
#include "backend/step_plan.h"

namespace fathom {

struct TestSequence {
  Position start = 0;
  int num_rows = 0;
};

class TestPages {
 public:
  // Each sequence gets `blocks` blocks of every class.
  TestPages(std::vector<TestSequence> sequences, int blocks, uint32_t seed = 1) : blocks_(blocks) {
    num_blocks_ = blocks * static_cast<int>(sequences.size());
    testing_values::Random random(seed);
    for (size_t c = 0; c < kNumCacheClasses; ++c) {
      firsts_[c].assign(sequences.size(), 0);
      ids_[c].resize(static_cast<size_t>(num_blocks_));
      std::iota(ids_[c].begin(), ids_[c].end(), 0);
      for (int i = num_blocks_ - 1; i > 0; --i) {
        std::swap(ids_[c][static_cast<size_t>(i)],
                  ids_[c][static_cast<size_t>(random.Below(i + 1))]);
      }
      all_ids_[c] = ids_[c];
    }
    SetStep(std::move(sequences));
  }
  TestPages(const TestPages&) = delete;
  TestPages& operator=(const TestPages&) = delete;

  // The next step's rows; pages and tables stay. As many sequences as before.
  void SetStep(std::vector<TestSequence> sequences) {
    rows_.clear();
    positions_.clear();
    for (const TestSequence& s : sequences) {
      rows_.push_back({static_cast<int>(positions_.size()), s.num_rows, s.start});
      for (int i = 0; i < s.num_rows; ++i) positions_.push_back(s.start + i);
    }
    tokens_.assign(positions_.size(), 0);
    for (size_t c = 0; c < kNumCacheClasses; ++c) {
      tables_[c].clear();
      for (size_t s = 0; s < rows_.size(); ++s) {
        const int64_t first = firsts_[c][s];
        tables_[c].push_back(
            {&ids_[c][s * static_cast<size_t>(blocks_)] + first, blocks_ - first, first});
      }
      plan_.tables[c] = tables_[c];
    }
    plan_.token_ids = tokens_;
    plan_.positions = positions_;
    plan_.sequences = rows_;
  }

  PageView Add(CacheKind kind, const PageFormat& format) {
    const int64_t stride = (format.content_bytes() + kGap + 15) / 16 * 16;
    std::vector<std::byte>& memory = memory_[kind];
    memory.assign(static_cast<size_t>(stride * (num_blocks_ + 1)), std::byte{0xFF});
    views_[kind] = {format, memory.data() + stride, stride};
    return views_[kind];
  }

  // The cache no longer has the blocks of this class that hold only entries before `entry`.
  void DropBlocksBefore(CacheKind kind, size_t sequence, int64_t entry) {
    int32_t* table =
        &ids_[static_cast<size_t>(ClassOf(kind))][sequence * static_cast<size_t>(blocks_)];
    std::fill(table, table + entry / views_.at(kind).format.entries_per_page, kNoBlock);
  }

  // Entries [begin, end).
  struct Entries {
    int64_t begin = 0;
    int64_t end = 0;
  };
  // The cache has exactly those blocks of this kind's class that hold any of these entries, and the
  // table begins at the first of them; what other blocks held is lost. Until the next SetStep the
  // plan has the old tables.
  void KeepBlocks(CacheKind kind, size_t sequence, const std::vector<Entries>& kept) {
    const auto c = static_cast<size_t>(ClassOf(kind));
    const PageView& view = views_.at(kind);
    const int per_page = view.format.entries_per_page;
    int64_t first = blocks_;
    for (int64_t b = blocks_ - 1; b >= 0; --b) {
      const size_t at = sequence * static_cast<size_t>(blocks_) + static_cast<size_t>(b);
      const bool keep = std::any_of(kept.begin(), kept.end(), [&](const Entries& e) {
        return e.begin < e.end && b >= e.begin / per_page && b <= (e.end - 1) / per_page;
      });
      ids_[c][at] = keep ? all_ids_[c][at] : kNoBlock;
      if (keep) {
        first = b;
      } else {
        std::memset(view.base + all_ids_[c][at] * view.block_stride, 0xFF,
                    static_cast<size_t>(view.block_stride));
      }
    }
    firsts_[c][sequence] = first;
  }
  // Nothing was written to blocks that the sequence doesn't have.
  [[nodiscard]] bool LostBlocksUntouched(CacheKind kind, size_t sequence) const {
    const auto c = static_cast<size_t>(ClassOf(kind));
    const PageView& view = views_.at(kind);
    for (size_t b = 0; b < static_cast<size_t>(blocks_); ++b) {
      const size_t at = sequence * static_cast<size_t>(blocks_) + b;
      const std::byte* page = view.base + all_ids_[c][at] * view.block_stride;
      if (ids_[c][at] == kNoBlock && !std::all_of(page, page + view.block_stride, [](std::byte x) {
            return x == std::byte{0xFF};
          })) {
        return false;
      }
    }
    return true;
  }

  void Write(CacheKind kind, size_t sequence, int64_t entry, std::span<const float> values) {
    StoreEntry(views_.at(kind).format, At(kind, sequence, entry), values);
  }
  [[nodiscard]] std::vector<float> Read(CacheKind kind, size_t sequence, int64_t entry) const {
    std::vector<float> values(static_cast<size_t>(views_.at(kind).format.dim));
    LoadEntry(views_.at(kind).format, At(kind, sequence, entry), values);
    return values;
  }
  // Value and scale bytes of an entry.
  [[nodiscard]] std::vector<std::byte> Bytes(CacheKind kind, size_t sequence, int64_t entry) const {
    const PageFormat& f = views_.at(kind).format;
    const EntryRef ref = At(kind, sequence, entry);
    const std::byte* values = ref.page + f.value_bytes() * ref.row;
    const std::byte* scales = ref.page + f.scale_offset() + f.scale_bytes() * ref.row;
    std::vector<std::byte> bytes(values, values + f.value_bytes());
    bytes.insert(bytes.end(), scales, scales + f.scale_bytes());
    return bytes;
  }
  [[nodiscard]] bool Untouched(CacheKind kind, size_t sequence, int64_t entry) const {
    const std::vector<std::byte> bytes = Bytes(kind, sequence, entry);
    return std::all_of(bytes.begin(), bytes.end(),
                       [](std::byte b) { return b == std::byte{0xFF}; });
  }
  // Nothing was written behind a page's content or before the first page.
  [[nodiscard]] bool GapsUntouched() const {
    for (const auto& [kind, view] : views_) {
      for (int64_t block = -1; block < num_blocks_; ++block) {
        const std::byte* page = view.base + block * view.block_stride;
        const std::byte* begin = block < 0 ? page : page + view.format.content_bytes();
        if (!std::all_of(begin, page + view.block_stride,
                         [](std::byte b) { return b == std::byte{0xFF}; })) {
          return false;
        }
      }
    }
    return true;
  }

  [[nodiscard]] const StepPlan& plan() const { return plan_; }

 private:
  static constexpr int64_t kGap = 24;

  [[nodiscard]] EntryRef At(CacheKind kind, size_t sequence, int64_t entry) const {
    return Locate(views_.at(kind), tables_[static_cast<size_t>(ClassOf(kind))][sequence], entry);
  }

  int blocks_ = 0;
  int num_blocks_ = 0;
  std::array<std::vector<int32_t>, kNumCacheClasses> all_ids_, ids_;
  std::array<std::vector<int64_t>, kNumCacheClasses> firsts_;  // by sequence
  std::array<std::vector<BlockTable>, kNumCacheClasses> tables_;
  std::vector<SequenceRows> rows_;
  std::vector<Position> positions_;
  std::vector<TokenId> tokens_;
  std::map<CacheKind, std::vector<std::byte>> memory_;
  std::map<CacheKind, PageView> views_;
  StepPlan plan_;
};

// The formats that the model's caches have in each numerics, with small dimensions.
inline PageFormat KvFormat(bool official, int dim, int rope_dim, int entries_per_page) {
  return official ? PageFormat{EntryEncoding::kE4m3Rope, dim, rope_dim, entries_per_page}
                  : PageFormat{EntryEncoding::kF32, dim, 0, entries_per_page};
}
inline PageFormat IndexKeyFormat(bool official, int dim, int entries_per_page) {
  return {official ? EntryEncoding::kE2m1 : EntryEncoding::kF32, dim, 0, entries_per_page};
}

}  // namespace fathom
