// TagMemory: cache memory of a test, which holds a 64-bit tag where a backend would store a
// position's entry. Blocks lie where the pool's numbers say, so blocks that overlap spoil each
// other's tags. Used by tests only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cache/block_pool.h"
#include "cache/planner.h"

namespace fathom {

class TagMemory {
 public:
  static constexpr uint64_t kPoison = 0xDEADDEADDEADDEAD;

  TagMemory(const CacheLayout& layout, const BlockPool& pool)
      : layout_(layout),
        unit_bytes_(pool.unit_bytes()),
        words_(static_cast<size_t>(pool.memory_bytes() / 8), kPoison) {}

  // The tag of a position in the block with a number.
  uint64_t& At(CacheClass c, int32_t number, int64_t position) {
    const int64_t per_block = CacheLayout::PositionsPerBlock(c);
    return words_[Begin(number) +
                  static_cast<size_t>(position % per_block * BlockWords(c) / per_block)];
  }
  void Poison(CacheClass c, int32_t number) {
    std::fill_n(words_.begin() + static_cast<ptrdiff_t>(Begin(number)), BlockWords(c), kPoison);
  }
  void Copy(CacheClass c, int32_t from, int32_t to) {
    std::copy_n(words_.begin() + static_cast<ptrdiff_t>(Begin(from)), BlockWords(c),
                words_.begin() + static_cast<ptrdiff_t>(Begin(to)));
  }

 private:
  [[nodiscard]] size_t Begin(int32_t number) const {
    return static_cast<size_t>(number * unit_bytes_ / 8);
  }
  [[nodiscard]] int64_t BlockWords(CacheClass c) const { return layout_.BlockBytes(c) / 8; }

  const CacheLayout& layout_;
  int64_t unit_bytes_;
  std::vector<uint64_t> words_;
};

}  // namespace fathom
