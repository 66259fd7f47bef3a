#include "backend/cuda/test_heap.h"

#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>

#include "backend/cuda/status.h"

namespace fathom {
namespace {

// Blocks of powers of two. A chunk is cut into blocks of one size; larger blocks are whole chunks.
// Freed blocks wait in the list of their size; nothing is joined again. Addresses are multiples of
// the block's size, up to a chunk's.
class Heap {
 public:
  static constexpr size_t kBytes = size_t{3} << 30;
  static constexpr size_t kChunk = size_t{1} << 20;
  static constexpr size_t kSmallest = 64;

  void* Allocate(size_t bytes, size_t alignment) {
    const size_t size = std::bit_ceil(std::max({bytes, alignment, kSmallest}));
    if (bytes > kBytes || alignment > kChunk) Die("a block", bytes);
    const auto order = static_cast<size_t>(std::countr_zero(size));
    const std::lock_guard lock(mutex_);
    if (free_[order] == nullptr) Refill(order, size);
    Block* block = free_[order];
    free_[order] = block->next;
    return block;
  }

  void Free(void* data) {
    if (data == nullptr) return;
    const std::lock_guard lock(mutex_);
    const size_t chunk = static_cast<size_t>(static_cast<std::byte*>(data) - base_) / kChunk;
    auto* block = static_cast<Block*>(data);
    block->next = free_[orders_[chunk]];
    free_[orders_[chunk]] = block;
  }

  std::byte* base() {
    const std::lock_guard lock(mutex_);
    Map();
    return base_;
  }

 private:
  struct Block {
    Block* next;
  };

  static void Die(const char* what, size_t bytes) {
    std::fprintf(stderr, "test heap: no room for %s of %zu bytes\n", what, bytes);
    std::abort();
  }
  void Map() {
    if (base_ != nullptr) return;
    void* memory = mmap(nullptr, kBytes + kChunk, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) Die("the heap", kBytes);
    const auto address = reinterpret_cast<uintptr_t>(memory);
    base_ = static_cast<std::byte*>(memory) + (kChunk - address % kChunk) % kChunk;
  }
  // Cuts new chunks into blocks of `size`.
  void Refill(size_t order, size_t size) {
    Map();
    const size_t chunks = std::max(size / kChunk, size_t{1});
    if (next_chunk_ + chunks > kBytes / kChunk) Die("more blocks", size);
    std::byte* begin = base_ + next_chunk_ * kChunk;
    for (size_t i = 0; i < chunks; ++i) {
      orders_[next_chunk_ + i] = static_cast<uint8_t>(order);
    }
    next_chunk_ += chunks;
    for (size_t at = chunks * kChunk; at >= size; at -= size) {
      auto* block = reinterpret_cast<Block*>(begin + at - size);
      block->next = free_[order];
      free_[order] = block;
    }
  }

  std::mutex mutex_;  // guards everything below
  std::byte* base_ = nullptr;
  size_t next_chunk_ = 0;
  Block* free_[40] = {};
  uint8_t orders_[kBytes / kChunk] = {};
};

// Used before any constructor has run, and after all destructors.
constinit Heap heap;

}  // namespace

Status ShareHeapWithGpu() {
  FATHOM_CUDA(cudaHostRegister(heap.base(), Heap::kBytes,
                               cudaHostRegisterPortable | cudaHostRegisterMapped));
  int device = 0;
  int same_addresses = 0;
  FATHOM_CUDA(cudaGetDevice(&device));
  FATHOM_CUDA(cudaDeviceGetAttribute(&same_addresses, cudaDevAttrCanUseHostPointerForRegisteredMem,
                                     device));
  if (same_addresses == 0) {
    return Unimplemented("this GPU sees registered host memory at other addresses");
  }
  return OkStatus();
}

}  // namespace fathom

void* operator new(size_t bytes) { return fathom::heap.Allocate(bytes, 1); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return fathom::heap.Allocate(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* data) noexcept { fathom::heap.Free(data); }
void operator delete(void* data, size_t /*bytes*/) noexcept { fathom::heap.Free(data); }
void operator delete(void* data, std::align_val_t /*alignment*/) noexcept {
  fathom::heap.Free(data);
}
void operator delete(void* data, size_t /*bytes*/, std::align_val_t /*alignment*/) noexcept {
  fathom::heap.Free(data);
}
