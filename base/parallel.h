// ThreadPool: data-parallel loops for operations, with low-latency start and end.
//
// One pool belongs to one engine or tool; loops are started by one thread at a time (the owner),
// and the owner takes part in the work. Workers spin for a short while after a loop and then sleep,
// so a decode step's many small loops cost no system call each and an idle server costs no CPU.
// Results of an operation must not depend on the number of threads: work is split by shape into
// tasks and each task writes its own outputs; which thread runs a task is not fixed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace fathom {

class ThreadPool {
 public:
  // `num_threads` counts the calling thread; 1 means that everything runs inline. Values below 1
  // are taken as 1.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();  // joins the workers; no loop may be running
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int num_threads() const;

  // Calls task(i) for every i in [0, num_tasks), in no fixed order, on all threads; returns when
  // all are done. Everything written before the call is visible to the tasks, and everything that
  // they wrote is visible after it. Tasks must not throw and must not start loops on this pool.
  template <typename F>
  void ParallelFor(int64_t num_tasks, F&& task) {
    auto call = [](void* context, int64_t i) {
      (*static_cast<std::remove_reference_t<F>*>(context))(i);
    };
    Run(num_tasks, call, &task);
  }

 private:
  using TaskFn = void (*)(void* context, int64_t task_index);
  void Run(int64_t num_tasks, TaskFn fn, void* context);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Threads to use when the user names none: OMP_NUM_THREADS where set to a positive number, else the
// processors that this process may run on.
int DefaultThreadCount();

}  // namespace fathom
