#include "base/parallel.h"

#include <pthread.h>

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
#include <utility>
#include <vector>

#include "base/check.h"

namespace fathom {
namespace {

// Long enough for what the owner does alone inside a step and between two (sampling), since waking
// a sleeper costs the owner more than ten microseconds on a virtual machine; short enough to be
// kind to other processes.
constexpr std::chrono::microseconds kSpinTime{200};

// The loop's state in one word, lowest bits first:
//   32 bits  a number that counts up with each task handed out and reaches kDrained behind the last
//   11 bits  threads inside
//    1 bit   the owner sleeps
//   20 bits  epoch
// A worker enters by adding one to the threads inside, and to the tasks handed out, of a state that
// is not drained. Once it is, nobody enters, so the owner that sees nobody inside knows that nobody
// can touch the loop any more. Every change is a read-modify-write, hence part of one release
// sequence: entering sees what the owner wrote before opening, and the owner sees what all tasks
// wrote. An epoch comes again after a million loops; a worker that slept through exactly as many
// misses one, which is allowed.
constexpr uint64_t kOneTask = 1;
constexpr uint64_t kDrained = uint64_t{1} << 31;
constexpr uint64_t kTaskMask = (uint64_t{1} << 32) - 1;
constexpr uint64_t kOneThread = uint64_t{1} << 32;
constexpr uint64_t kThreadMask = ((uint64_t{1} << 11) - 1) << 32;
constexpr uint64_t kOwnerSleeps = uint64_t{1} << 43;
constexpr int kEpochShift = 44;
constexpr uint32_t Epoch(uint64_t state) { return static_cast<uint32_t>(state >> kEpochShift); }
// Of one run; longer loops are several. Leaves room for claims behind the last task.
constexpr int64_t kMaxTasks = int64_t{1} << 30;

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
  // The clock is read behind the first round: most waits are shorter than reading it.
  const auto round = [&] {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      CpuRelax();
    }
    return false;
  };
  if (round()) return true;
  const auto deadline = std::chrono::steady_clock::now() + limit;
  do {
    if (round()) return true;
  } while (std::chrono::steady_clock::now() < deadline);
  return done();
}

int UsableProcessors() { return static_cast<int>(AllowedCpus().size()); }

}  // namespace

// Padding is wanted: what different threads write lies in different cache lines.
// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding)
struct ThreadPool::Impl {
  ThreadPlacement placement;
  std::vector<std::thread> workers;
  // With more threads than processors a spinning worker would only keep the working ones out.
  std::chrono::microseconds spin_time{0};

  // One line for what a worker needs to begin, so that it is fetched once.
  alignas(64) std::atomic<uint64_t> state{kDrained};
  // Written by the owner while the loop is drained and empty.
  TaskFn fn = nullptr;
  void* context = nullptr;
  int64_t first_task = 0;  // task index = first_task + low bits of the state
  // With several nodes, whose tasks are counted apart.
  int64_t num_groups = 0;
  int64_t group_size = 0;

  struct alignas(64) NodeQueue {
    std::atomic<int64_t> next{0};
    int64_t begin = 0;  // its part of every group
    int64_t count = 0;
  };
  std::vector<NodeQueue> queues;  // empty with one node

  alignas(64) std::mutex mutex;  // guards nothing but the two waits
  std::condition_variable opened;
  std::condition_variable emptied;
  std::atomic<int> sleepers{0};
  std::atomic<bool> stop{false};

  // Runs task `seen` and all that it can get after it; `seen` is a state from before its claim.
  void RunTasks(uint64_t seen, int thread) {
    const TaskFn task = fn;
    void* const body = context;
    const int64_t first = first_task;
    while ((seen & kDrained) == 0) {
      task(body, first + static_cast<int64_t>(seen & kTaskMask), thread);
      // Looked at first, so that the end of a loop costs no write. Relaxed: the count only hands
      // out indices; the loop's data is ordered by entering and leaving.
      seen = state.load(std::memory_order_relaxed);
      if ((seen & kDrained) == 0) seen = state.fetch_add(kOneTask, std::memory_order_relaxed);
    }
  }

  // Own node first, then the next ones in turn. Drains the state when nothing is left.
  void RunNodeTasks(int thread) {
    const auto num_nodes = static_cast<int>(queues.size());
    const int own = placement.threads[static_cast<size_t>(thread)].node;
    for (int step = 0; step < num_nodes; ++step) {
      NodeQueue& queue = queues[static_cast<size_t>((own + step) % num_nodes)];
      const int64_t total = num_groups * queue.count;
      if (queue.next.load(std::memory_order_relaxed) >= total) continue;
      for (int64_t i = queue.next.fetch_add(1, std::memory_order_relaxed); i < total;
           i = queue.next.fetch_add(1, std::memory_order_relaxed)) {
        fn(context, i / queue.count * group_size + queue.begin + i % queue.count, thread);
      }
    }
    state.fetch_or(kDrained, std::memory_order_relaxed);
  }

  void Enter(uint32_t* last_epoch, int thread) {
    const uint64_t claim = kOneThread + (queues.empty() ? kOneTask : 0);
    uint64_t seen = state.load(std::memory_order_relaxed);
    do {
      if ((seen & kDrained) != 0) return;
    } while (!state.compare_exchange_weak(seen, seen + claim, std::memory_order_acq_rel,
                                          std::memory_order_relaxed));
    *last_epoch = Epoch(seen);
    if (queues.empty()) {
      RunTasks(seen, thread);
    } else {
      RunNodeTasks(thread);
    }
    const uint64_t before = state.fetch_sub(kOneThread, std::memory_order_acq_rel);
    if ((before & kThreadMask) == kOneThread && (before & kOwnerSleeps) != 0) {
      const std::lock_guard<std::mutex> lock(mutex);
      emptied.notify_one();
    }
  }

  void WorkerMain(int thread) {
    char name[16];
    std::snprintf(name, sizeof(name), "fathom-%d", thread);
    pthread_setname_np(pthread_self(), name);
    RunOn(placement.threads[static_cast<size_t>(thread)].cpus);
    uint32_t last_epoch = 0;
    // Sequentially consistent together with `sleepers`: either the sleeper sees the open loop, or
    // the owner sees the sleeper (see Open).
    const auto ready = [&] {
      const uint64_t now = state.load();
      return ((now & kDrained) == 0 && Epoch(now) != last_epoch) || stop.load();
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

  // The state is drained and empty, so nobody else changes it now.
  void Open(uint64_t low) {
    const uint64_t epoch = state.load(std::memory_order_relaxed) >> kEpochShift;
    state.store((epoch + 1) << kEpochShift | low);
    if (sleepers.load() > 0) {
      // Taking the lock orders us after a sleeper that has checked but not yet begun to wait.
      const std::lock_guard<std::mutex> lock(mutex);
      opened.notify_all();
    }
  }

  void WaitUntilEmpty() {
    const auto empty = [&] { return (state.load(std::memory_order_acquire) & kThreadMask) == 0; };
    if (SpinUntil(empty, spin_time)) return;
    std::unique_lock<std::mutex> lock(mutex);
    state.fetch_or(kOwnerSleeps, std::memory_order_acq_rel);
    emptied.wait(lock, empty);
  }

  // Tasks [offset, offset + count), at least two and at most kMaxTasks.
  void RunFlat(int64_t offset, int64_t count) {
    // The number handed out starts so that it reaches kDrained behind the last task; the first task
    // is the owner's.
    const uint64_t start = kDrained - static_cast<uint64_t>(count);
    first_task = offset - static_cast<int64_t>(start);
    Open(start + kOneTask);
    RunTasks(start, 0);
    WaitUntilEmpty();
  }

  void RunOnNodes(int64_t groups, int64_t size) {
    num_groups = groups;
    group_size = size;
    for (size_t node = 0; node < queues.size(); ++node) {
      const auto part = static_cast<int>(node);
      NodeQueue& queue = queues[node];
      queue.begin = placement.PartBegin(size, part);
      queue.count = placement.PartBegin(size, part + 1) - queue.begin;
      queue.next.store(0, std::memory_order_relaxed);
    }
    Open(0);
    RunNodeTasks(0);
    WaitUntilEmpty();
  }
};

ThreadPool::ThreadPool(int num_threads) : impl_(std::make_unique<Impl>()) {
  impl_->placement.threads.resize(static_cast<size_t>(std::clamp(num_threads, 1, kMaxThreads)));
  impl_->placement.node_ids = {0};
  Start();
}

ThreadPool::ThreadPool(ThreadPlacement placement) : impl_(std::make_unique<Impl>()) {
  FATHOM_CHECK(!placement.threads.empty() && placement.threads.size() <= size_t{kMaxThreads},
               "a placement has 1 to 1024 threads");
  impl_->placement = std::move(placement);
  if (impl_->placement.num_nodes() > 1) {
    impl_->queues = std::vector<Impl::NodeQueue>(impl_->placement.node_ids.size());
  }
  Start();
}

void ThreadPool::Start() {
  const auto num_threads = static_cast<int>(impl_->placement.threads.size());
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

const ThreadPlacement& ThreadPool::placement() const { return impl_->placement; }

void ThreadPool::BindOwner() const { RunOn(impl_->placement.threads.front().cpus); }

void ThreadPool::Run(int64_t num_tasks, int64_t group_size, TaskFn fn, void* context) {
  Impl& impl = *impl_;
  if (num_tasks <= 1 || impl.workers.empty()) {
    for (int64_t i = 0; i < num_tasks; ++i) fn(context, i, 0);
    return;
  }
  FATHOM_CHECK(group_size >= 0 && (group_size == 0 || num_tasks % group_size == 0),
               "a loop is whole groups");
  impl.fn = fn;
  impl.context = context;
  if (!impl.queues.empty()) {
    const int64_t size = group_size == 0 ? num_tasks : group_size;
    impl.RunOnNodes(num_tasks / size, size);
    return;
  }
  int64_t offset = 0;
  for (; num_tasks - offset > kMaxTasks; offset += kMaxTasks) impl.RunFlat(offset, kMaxTasks);
  impl.RunFlat(offset, num_tasks - offset);
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
