// ThreadPool: data-parallel loops for operations, with low-latency start and end.
//
// One pool belongs to one engine or tool; loops are started by one thread at a time (the owner),
// and the owner takes part in the work. Workers spin for a short while after a loop and then sleep,
// so a decode step's many small loops cost no system call each and an idle server costs no CPU. A
// worker that is late (asleep, or its core taken by another process) is not waited for: the others
// do the work. Results of an operation must not depend on the number of threads: work is split by
// shape into tasks and each task writes its own outputs; which thread runs a task is not fixed.
//
// On a machine with several memory nodes (base/thread_placement.h) each node's threads begin with a
// contiguous part of the tasks, those whose weights lie in their memory, and then help the others.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

#include "base/thread_placement.h"

namespace fathom {

class ThreadPool {
 public:
  // `num_threads` counts the calling thread; 1 means that everything runs inline. Values are taken
  // into [1, kMaxThreads]. Where the system gives fewer threads, the pool goes on with those.
  static constexpr int kMaxThreads = 1024;
  explicit ThreadPool(int num_threads);
  // One thread for each of the placement, which must have some; workers bind themselves.
  explicit ThreadPool(ThreadPlacement placement);
  ~ThreadPool();  // joins the workers; no loop may be running
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int num_threads() const;
  // As it was asked for: what the shares of the nodes are shares of.
  [[nodiscard]] const ThreadPlacement& placement() const;

  // Binds the calling thread as the placement says of thread 0; for whoever starts loops from now
  // on. Nothing happens where nothing is bound.
  void BindOwner() const;

  // Calls task(i), or task(i, thread), for every i in [0, num_tasks), in no fixed order, on all
  // threads; returns when all are done. `thread` is in [0, num_threads()) and no two tasks run on
  // the same thread at once: an index for scratch memory, nothing else. Everything written before
  // the call is visible to the tasks, and everything that they wrote is visible after it. Tasks
  // must not throw and must not start loops on this pool.
  //
  // Between nodes the range is cut as ThreadPlacement::PartBegin says. Where tasks come in groups
  // of `group_size` neighbours (the row blocks of one expert after those of another), every group
  // is cut like that; num_tasks is then a multiple of it. 0: one group.
  template <typename F>
  void ParallelFor(int64_t num_tasks, F&& task, int64_t group_size = 0) {
    using Task = std::remove_reference_t<F>;
    const auto call = [](void* context, int64_t i, int thread) {
      auto& body = *static_cast<Task*>(context);
      if constexpr (std::is_invocable_v<Task&, int64_t, int>) {
        body(i, thread);
      } else {
        body(i);
      }
    };
    Run(num_tasks, group_size, call,
        const_cast<void*>(static_cast<const void*>(std::addressof(task))));
  }

 private:
  using TaskFn = void (*)(void* context, int64_t task_index, int thread);
  void Run(int64_t num_tasks, int64_t group_size, TaskFn fn, void* context);
  void Start();

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Threads to use when the user names none: OMP_NUM_THREADS where set to a positive number, else the
// processors that this process may run on.
int DefaultThreadCount();

}  // namespace fathom
