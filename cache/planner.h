// CachePlanner: how much memory sequences take, before any of it is allocated.
//
// Everything is arithmetic on a CacheLayout. `fathom plan` prints it; whoever cuts cache memory at
// load or admits a sequence asks the same functions, so that two formulas never disagree. A length
// is a number of positions; functions of it take any value from 0 to 2^31 - 1. Immutable.
#pragma once

#include <array>
#include <cstdint>

#include "cache/cache_layout.h"

namespace fathom {

// One number per class, in the order of CacheClass.
using ClassCounts = std::array<int64_t, kNumCacheClasses>;

// Cache memory is cut into slabs, each lent to one class and cut into its page blocks: the smallest
// multiple of 64 KiB of which no class wastes more than 3 %.
int64_t SlabBytes(const CacheLayout& layout);

class CachePlanner {
 public:
  explicit CachePlanner(CacheLayout layout);

  [[nodiscard]] const CacheLayout& layout() const { return layout_; }
  [[nodiscard]] int64_t slab_bytes() const { return slab_bytes_; }
  // Blocks begin at multiples of kBlockAlignment. 0 for a class that no layer has.
  [[nodiscard]] int64_t BlocksPerSlab(CacheClass cache_class) const;

  // Page blocks that a sequence holds when position length - 1 is its newest: those of the whole
  // sequence, and of the window that ends there.
  [[nodiscard]] ClassCounts BlocksAt(int64_t length) const;
  // The most that it holds at any time until it has `length` positions: what admission counts.
  // A window of several blocks may begin and end inside one, hence one block more than it fills.
  [[nodiscard]] ClassCounts MaxBlocks(int64_t length) const;
  // What a prefill chunk of a sequence of `length` positions may hold beside that while it runs:
  // the window in front of it is still read while the one at its end is written. Counted once, for
  // the one chunk that can always run.
  [[nodiscard]] ClassCounts ChunkBlocks(int64_t length) const;
  // The most blocks of `num_sequences` of `length` positions, whatever they do, with one chunk.
  [[nodiscard]] ClassCounts MaxBlocks(int64_t num_sequences, int64_t length) const;
  // Page blocks that a resume point at `position` leases beside the full class: the window and
  // states from which position `position` can be computed.
  [[nodiscard]] ClassCounts ResumePointBlocks(int64_t position) const;

  // Bytes of page blocks alone, and of the slabs that hold them.
  [[nodiscard]] int64_t BlockBytes(const ClassCounts& blocks) const;
  [[nodiscard]] int64_t SlabsFor(const ClassCounts& blocks) const;
  // Bytes of the slabs for `num_sequences` (below 2^31) of `length` positions each, whatever they
  // do; saturates.
  [[nodiscard]] int64_t BytesFor(int64_t num_sequences, int64_t length) const;

  // How many sequences of `length` positions always fit into `budget_bytes`.
  [[nodiscard]] int64_t MaxSequences(int64_t length, int64_t budget_bytes) const;
  // The largest length up to `limit` of which `num_sequences` fit; 0 when not even one position
  // each does.
  [[nodiscard]] int64_t MaxLength(int64_t num_sequences, int64_t budget_bytes, int64_t limit) const;

 private:
  CacheLayout layout_;
  int64_t slab_bytes_ = 0;
};

// Bytes of stored entries without pages around them, after `length` positions.
struct EntryBytes {
  int64_t window = 0;  // of main layers
  int64_t c4_kv = 0;
  int64_t c4_index_keys = 0;
  int64_t c128_kv = 0;
  int64_t state = 0;       // compressor rows
  int64_t mtp_window = 0;  // of MTP blocks' layers

  // What published figures count: main layers without states.
  [[nodiscard]] int64_t entries() const { return window + c4_kv + c4_index_keys + c128_kv; }
  [[nodiscard]] int64_t total() const { return entries() + state + mtp_window; }
};
EntryBytes EntryBytesAt(const CacheLayout& layout, int64_t length);

// Bytes of entries that decoding one token reads after `length` positions, main layers only. The
// scan of index keys is counted also where all entries are chosen anyway, as published figures do.
struct ReadBytes {
  int64_t window = 0;
  int64_t c4_index_keys = 0;
  int64_t c4_chosen = 0;  // at most index_topk entries per layer
  int64_t c128_kv = 0;

  [[nodiscard]] int64_t total() const { return window + c4_index_keys + c4_chosen + c128_kv; }
};
ReadBytes ReadBytesPerToken(const CacheLayout& layout, int64_t length, int index_topk);

// For comparison: a bf16 cache of DeepSeek-V3.2's kind, which keeps every position in every layer
// (512 + 64 values and an index key of 128).
int64_t V32StyleBytes(int num_layers, int64_t length);

}  // namespace fathom
