#include "backend/cuda/emulation/schedule.h"

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

namespace fathom::emulation {
namespace {

bool IsDone(const Point& point, const Lanes& lanes) {
  const auto lane = lanes.find(point.lane);
  return lane == lanes.end() || lane->second.done >= point.count;
}

bool CanGoOn(const Lane& lane, const Lanes& lanes) {
  return !lane.queue.empty() && IsDone(lane.queue.front().after, lanes);
}

void RunFront(Lane& lane) {
  const Work work = std::move(lane.queue.front());
  lane.queue.pop_front();
  if (work.run) work.run();
  ++lane.done;
}

// Lanes wait for what was queued before, so somebody can always go on.
[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "CUDA emulation: %s\n", what);
  std::abort();
}

}  // namespace

Schedule::Schedule() {
  const char* const named = std::getenv("FATHOM_EMULATION_ORDER");
  const std::string_view name = named == nullptr ? "late" : named;
  if (name == "late") return;
  if (name == "others") {
    order_ = Order::kOthersFirst;
  } else if (name == "at_once") {
    order_ = Order::kAtOnce;
  } else {
    char* end = nullptr;
    random_ = std::strtoull(named, &end, 10);
    if (name.empty() || *end != '\0') Die("FATHOM_EMULATION_ORDER is no order");
    order_ = Order::kShuffled;
  }
}

void Schedule::RunUntil(const Point& point, Lanes& lanes) {
  if (order_ == Order::kShuffled) {
    while (!IsDone(point, lanes)) RunShuffled(lanes);
    return;
  }
  if (order_ == Order::kOthersFirst) {
    while (!IsDone(point, lanes)) RunOthersFirst(point.lane, lanes);
    return;
  }
  std::vector<Point> wanted = {point};
  while (!wanted.empty()) {
    if (IsDone(wanted.back(), lanes)) {
      wanted.pop_back();
      continue;
    }
    Lane& lane = lanes.at(wanted.back().lane);
    if (lane.queue.empty()) Die("a stream waits for works that nobody queued");
    const Point after = lane.queue.front().after;
    if (IsDone(after, lanes)) {
      RunFront(lane);
    } else {
      wanted.push_back(after);
    }
  }
}

void Schedule::RunShuffled(Lanes& lanes) {
  std::vector<Lane*> ready;
  for (auto& [id, lane] : lanes) {
    if (CanGoOn(lane, lanes)) ready.push_back(&lane);
  }
  if (ready.empty()) Die("streams wait for each other");
  RunFront(*ready[Next() % ready.size()]);
}

void Schedule::RunOthersFirst(int last, Lanes& lanes) {
  for (auto& [id, lane] : lanes) {
    if (id != last && CanGoOn(lane, lanes)) return RunFront(lane);
  }
  const auto lane = lanes.find(last);
  if (lane == lanes.end() || !CanGoOn(lane->second, lanes)) Die("streams wait for each other");
  RunFront(lane->second);
}

uint64_t Schedule::Next() {  // splitmix64
  random_ += 0x9E3779B97F4A7C15u;
  uint64_t mixed = random_;
  mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9u;
  mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EBu;
  return mixed ^ mixed >> 31;
}

}  // namespace fathom::emulation
