// SequenceCache: the cache pages of one sequence, in block tables of four classes.
//
// All memory is reserved at Create() for the longest sequence and the largest step; the operating
// system commits it page by page as it is written. The full class keeps every position; sliding
// classes give back blocks behind their window, so their size depends on window and step only.
// Single-threaded: owned by the engine.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/step_plan.h"
#include "base/status.h"
#include "base/types.h"
#include "cache/cache_layout.h"

namespace fathom {

class SequenceCache {
 public:
  // kOutOfMemory when the address space cannot be had.
  static Result<std::unique_ptr<SequenceCache>> Create(const CacheLayout& layout,
                                                       int64_t max_positions, int max_step_rows);
  ~SequenceCache();
  SequenceCache(const SequenceCache&) = delete;
  SequenceCache& operator=(const SequenceCache&) = delete;

  // Prepares a step that computes positions [start, end): blocks for them exist afterwards, and
  // blocks wholly behind the window of `start` are given back. kOutOfMemory beyond max_positions;
  // kInvalidArgument when the step is larger than max_step_rows or does not begin at the end of the
  // last.
  Status BeginStep(Position start, Position end);
  // Forgets everything.
  void Clear();

  [[nodiscard]] std::span<const LayerPages> pages() const { return views_; }
  [[nodiscard]] BlockTable Table(CacheClass cache_class) const;
  // Positions computed or being computed.
  [[nodiscard]] Position length() const { return length_; }
  // Blocks in use, for tests and metrics.
  [[nodiscard]] int64_t NumBlocks(CacheClass cache_class) const;

 private:
  struct ClassMemory {
    std::byte* base = nullptr;
    size_t bytes = 0;
    std::vector<int32_t> table;  // by logical block of the class
    std::vector<int32_t> free;   // block ids, last is next
    int64_t num_blocks = 0;      // all
    int64_t end = 0;             // logical blocks ever allocated: [begin, end) are held
    int64_t begin = 0;
  };
  SequenceCache(const CacheLayout& layout, int64_t max_positions, int max_step_rows);
  Status Reserve();

  CacheLayout layout_;
  int64_t max_positions_;
  int max_step_rows_;
  std::array<ClassMemory, kNumCacheClasses> classes_;
  std::vector<LayerPages> views_;
  Position length_ = 0;
};

}  // namespace fathom
