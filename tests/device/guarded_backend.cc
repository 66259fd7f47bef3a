#include "tests/device/guarded_backend.h"

#include <sys/mman.h>

#include <algorithm>
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

Status GuardedBackend::Synchronize() {
  ++num_waits_;
  CountInexactEntries(reference_.num_inexact_entries() - inexact_told_);
  inexact_told_ = reference_.num_inexact_entries();
  return std::exchange(failure_, OkStatus());
}

}  // namespace fathom
