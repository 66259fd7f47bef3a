// MemoryLayout: arrays one behind the other in one piece of memory. Whoever owns the memory goes
// through the same list twice: for the size, then for the places.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fathom {

class MemoryLayout {
 public:
  // Every array begins at a multiple of `alignment`.
  explicit MemoryLayout(int64_t alignment) : alignment_(alignment) {}

  // Where the next array of `a` times `b` elements begins.
  template <typename T>
  int64_t Add(int64_t a, int64_t b = 1) {
    const int64_t offset = bytes_;
    int64_t size = 0;
    overflow_ |= __builtin_mul_overflow(a, b, &size);
    overflow_ |= __builtin_mul_overflow(size, static_cast<int64_t>(sizeof(T)), &size);
    overflow_ |= __builtin_add_overflow(size, alignment_ - 1, &size);
    overflow_ |= __builtin_add_overflow(bytes_, size / alignment_ * alignment_, &bytes_);
    return offset;
  }
  // Of all arrays so far; means nothing after an overflow.
  [[nodiscard]] int64_t bytes() const { return bytes_; }
  // More bytes than there are addresses were asked for.
  [[nodiscard]] bool overflow() const { return overflow_; }

 private:
  int64_t alignment_;
  int64_t bytes_ = 0;
  bool overflow_ = false;
};

}  // namespace fathom
