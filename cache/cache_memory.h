// CacheMemory: the bytes behind a BlockPool, in the memory of the backend that computes.
//
// On the host, address space for all slabs is reserved at once; the system commits it page by page
// as it is written, so a large budget costs nothing before it is used. A device gives one buffer.
// Single-threaded: owned by the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/device_memory.h"
#include "backend/step_plan.h"
#include "base/status.h"
#include "cache/block_manager.h"

namespace fathom {

class CacheMemory {
 public:
  // Memory for the pool's slabs, for a backend whose memory is `memory`; it must outlive the cache.
  // kOutOfMemory when address space or buffer cannot be had.
  static Result<std::unique_ptr<CacheMemory>> Create(const CacheLayout& layout,
                                                     const BlockPool& pool, DeviceMemory& memory);
  ~CacheMemory();
  CacheMemory(const CacheMemory&) = delete;
  CacheMemory& operator=(const CacheMemory&) = delete;

  // Pages of all layers, as a StepPlan wants them.
  [[nodiscard]] std::span<const LayerPages> pages() const { return views_; }
  // Carries out the copies, in order; a device's may come later, before its next operation.
  Status Copy(std::span<const BlockCopy> copies);
  // Those that the manager waits for; to be called before each forward pass.
  Status CarryOut(BlockManager& manager);

 private:
  explicit CacheMemory(DeviceMemory& memory) : memory_(memory) {}

  DeviceMemory& memory_;
  DeviceBuffer buffer_;  // a device's
  std::byte* base_ = nullptr;
  size_t mapped_bytes_ = 0;  // on the host
  int64_t unit_ = 0;
  std::array<int64_t, kNumCacheClasses> block_bytes_{};
  std::vector<LayerPages> views_;
};

}  // namespace fathom
