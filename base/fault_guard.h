// Fault guard: a file that loses pages while it is mapped damages a mapping, not the process.
//
// Reading a mapped page that its file no longer has (another process truncated it, the disk failed)
// raises SIGBUS, whose default action ends the process. With the guard installed, a fault inside a
// registered range puts zeros where the file's pages were, from the faulting page to the end of the
// range, marks the range as damaged and lets the reader go on. Whoever computes with the bytes asks
// damaged() before it hands out a result. Every other SIGBUS goes to the handler that was there
// before, by default the end of the process.
//
// Not seen: a file cut inside its last page (the kernel shows zeros there without a fault), and
// bytes that were overwritten in place.
#pragma once

#include <cstddef>
#include <span>

namespace fathom {

// Process-wide, any thread, any number of times; stays installed.
void InstallFaultGuard();

// One registered range, page-aligned at its start; it must outlive the mapping's readers and end
// before the mapping does. Any thread may ask damaged(); constructing and destroying take a lock.
class GuardedRange {
 public:
  GuardedRange() = default;
  explicit GuardedRange(std::span<const std::byte> bytes);  // empty: nothing is registered
  GuardedRange(GuardedRange&& other) noexcept;
  GuardedRange& operator=(GuardedRange&& other) noexcept;
  GuardedRange(const GuardedRange&) = delete;
  GuardedRange& operator=(const GuardedRange&) = delete;
  ~GuardedRange();

  // Once true, stays true.
  [[nodiscard]] bool damaged() const;

 private:
  struct Slot;
  static Slot* Acquire();
  void Release();
  friend struct FaultHandler;
  Slot* slot_ = nullptr;
};

}  // namespace fathom
