// What a cache page looks like: data only, shared by kernels, allocator and planner.
//
// A page holds one layer's entries of one kind. Entry j of a sequence stands in the sequence's
// logical block j / entries_per_page, row j % entries_per_page; the block table says which page
// block that is. The address of a page is always base + number * stride, never an offset that runs
// across blocks. Byte layouts:
// docs/cache_pages.md. Source: deepseek-ai/FlashMLA: tests/quant.py; vllm-project/vllm:
// vllm/models/deepseek_v4.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fathom {

// The seven stored things of a V4 model.
enum class CacheKind {
  kSwaKv,         // window KV, one entry per token
  kC4Kv,          // compressed KV of ratio-4 layers, one entry per 4 tokens
  kC128Kv,        // compressed KV of ratio-128 layers, one entry per 128 tokens
  kC4IndexKeys,   // indexer keys of ratio-4 layers, one entry per 4 tokens
  kC4State,       // compressor rows of ratio-4 layers, one per token, last 8 needed
  kC128State,     // compressor rows of ratio-128 layers, one per token, last 128 needed
  kC4IndexState,  // compressor rows of the indexer, one per token, last 8 needed
};
inline constexpr int kNumCacheKinds = 7;

// Kinds that grow and go together; each has one block table per sequence.
enum class CacheClass { kFull, kSwa, kState4, kState128 };
inline constexpr int kNumCacheClasses = 4;

constexpr CacheClass ClassOf(CacheKind kind) {
  switch (kind) {
    case CacheKind::kSwaKv:
      return CacheClass::kSwa;
    case CacheKind::kC4State:
    case CacheKind::kC4IndexState:
      return CacheClass::kState4;
    case CacheKind::kC128State:
      return CacheClass::kState128;
    case CacheKind::kC4Kv:
    case CacheKind::kC128Kv:
    case CacheKind::kC4IndexKeys:
      return CacheClass::kFull;
  }
  return CacheClass::kFull;
}

// The official code computes with KV values rounded to kE4m3Rope's grid and index keys rounded to
// kE2m1's. The wider encodings hold the same rounded values, so which one a cache uses changes its
// size and no result.
enum class EntryEncoding {
  kF32,         // `dim` floats; exact mode, and compressor rows in both modes
  kE4m3Rope,    // dim - rope_dim e4m3 codes in groups of 64, rope_dim bf16, scale bytes apart
  kE2m1,        // dim packed e2m1 in groups of 32, scale bytes apart
  kBf16Rope,    // dim bf16: the values of kE4m3Rope
  kBf16,        // dim bf16: the values of kE2m1
  kE4m3Scaled,  // dim e4m3 codes: the values of kE2m1 under one fp32 power of two per entry, apart
};

// Entries of one page. Values of all entries come first, scale bytes of all entries after them.
struct PageFormat {
  EntryEncoding encoding = EntryEncoding::kF32;
  int dim = 0;       // values per entry (compressor rows: K then S, 2 * coff * width)
  int rope_dim = 0;  // of kE4m3Rope and kBf16Rope
  int entries_per_page = 0;

  // Bytes of one entry's values.
  [[nodiscard]] constexpr int64_t value_bytes() const {
    switch (encoding) {
      case EntryEncoding::kF32:
        return int64_t{4} * dim;
      case EntryEncoding::kE4m3Rope:
        return int64_t{dim} + rope_dim;
      case EntryEncoding::kE2m1:
        return dim / 2;
      case EntryEncoding::kBf16Rope:
      case EntryEncoding::kBf16:
        return int64_t{2} * dim;
      case EntryEncoding::kE4m3Scaled:
        return dim;
    }
    return 0;
  }
  // Bytes of one entry's scales: one per group of 64, padded to 8; one per group of 32; one fp32.
  [[nodiscard]] constexpr int64_t scale_bytes() const {
    switch (encoding) {
      case EntryEncoding::kF32:
      case EntryEncoding::kBf16Rope:
      case EntryEncoding::kBf16:
        return 0;
      case EntryEncoding::kE4m3Rope:
        return (int64_t{dim - rope_dim} / 64 + 7) / 8 * 8;
      case EntryEncoding::kE2m1:
        return dim / 32;
      case EntryEncoding::kE4m3Scaled:
        return 4;
    }
    return 0;
  }
  // Whether KV entries or index keys can be stored so: the encoding is one for them and `dim`
  // divides into its groups.
  [[nodiscard]] constexpr bool HoldsKv() const {
    return encoding == EntryEncoding::kF32 ||
           ((encoding == EntryEncoding::kE4m3Rope || encoding == EntryEncoding::kBf16Rope) &&
            rope_dim >= 0 && rope_dim <= dim && (dim - rope_dim) % 64 == 0);
  }
  [[nodiscard]] constexpr bool HoldsIndexKeys() const {
    return encoding == EntryEncoding::kF32 ||
           ((encoding == EntryEncoding::kE2m1 || encoding == EntryEncoding::kBf16 ||
             encoding == EntryEncoding::kE4m3Scaled) &&
            dim % 32 == 0);
  }
  [[nodiscard]] constexpr int64_t entry_bytes() const { return value_bytes() + scale_bytes(); }
  [[nodiscard]] constexpr int64_t content_bytes() const { return entry_bytes() * entries_per_page; }
  [[nodiscard]] constexpr int64_t scale_offset() const { return value_bytes() * entries_per_page; }
};

// The pages of one (layer, kind) in a class's memory.
struct PageView {
  PageFormat format;
  std::byte* base = nullptr;  // page of number 0
  int64_t block_stride = 0;   // bytes per unit of a table's numbers

  [[nodiscard]] bool empty() const { return base == nullptr; }
};

// A sequence's blocks of one class: `blocks[i]` is the number of logical block `first + i`, or
// kNoBlock. Tables of sliding classes begin at their window, so that they stay small.
// A number is whatever the allocator multiplies with the views' strides, not negative; two blocks'
// numbers need not follow each other (they may all be multiples of something).
struct BlockTable {
  const int32_t* blocks = nullptr;
  int64_t num_blocks = 0;
  int64_t first = 0;
};
inline constexpr int32_t kNoBlock = -1;

// Where one entry lives: the start of its page and its row.
struct EntryRef {
  std::byte* page = nullptr;
  int row = 0;
};

// Whether the table has a block for this entry. Sequences begin at entry 0.
constexpr bool HasBlock(const PageView& view, const BlockTable& table, int64_t entry) {
  const int64_t index = entry / view.format.entries_per_page - table.first;
  return entry >= 0 && index >= 0 && index < table.num_blocks && table.blocks[index] != kNoBlock;
}

// Only for entries that have a block.
constexpr EntryRef Locate(const PageView& view, const BlockTable& table, int64_t entry) {
  const int64_t number = table.blocks[entry / view.format.entries_per_page - table.first];
  return {view.base + number * view.block_stride,
          static_cast<int>(entry % view.format.entries_per_page)};
}

}  // namespace fathom
