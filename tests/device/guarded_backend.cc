#include "tests/device/guarded_backend.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

namespace fathom {
namespace {

constexpr int64_t kPageBytes = 4096;

}  // namespace

Status GuardedMemory::CopyIn(std::byte* to, std::span<const std::byte> from) {
  const auto bytes = static_cast<int64_t>(from.size());
  FATHOM_RETURN_IF_ERROR(CheckInside(to, bytes));
  bytes_in_ += bytes;
  const Access access(*this);
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
  return OkStatus();
}

Status GuardedMemory::CopyOut(std::span<std::byte> to, const std::byte* from) {
  const auto bytes = static_cast<int64_t>(to.size());
  FATHOM_RETURN_IF_ERROR(CheckInside(from, bytes));
  bytes_out_ += bytes;
  largest_copy_out_ = std::max(largest_copy_out_, bytes);
  const Access access(*this);
  if (!to.empty()) std::memcpy(to.data(), from, to.size());
  return OkStatus();
}

Status GuardedMemory::CopyWithin(std::byte* to, const std::byte* from, int64_t bytes) {
  FATHOM_RETURN_IF_ERROR(CheckInside(to, bytes));
  FATHOM_RETURN_IF_ERROR(CheckInside(from, bytes));
  if (to < from + bytes && from < to + bytes) return Internal("guarded memory: copies overlap");
  ++copies_within_;
  const Access access(*this);
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  return OkStatus();
}

Result<MemoryState> GuardedMemory::State() const {
  return MemoryState{"guarded memory", total_bytes_, total_bytes_ - used_bytes_};
}

Result<std::byte*> GuardedMemory::AllocateBytes(int64_t bytes) {
  if (bytes > total_bytes_ - used_bytes_) {
    return OutOfMemory("guarded memory of " + std::to_string(bytes) + " bytes");
  }
  const int64_t mapped = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  void* const data = mmap(nullptr, static_cast<size_t>(mapped), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return OutOfMemory("guarded memory: no address space");
  std::memset(data, 0xFF, static_cast<size_t>(mapped));
  mprotect(data, static_cast<size_t>(mapped), PROT_NONE);
  auto* const begin = static_cast<std::byte*>(data);
  buffers_[begin] = mapped;
  used_bytes_ += mapped;
  return begin;
}

void GuardedMemory::FreeBytes(std::byte* data) {
  const auto buffer = buffers_.find(data);
  FATHOM_CHECK(buffer != buffers_.end(), "a buffer of this memory");
  used_bytes_ -= buffer->second;
  munmap(data, static_cast<size_t>(buffer->second));
  buffers_.erase(buffer);
}

void GuardedMemory::Protect(bool reachable) {
  for (const auto& [data, bytes] : buffers_) {
    mprotect(data, static_cast<size_t>(bytes), reachable ? PROT_READ | PROT_WRITE : PROT_NONE);
  }
}

Status GuardedMemory::CheckInside(const std::byte* data, int64_t bytes) const {
  for (const auto& [begin, size] : buffers_) {
    if (data >= begin && data <= begin + size && bytes <= begin + size - data) return OkStatus();
  }
  return Internal("guarded memory: a copy outside of its buffers");
}

Status GuardedBackend::BeginStep(const StepPlan&) {
  ++num_steps_;
  return OkStatus();
}

Status GuardedBackend::AddExperts(std::span<const ExpertWeights> routed, const ExpertWeights&) {
  told_.push_back(routed.data());
  return OkStatus();
}

Status GuardedBackend::PrefetchExperts(std::span<const ExpertWeights> routed, int64_t, int) {
  if (std::find(told_.begin(), told_.end(), routed.data()) == told_.end()) {
    return Internal("guarded backend: experts that nobody told of");
  }
  prefetched_.push_back(routed.data());
  return OkStatus();
}

Status GuardedBackend::Synchronize() {
  ++num_waits_;
  CountInexactEntries(reference_.num_inexact_entries() - inexact_told_);
  inexact_told_ = reference_.num_inexact_entries();
  return std::exchange(failure_, OkStatus());
}

Status CountedPinnedMemory::CopyIn(std::byte* to, std::span<const std::byte> from) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
  return OkStatus();
}

Status CountedPinnedMemory::CopyOut(std::span<std::byte> to, const std::byte* from) {
  if (!to.empty()) std::memcpy(to.data(), from, to.size());
  return OkStatus();
}

Status CountedPinnedMemory::CopyWithin(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  return OkStatus();
}

Result<MemoryState> CountedPinnedMemory::State() const {
  int64_t used = 0;
  for (const auto& [data, bytes] : buffers_) used += bytes;
  return MemoryState{"host memory", total_bytes_, total_bytes_ - used};
}

bool CountedPinnedMemory::Holds(const void* data) const {
  const auto* const at = static_cast<const std::byte*>(data);
  for (const auto& [begin, bytes] : buffers_) {
    if (at >= begin && at < begin + bytes) return true;
  }
  return false;
}

Result<std::byte*> CountedPinnedMemory::AllocateBytes(int64_t bytes) {
  FATHOM_ASSIGN_OR_RETURN(const MemoryState state, State());
  if (bytes > state.free_bytes) {
    return OutOfMemory("pinned memory of " + std::to_string(bytes) + " bytes");
  }
  const int64_t padded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  auto* const data = static_cast<std::byte*>(
      std::aligned_alloc(static_cast<size_t>(kAlignment), static_cast<size_t>(padded)));
  if (data == nullptr) return OutOfMemory("pinned memory: the system has none");
  buffers_[data] = bytes;
  return data;
}

void CountedPinnedMemory::FreeBytes(std::byte* data) {
  FATHOM_CHECK(buffers_.erase(data) == 1, "a buffer of this memory");
  std::free(data);
}

Status OffloadingBackend::Fill(const FillRecipe& recipe, std::byte* to, int64_t bytes) {
  const GuardedMemory::Access access(memory());
  for (int64_t begin = 0; begin < bytes; begin += 8) {
    const uint64_t word = FillWord(recipe, FillQuantiles(), static_cast<uint64_t>(begin / 8));
    std::memcpy(to + begin, &word, static_cast<size_t>(std::min<int64_t>(8, bytes - begin)));
  }
  filled_bytes_ += bytes;
  return OkStatus();
}

}  // namespace fathom
