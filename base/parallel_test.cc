#include "base/parallel.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/test_parallel.h"

namespace fathom {
namespace {

// Sanitizers are some ten times slower; the properties are the same.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kManyLoops = 40'000;
#else
constexpr int kManyLoops = 300'000;
#endif

void ExpectEveryIndexOnce(ThreadPool& pool, int64_t n) {
  // Plain ints: TSan reports a task run twice at once, or one whose end was not waited for.
  std::vector<int> runs(static_cast<size_t>(n), 0);
  pool.ParallelFor(n, [&](int64_t i) { ++runs[static_cast<size_t>(i)]; });
  ASSERT_EQ(std::count(runs.begin(), runs.end(), 1), n) << n << " tasks";
}

TEST(ThreadPool, EveryIndexRunsExactlyOnce) {
  for (int threads : {-3, 0, 1, 2, 3, 7, 16}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), std::max(threads, 1));
    for (int64_t n : {0, 1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 1000, 4097, 100'000}) {
      ExpectEveryIndexOnce(pool, n);
    }
  }
}

TEST(ThreadPool, NegativeTaskCountRunsNothing) {
  ThreadPool pool(2);
  pool.ParallelFor(-5, [](int64_t) { FAIL() << "a task ran"; });
}

TEST(ThreadPool, BackToBackLoopsSeeEachOthersWrites) {
  for (int threads : {2, 3, 5}) {
    ThreadPool pool(threads);
    test::ExpectLoopsSeeEachOther(pool, kManyLoops);
  }
}

TEST(ThreadPool, ThreadIndexIsExclusive) {
  ThreadPool pool(4);
  std::vector<int64_t> per_thread(static_cast<size_t>(pool.num_threads()), 0);
  for (int loop = 0; loop < 200; ++loop) {
    pool.ParallelFor(100, [&](int64_t i, int thread) {
      ASSERT_GE(thread, 0);
      ASSERT_LT(thread, pool.num_threads());
      per_thread[static_cast<size_t>(thread)] += i;  // a plain sum: shared threads would race
    });
  }
  EXPECT_EQ(std::accumulate(per_thread.begin(), per_thread.end(), int64_t{0}), 200 * 99 * 50);
}

TEST(ThreadPool, SleepingWorkersWakeUp) {
  ThreadPool pool(3);
  std::atomic<int> running{0};
  for (int round = 0; round < 3; ++round) {
    // Well past the spin time. Both tasks wait for each other, so the loop only ends when a worker
    // has woken up and taken one.
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    pool.ParallelFor(2, [&](int64_t) {
      running.fetch_add(1);
      while (running.load() < 2 * (round + 1)) std::this_thread::yield();
    });
  }
  EXPECT_EQ(running.load(), 6);
}

TEST(ThreadPool, OwnerWaitsForALongTaskOfAWorker) {
  ThreadPool pool(2);
  std::array<int, 2> done{};
  std::atomic<bool> worker_in{false};
  const std::thread::id owner = std::this_thread::get_id();
  pool.ParallelFor(2, [&](int64_t i) {
    if (std::this_thread::get_id() == owner) {
      while (!worker_in.load()) std::this_thread::yield();
    } else {
      worker_in.store(true);
      // Longer than the owner spins, so that it goes to sleep and must be woken.
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    done[static_cast<size_t>(i)] = 1;
  });
  EXPECT_EQ(done[0] + done[1], 2);
}

TEST(ThreadPool, SeveralPoolsWorkSideBySide) {
  std::vector<std::thread> owners;
  for (int owner = 0; owner < 3; ++owner) {
    owners.emplace_back([owner] {
      ThreadPool pool(1 + owner);
      for (int loop = 0; loop < 500; ++loop) ExpectEveryIndexOnce(pool, loop % 37);
    });
  }
  for (std::thread& t : owners) t.join();
}

TEST(ThreadPool, PoolsComeAndGo) {
  for (int i = 0; i < 200; ++i) {
    ThreadPool pool(1 + i % 4);
    if (i % 3 != 0) ExpectEveryIndexOnce(pool, i);
  }
}

TEST(ThreadPool, WorkersAreNamed) {
  ThreadPool pool(2);
  std::string name;
  std::atomic<bool> worker_in{false};
  const std::thread::id owner = std::this_thread::get_id();
  pool.ParallelFor(2, [&](int64_t) {
    if (std::this_thread::get_id() == owner) {
      while (!worker_in.load()) std::this_thread::yield();
    } else if (!worker_in.load()) {
      std::array<char, 16> text{};
      pthread_getname_np(pthread_self(), text.data(), text.size());
      name = text.data();
      worker_in.store(true);
    }
  });
  EXPECT_EQ(name, "fathom-1");
}

TEST(DefaultThreadCount, HonoursTheEnvironment) {
  const char* saved = std::getenv("OMP_NUM_THREADS");
  const std::string old = saved == nullptr ? "" : saved;
  unsetenv("OMP_NUM_THREADS");
  const int processors = DefaultThreadCount();
  EXPECT_GE(processors, 1);
  const auto with = [](const char* value) {
    setenv("OMP_NUM_THREADS", value, 1);
    return DefaultThreadCount();
  };
  EXPECT_EQ(with("3"), 3);
  EXPECT_EQ(with("5,2"), 5);
  EXPECT_EQ(with("99999"), ThreadPool::kMaxThreads);
  for (const char* bad : {"", "0", "-2", "two", "4x", "99999999999999999999"}) {
    EXPECT_EQ(with(bad), processors) << bad;
  }
  unsetenv("OMP_NUM_THREADS");
  if (saved != nullptr) setenv("OMP_NUM_THREADS", old.c_str(), 1);
}

}  // namespace
}  // namespace fathom
