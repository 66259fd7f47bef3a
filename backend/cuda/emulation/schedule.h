// Which work is next, of lanes of work that wait for each other: streams, or branches of a graph.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>

#include "backend/cuda/emulation/streams.h"

namespace fathom::emulation {

// So many works of a lane, from its first one on.
struct Point {
  int lane = 0;
  int64_t count = 0;
};

struct Work {
  std::function<void()> run;  // none: waits only
  Point after;
};

struct Lane {
  std::deque<Work> queue;  // not done yet
  int64_t done = 0;

  [[nodiscard]] Point End(int id) const { return {id, done + static_cast<int64_t>(queue.size())}; }
};

// By number; a lane that is not there has done all that it had. A work is queued after the works
// that its point counts.
using Lanes = std::map<int, Lane>;

class Schedule {
 public:
  Schedule();  // by FATHOM_EMULATION_ORDER
  Schedule(Order order_in, uint64_t seed) : order_(order_in), random_(seed) {}

  [[nodiscard]] Order order() const { return order_; }
  // Does works, in this order, until those of the point are done.
  void RunUntil(const Point& point, Lanes& lanes);

 private:
  // Does one.
  void RunShuffled(Lanes& lanes);
  void RunOthersFirst(int last, Lanes& lanes);
  uint64_t Next();

  Order order_ = Order::kLate;
  uint64_t random_ = 0;
};

}  // namespace fathom::emulation
