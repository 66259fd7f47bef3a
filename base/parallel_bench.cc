// parallel_bench [threads]: what a loop of ThreadPool costs, in nanoseconds.
//
// Each line is one shape of loop: so many tasks of so long, after so long a stretch of the owner
// alone, as between the operations of a decode step. "ideal" is the time if starts and ends were
// free; shown are the median and the quartiles of many loops.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "base/parallel.h"

namespace fathom {
namespace {

using Clock = std::chrono::steady_clock;

// A chain of dependent operations, so its time is the same on every thread.
uint64_t Work(int64_t steps, uint64_t seed) {
  uint64_t x = seed | 1;
  for (int64_t i = 0; i < steps; ++i) x = x * 6364136223846793005u + 1442695040888963407u;
  return x;
}

double Nanoseconds(Clock::duration d) {
  return std::chrono::duration<double, std::nano>(d).count();
}

double StepsPerNanosecond() {
  constexpr int64_t kSteps = 20'000'000;
  const Clock::time_point start = Clock::now();
  volatile uint64_t sink = Work(kSteps, 1);
  (void)sink;
  return static_cast<double>(kSteps) / Nanoseconds(Clock::now() - start);
}

struct alignas(64) Slot {
  uint64_t value = 0;
};

void Measure(ThreadPool& pool, double rate, int64_t num_tasks, double task_ns, double gap_ns) {
  constexpr int kLoops = 20'000;
  const auto task_steps = static_cast<int64_t>(task_ns * rate);
  const auto gap_steps = static_cast<int64_t>(gap_ns * rate);
  std::vector<Slot> slots(static_cast<size_t>(num_tasks));
  std::vector<double> times;
  times.reserve(kLoops);
  volatile uint64_t sink = 0;
  for (int loop = 0; loop < kLoops; ++loop) {
    sink = Work(gap_steps, 3);
    const Clock::time_point start = Clock::now();
    pool.ParallelFor(num_tasks, [&](int64_t i) {
      slots[static_cast<size_t>(i)].value = Work(task_steps, static_cast<uint64_t>(i));
    });
    times.push_back(Nanoseconds(Clock::now() - start));
  }
  (void)sink;
  std::sort(times.begin(), times.end());
  const auto at = [&](double q) { return times[static_cast<size_t>(q * (kLoops - 1))]; };
  const int64_t rounds = (num_tasks + pool.num_threads() - 1) / pool.num_threads();
  std::printf("%6lld tasks %7.0f ns  gap %7.0f ns  ideal %8.0f  median %8.0f  [%8.0f, %8.0f]\n",
              static_cast<long long>(num_tasks), task_ns, gap_ns,
              static_cast<double>(rounds) * task_ns, at(0.5), at(0.25), at(0.75));
}

}  // namespace
}  // namespace fathom

int main(int argc, char** argv) {
  using namespace fathom;
  const int threads = argc > 1 ? std::atoi(argv[1]) : DefaultThreadCount();
  ThreadPool pool(threads);
  const double rate = StepsPerNanosecond();
  std::printf("%d threads\n", pool.num_threads());
  for (const double gap : {0.0, 2000.0, 20'000.0}) {
    Measure(pool, rate, 2, 0, gap);
    Measure(pool, rate, 2, 1000, gap);
    Measure(pool, rate, 2, 4000, gap);
    Measure(pool, rate, 16, 500, gap);
    Measure(pool, rate, 64, 2000, gap);
  }
  return 0;
}
