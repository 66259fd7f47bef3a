#include "cache/cache_memory.h"

#include <sys/mman.h>

#include <string>
#include <utility>

namespace fathom {

Result<std::unique_ptr<CacheMemory>> CacheMemory::Create(const CacheLayout& layout,
                                                         const BlockPool& pool,
                                                         DeviceMemory& device_memory) {
  std::unique_ptr<CacheMemory> memory(new CacheMemory(device_memory));
  memory->unit_ = pool.unit_bytes();
  const std::string no_room = "cannot reserve " + std::to_string(pool.memory_bytes()) +
                              " bytes for the cache; lower --kv-cache-memory-bytes";
  if (device_memory.host_readable()) {
    const auto bytes = static_cast<size_t>(pool.memory_bytes());
    void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return OutOfMemory(no_room);
    memory->base_ = static_cast<std::byte*>(base);
    memory->mapped_bytes_ = bytes;
    // Slabs are larger than huge pages and used as a whole; fewer TLB misses when entries are read
    // all over the cache. Only a hint.
    madvise(base, bytes, MADV_HUGEPAGE);
  } else {
    Result<DeviceBuffer> buffer = device_memory.Allocate(pool.memory_bytes());
    if (buffer.status().code() == StatusCode::kOutOfMemory) {
      return OutOfMemory(no_room + " (" + buffer.status().message() + ")");
    }
    FATHOM_RETURN_IF_ERROR(buffer.status());
    memory->buffer_ = std::move(*buffer);
    memory->base_ = memory->buffer_.data();
  }
  for (int c = 0; c < kNumCacheClasses; ++c) {
    memory->block_bytes_[static_cast<size_t>(c)] = layout.BlockBytes(static_cast<CacheClass>(c));
  }
  memory->views_ = layout.Views(memory->base_, memory->unit_);
  return memory;
}

CacheMemory::~CacheMemory() {
  if (mapped_bytes_ > 0) munmap(base_, mapped_bytes_);
}

Status CacheMemory::Copy(std::span<const BlockCopy> copies) {
  for (const BlockCopy& copy : copies) {
    FATHOM_RETURN_IF_ERROR(memory_.CopyWithin(base_ + copy.to * unit_, base_ + copy.from * unit_,
                                              block_bytes_[static_cast<size_t>(copy.cache_class)]));
  }
  return OkStatus();
}

Status CacheMemory::CarryOut(BlockManager& manager) {
  const Status status = Copy(manager.copies());
  manager.ClearCopies();
  return status;
}

}  // namespace fathom
