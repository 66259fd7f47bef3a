// ThreadPool: data-parallel loops for operations, with low-latency start and end.
//
// One pool belongs to one engine or tool; loops are started by one thread at a time (the owner),
// and the owner takes part in the work. Workers spin for a short while after a loop and then sleep,
// so a decode step's many small loops cost no system call each and an idle server costs no CPU. A
// worker that is late (asleep, or its core taken by another process) is not waited for: the others
// do the work. Results of an operation must not depend on the number of threads: work is split by
// shape into tasks and each task writes its own outputs; which thread runs a task is not fixed.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace fathom {

class ThreadPool {
 public:
  // `num_threads` counts the calling thread; 1 means that everything runs inline. Values are taken
  // into [1, kMaxThreads]. Where the system gives fewer threads, the pool goes on with those.
  static constexpr int kMaxThreads = 1024;
  explicit ThreadPool(int num_threads);
  ~ThreadPool();  // joins the workers; no loop may be running
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int num_threads() const;

  // Calls task(i), or task(i, thread), for every i in [0, num_tasks), in no fixed order, on all
  // threads; returns when all are done. `thread` is in [0, num_threads()) and no two tasks run on
  // the same thread at once: an index for scratch memory, nothing else. Everything written before
  // the call is visible to the tasks, and everything that they wrote is visible after it. Tasks
  // must not throw and must not start loops on this pool.
  template <typename F>
  void ParallelFor(int64_t num_tasks, F&& task) {
    using Task = std::remove_reference_t<F>;
    const auto call = [](void* context, int64_t i, int thread) {
      auto& body = *static_cast<Task*>(context);
      if constexpr (std::is_invocable_v<Task&, int64_t, int>) {
        body(i, thread);
      } else {
        body(i);
      }
    };
    Run(num_tasks, call, const_cast<void*>(static_cast<const void*>(std::addressof(task))));
  }

 private:
  using TaskFn = void (*)(void* context, int64_t task_index, int thread);
  void Run(int64_t num_tasks, TaskFn fn, void* context);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Threads to use when the user names none: OMP_NUM_THREADS where set to a positive number, else the
// processors that this process may run on.
int DefaultThreadCount();

}  // namespace fathom
