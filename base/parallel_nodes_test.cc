// Pools whose threads belong to several memory nodes. The nodes are made up: which threads take
// which tasks first does not depend on real ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "base/parallel.h"
#include "base/test_parallel.h"

namespace fathom {
namespace {

using ::testing::ElementsAre;

ThreadPlacement Nodes(const std::vector<int>& threads_of_nodes) {
  ThreadPlacement placement;
  for (size_t node = 0; node < threads_of_nodes.size(); ++node) {
    placement.node_ids.push_back(static_cast<int>(node));
    for (int t = 0; t < threads_of_nodes[node]; ++t) {
      placement.threads.push_back({static_cast<int>(node), {}});
    }
  }
  return placement;
}

TEST(ThreadPoolNodes, EveryIndexRunsExactlyOnce) {
  for (const std::vector<int>& nodes :
       {std::vector<int>{1, 1}, {2, 1}, {1, 3}, {2, 2, 2}, {1, 1, 1, 1, 1}}) {
    ThreadPool pool(Nodes(nodes));
    for (int64_t n : {0, 1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 1000, 4097}) {
      for (int64_t groups : {1, 2, 7}) {
        // Plain ints: TSan reports a task run twice at once, or one whose end was not waited for.
        std::vector<int> runs(static_cast<size_t>(n * groups), 0);
        pool.ParallelFor(
            n * groups, [&](int64_t i) { ++runs[static_cast<size_t>(i)]; }, n);
        ASSERT_EQ(std::count(runs.begin(), runs.end(), 1), n * groups) << n << " x " << groups;
      }
    }
  }
}

TEST(ThreadPoolNodes, BackToBackLoopsSeeEachOthersWrites) {
  ThreadPool pool(Nodes({2, 1}));
  test::ExpectLoopsSeeEachOther(pool, 30'000);
}

// The first task of each thread, when no thread goes on before all have one.
std::vector<int64_t> FirstTasks(ThreadPool& pool, int64_t num_tasks, int64_t group_size) {
  std::vector<std::atomic<int64_t>> first(static_cast<size_t>(pool.num_threads()));
  for (auto& f : first) f.store(-1);
  std::atomic<int> begun{0};
  pool.ParallelFor(
      num_tasks,
      [&](int64_t i, int thread) {
        int64_t none = -1;
        if (!first[static_cast<size_t>(thread)].compare_exchange_strong(none, i)) return;
        begun.fetch_add(1);
        while (begun.load() < pool.num_threads()) std::this_thread::yield();
      },
      group_size);
  return {first.begin(), first.end()};
}

TEST(ThreadPoolNodes, ThreadsBeginWithTheirNodesPart) {
  ThreadPool pool(Nodes({1, 1}));
  EXPECT_THAT(FirstTasks(pool, 10, 0), ElementsAre(0, 5));
  ThreadPool uneven(Nodes({1, 3}));
  const std::vector<int64_t> first = FirstTasks(uneven, 16, 0);
  EXPECT_EQ(first[0], 0);
  for (size_t t = 1; t < 4; ++t) EXPECT_GE(first[t], 4);
}

TEST(ThreadPoolNodes, EveryGroupIsCutBetweenNodes) {
  ThreadPool pool(Nodes({1, 1}));
  // Two groups of three: node 0 has the first of each, node 1 the others.
  std::vector<std::vector<int64_t>> order(2);
  std::atomic<int> begun{0};
  std::atomic<int> own_done{0};
  pool.ParallelFor(
      6,
      [&](int64_t i, int thread) {
        std::vector<int64_t>& mine = order[static_cast<size_t>(thread)];
        mine.push_back(i);
        if (mine.size() == 1) {
          begun.fetch_add(1);
          while (begun.load() < 2) std::this_thread::yield();
        }
        // Nobody helps before both have done their own part.
        if (mine.size() == (thread == 0 ? 2u : 4u)) {
          own_done.fetch_add(1);
          while (own_done.load() < 2) std::this_thread::yield();
        }
      },
      3);
  EXPECT_THAT(order[0], ElementsAre(0, 3));
  EXPECT_THAT(order[1], ElementsAre(1, 2, 4, 5));
}

TEST(ThreadPoolNodes, FreeThreadsHelpOtherNodes) {
  ThreadPool pool(Nodes({1, 1}));
  constexpr int64_t kTasks = 100;
  std::atomic<int64_t> done{0};
  // Whoever has the first task of the second node holds it until all others are done, so somebody
  // else does the rest of that node's part.
  pool.ParallelFor(kTasks, [&](int64_t i) {
    if (i == kTasks / 2) {
      while (done.load() < kTasks - 1) std::this_thread::yield();
    }
    done.fetch_add(1);
  });
  EXPECT_EQ(done.load(), kTasks);
}

TEST(ThreadPoolNodes, ThreadsAreBoundWhereThePlacementSays) {
  const int cpu = AllowedCpus().back();
  ThreadPlacement placement = Nodes({1, 1});
  for (auto& thread : placement.threads) thread.cpus = {cpu};
  std::thread([&] {
    ThreadPool pool(placement);
    pool.BindOwner();
    std::array<std::vector<int>, 2> allowed;
    std::atomic<int> begun{0};
    pool.ParallelFor(2, [&](int64_t, int thread) {
      begun.fetch_add(1);
      while (begun.load() < 2) std::this_thread::yield();
      allowed[static_cast<size_t>(thread)] = AllowedCpus();
    });
    EXPECT_THAT(allowed[0], ElementsAre(cpu));
    EXPECT_THAT(allowed[1], ElementsAre(cpu));
  }).join();
}

}  // namespace
}  // namespace fathom
