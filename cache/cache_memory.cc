#include "cache/cache_memory.h"

#include <sys/mman.h>

#include <cstring>
#include <string>

namespace fathom {

Result<std::unique_ptr<CacheMemory>> CacheMemory::Create(const CacheLayout& layout,
                                                         const BlockPool& pool) {
  std::unique_ptr<CacheMemory> memory(new CacheMemory);
  memory->bytes_ = static_cast<size_t>(pool.memory_bytes());
  memory->unit_ = pool.unit_bytes();
  void* base = mmap(nullptr, memory->bytes_, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return OutOfMemory("cannot reserve " + std::to_string(memory->bytes_) +
                       " bytes for the cache; lower --kv-cache-memory-bytes");
  }
  memory->base_ = static_cast<std::byte*>(base);
  // Slabs are larger than huge pages and used as a whole; fewer TLB misses when entries are read
  // all over the cache. Only a hint.
  madvise(base, memory->bytes_, MADV_HUGEPAGE);
  for (int c = 0; c < kNumCacheClasses; ++c) {
    memory->block_bytes_[static_cast<size_t>(c)] = layout.BlockBytes(static_cast<CacheClass>(c));
  }
  memory->views_ = layout.Views(memory->base_, memory->unit_);
  return memory;
}

CacheMemory::~CacheMemory() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

void CacheMemory::Copy(std::span<const BlockCopy> copies) {
  for (const BlockCopy& copy : copies) {
    std::memcpy(base_ + copy.to * unit_, base_ + copy.from * unit_,
                static_cast<size_t>(block_bytes_[static_cast<size_t>(copy.cache_class)]));
  }
}

void CacheMemory::CarryOut(BlockManager& manager) {
  Copy(manager.copies());
  manager.ClearCopies();
}

}  // namespace fathom
