#include "base/parallel.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

namespace fathom {
namespace {

// Long enough for the serial stretches inside a step, short enough to be kind to other processes.
constexpr std::chrono::microseconds kSpinTime{50};

// The loop's state in one word: epoch << 32 | kOpen | kOwnerSleeps | threads inside.
// A worker enters by adding one to an open state, so the owner that has closed the state and seen
// the count at zero knows that nobody can touch the loop any more. Every change is a
// read-modify-write, hence part of one release sequence: entering sees what the owner wrote before
// opening, and the owner at zero sees what all tasks wrote.
constexpr uint64_t kOpen = uint64_t{1} << 31;
constexpr uint64_t kOwnerSleeps = uint64_t{1} << 30;
constexpr uint64_t kCountMask = kOwnerSleeps - 1;
constexpr uint32_t Epoch(uint64_t state) { return static_cast<uint32_t>(state >> 32); }

void CpuRelax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// Spins until done() or the time is up; true when done.
template <typename Done>
bool SpinUntil(const Done& done, std::chrono::microseconds limit) {
  if (limit.count() == 0) return done();
  const auto deadline = std::chrono::steady_clock::now() + limit;
  do {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      CpuRelax();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return done();
}

int UsableProcessors() {
  // A fixed cpu_set_t holds 1024 processors; on larger machines the call fails and we ask the
  // library.
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

// Padding is wanted: what different threads write lies in different cache lines.
// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding)
struct ThreadPool::Impl {
  std::vector<std::thread> workers;
  // With more threads than processors a spinning worker would only keep the working ones out.
  std::chrono::microseconds spin_time{0};

  alignas(64) std::atomic<uint64_t> state{0};
  alignas(64) std::atomic<int64_t> next{0};
  // Written by the owner while the loop is closed and empty.
  alignas(64) int64_t num_tasks = 0;
  TaskFn fn = nullptr;
  void* context = nullptr;

  std::mutex mutex;  // guards nothing but the two waits
  std::condition_variable opened;
  std::condition_variable emptied;
  std::atomic<int> sleepers{0};
  std::atomic<bool> stop{false};

  void RunTasks(int thread) {
    // Relaxed: the counter only hands out indices; the loop's data is ordered by `state`.
    for (int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < num_tasks;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      fn(context, i, thread);
    }
  }

  void Enter(uint32_t* last_epoch, int thread) {
    uint64_t seen = state.load(std::memory_order_relaxed);
    do {
      if ((seen & kOpen) == 0) return;
      *last_epoch = Epoch(seen);
    } while (!state.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel,
                                          std::memory_order_relaxed));
    RunTasks(thread);
    const uint64_t before = state.fetch_sub(1, std::memory_order_acq_rel);
    if ((before & kCountMask) == 1 && (before & kOwnerSleeps) != 0) {
      const std::lock_guard<std::mutex> lock(mutex);
      emptied.notify_one();
    }
  }

  void WorkerMain(int thread) {
    char name[16];
    std::snprintf(name, sizeof(name), "fathom-%d", thread);
    pthread_setname_np(pthread_self(), name);
    uint32_t last_epoch = 0;
    // Sequentially consistent together with `sleepers`: either the sleeper sees the open loop, or
    // the owner sees the sleeper (see Run).
    const auto ready = [&] {
      const uint64_t now = state.load();
      return ((now & kOpen) != 0 && Epoch(now) != last_epoch) || stop.load();
    };
    while (!stop.load(std::memory_order_acquire)) {
      if (!SpinUntil(ready, spin_time)) {
        std::unique_lock<std::mutex> lock(mutex);
        sleepers.fetch_add(1);
        opened.wait(lock, ready);
        sleepers.fetch_sub(1);
      }
      Enter(&last_epoch, thread);
    }
  }

  void WaitUntilEmpty() {
    const auto empty = [&] { return (state.load(std::memory_order_acquire) & kCountMask) == 0; };
    if (SpinUntil(empty, spin_time)) return;
    std::unique_lock<std::mutex> lock(mutex);
    state.fetch_or(kOwnerSleeps, std::memory_order_acq_rel);
    emptied.wait(lock, empty);
  }
};

ThreadPool::ThreadPool(int num_threads) : impl_(std::make_unique<Impl>()) {
  num_threads = std::clamp(num_threads, 1, kMaxThreads);
  if (num_threads <= UsableProcessors()) impl_->spin_time = kSpinTime;
  impl_->workers.reserve(static_cast<size_t>(num_threads - 1));
  for (int thread = 1; thread < num_threads; ++thread) {
    try {
      impl_->workers.emplace_back([impl = impl_.get(), thread] { impl->WorkerMain(thread); });
    } catch (const std::system_error&) {
      break;  // the system's limit; results do not depend on the number
    }
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->stop.store(true);
    impl_->opened.notify_all();
  }
  for (std::thread& worker : impl_->workers) worker.join();
}

int ThreadPool::num_threads() const { return static_cast<int>(impl_->workers.size()) + 1; }

void ThreadPool::Run(int64_t num_tasks, TaskFn fn, void* context) {
  Impl& impl = *impl_;
  if (num_tasks <= 1 || impl.workers.empty()) {
    for (int64_t i = 0; i < num_tasks; ++i) fn(context, i, 0);
    return;
  }
  impl.num_tasks = num_tasks;
  impl.fn = fn;
  impl.context = context;
  impl.next.store(0, std::memory_order_relaxed);
  // The state is closed and empty, so nobody else changes it now.
  const uint64_t epoch = Epoch(impl.state.load(std::memory_order_relaxed)) + uint64_t{1};
  impl.state.store(epoch << 32 | kOpen);
  if (impl.sleepers.load() > 0) {
    // Taking the lock orders us after a sleeper that has checked but not yet begun to wait.
    const std::lock_guard<std::mutex> lock(impl.mutex);
    impl.opened.notify_all();
  }
  impl.RunTasks(0);
  impl.state.fetch_and(~kOpen, std::memory_order_acq_rel);
  impl.WaitUntilEmpty();
}

int DefaultThreadCount() {
  if (const char* text = std::getenv("OMP_NUM_THREADS"); text != nullptr) {
    // OpenMP allows a list, one number per nesting level; the first is ours.
    const std::string_view value(text);
    int count = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), count);
    const bool whole = end == value.data() + value.size() || *end == ',';
    if (error == std::errc() && whole && count > 0) {
      return std::min(count, ThreadPool::kMaxThreads);
    }
  }
  return std::min(UsableProcessors(), ThreadPool::kMaxThreads);
}

}  // namespace fathom
