// CacheMemory: the bytes behind a BlockPool on a backend that computes in host memory.
//
// Address space for all slabs is reserved at once; the system commits it page by page as it is
// written, so a large budget costs nothing before it is used. Single-threaded: owned by the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/step_plan.h"
#include "base/status.h"
#include "cache/block_manager.h"

namespace fathom {

class CacheMemory {
 public:
  // Memory for the pool's slabs. kOutOfMemory when the address space cannot be had.
  static Result<std::unique_ptr<CacheMemory>> Create(const CacheLayout& layout,
                                                     const BlockPool& pool);
  ~CacheMemory();
  CacheMemory(const CacheMemory&) = delete;
  CacheMemory& operator=(const CacheMemory&) = delete;

  // Pages of all layers, as a StepPlan wants them.
  [[nodiscard]] std::span<const LayerPages> pages() const { return views_; }
  // Carries out the copies, in order.
  void Copy(std::span<const BlockCopy> copies);
  // Those that the manager waits for; to be called before each forward pass.
  void CarryOut(BlockManager& manager);

 private:
  CacheMemory() = default;

  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
  int64_t unit_ = 0;
  std::array<int64_t, kNumCacheClasses> block_bytes_{};
  std::vector<LayerPages> views_;
};

}  // namespace fathom
