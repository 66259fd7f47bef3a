// AnonymousMemory: memory of this process alone, in whole pages, of huge ones if wanted; and the
// node that new pages are taken from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "base/status.h"

namespace fathom {

// One mapping, zeroed; its pages are taken when they are first written. Single-threaded but for the
// bytes. Moving keeps their address.
class AnonymousMemory {
 public:
  static constexpr size_t kHugePageBytes = size_t{2} << 20;

  AnonymousMemory() = default;
  // At least `bytes`, which is not 0. With `huge_pages` the start is aligned to kHugePageBytes, the
  // size is a multiple of it and the system is asked for huge pages, which it gives as it can.
  // kOutOfMemory when the address space cannot be had.
  static Result<AnonymousMemory> Create(size_t bytes, bool huge_pages);

  AnonymousMemory(AnonymousMemory&& other) noexcept;
  AnonymousMemory& operator=(AnonymousMemory&& other) noexcept;
  AnonymousMemory(const AnonymousMemory&) = delete;
  AnonymousMemory& operator=(const AnonymousMemory&) = delete;
  ~AnonymousMemory();

  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  // From here on a write ends the process. A protection only: nothing else changes where the system
  // refuses.
  void MakeReadOnly();
  // Bytes in huge pages now, as /proc/self/smaps counts them.
  [[nodiscard]] int64_t HugePageBytes() const;

 private:
  explicit AnonymousMemory(std::span<std::byte> bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes_;
};

// "always", "madvise" or "never": whom the system gives huge pages to. Empty where it has none.
// `sys` is laid out as /sys.
std::string HugePagePolicy(const std::filesystem::path& sys = "/sys");

// Pages that the calling thread touches first come from node `node` (the system's number) while
// that has free ones; -1: from where the thread runs, as at its start. Asked of the thread and not
// of the memory (mbind), because every change of node inside a mapping would split it, and the
// slices of some ten thousand matrices are more pieces than a process may have. False where the
// system refuses, which costs speed only.
bool TakePagesFrom(int node);

}  // namespace fathom
