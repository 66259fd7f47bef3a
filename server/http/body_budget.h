// BodyBudget: the memory that the bodies of all requests may take together.
// Internally synchronised.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

namespace fathom::http {

class BodyBudget {
 public:
  explicit BodyBudget(size_t limit_bytes) : limit_(limit_bytes) {}

  [[nodiscard]] bool HasRoom(size_t num_bytes) const {
    const size_t used = used_.load(std::memory_order_relaxed);
    return used <= limit_ && num_bytes <= limit_ - used;
  }
  // False, and nothing is taken, where it would be too much.
  bool Take(size_t num_bytes) {
    // Only the sum counts, nothing is published through it: relaxed.
    const size_t before = used_.fetch_add(num_bytes, std::memory_order_relaxed);
    if (before <= limit_ && num_bytes <= limit_ - before) return true;
    Return(num_bytes);
    return false;
  }
  void Return(size_t num_bytes) { used_.fetch_sub(num_bytes, std::memory_order_relaxed); }
  [[nodiscard]] size_t used() const { return used_.load(std::memory_order_relaxed); }

 private:
  const size_t limit_;
  std::atomic<size_t> used_{0};
};

// What one request has taken; returned when it is gone, which may be after the server is.
class BodyLease {
 public:
  // Shared: by the server and all leases, whichever goes last.
  explicit BodyLease(std::shared_ptr<BodyBudget> budget) : budget_(std::move(budget)) {}
  ~BodyLease() { budget_->Return(taken_); }
  BodyLease(const BodyLease&) = delete;
  BodyLease& operator=(const BodyLease&) = delete;

  bool Grow(size_t num_bytes) {
    if (!budget_->Take(num_bytes)) return false;
    taken_ += num_bytes;
    return true;
  }

 private:
  const std::shared_ptr<BodyBudget> budget_;
  size_t taken_ = 0;
};

}  // namespace fathom::http
