#include "base/thread_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "base/parallel.h"

namespace fathom {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// `cores` cores with `threads` hardware threads each on every node, numbered in order.
CpuTopology Machine(const std::vector<int>& cores_of_nodes, int threads = 1) {
  CpuTopology topology;
  int cpu = 0;
  for (size_t node = 0; node < cores_of_nodes.size(); ++node) {
    topology.node_ids.push_back(static_cast<int>(node));
    for (int core = 0; core < cores_of_nodes[node]; ++core) {
      CpuTopology::Core& added = topology.cores.emplace_back();
      added.node = static_cast<int>(node);
      for (int t = 0; t < threads; ++t) added.cpus.push_back(cpu++);
    }
  }
  return topology;
}

std::vector<int> ThreadsPerNode(const ThreadPlacement& placement) {
  std::vector<int> counts(static_cast<size_t>(placement.num_nodes()), 0);
  for (const ThreadPlacement::Thread& t : placement.threads) ++counts[static_cast<size_t>(t.node)];
  return counts;
}

TEST(ParseNumaMode, KnowsItsWords) {
  EXPECT_EQ(ParseNumaMode("auto").value(), NumaMode::kAuto);
  EXPECT_EQ(ParseNumaMode("off").value(), NumaMode::kOff);
  for (const char* bad : {"", "on", "AUTO", "0"}) EXPECT_FALSE(ParseNumaMode(bad).ok()) << bad;
}

TEST(PlaceThreads, OneNodeBindsNothing) {
  for (int threads : {1, 3, 8, 100}) {
    const ThreadPlacement placement = PlaceThreads(threads, NumaMode::kAuto, Machine({8}, 2));
    EXPECT_EQ(placement.threads.size(), static_cast<size_t>(threads));
    EXPECT_EQ(placement.num_nodes(), 1);
    for (const auto& thread : placement.threads) EXPECT_THAT(thread.cpus, IsEmpty());
  }
}

TEST(PlaceThreads, OffIsOneNode) {
  const ThreadPlacement placement = PlaceThreads(6, NumaMode::kOff, Machine({4, 4}));
  EXPECT_EQ(placement.num_nodes(), 1);
  EXPECT_EQ(placement.threads.size(), 6u);
  for (const auto& thread : placement.threads) EXPECT_THAT(thread.cpus, IsEmpty());
}

TEST(PlaceThreads, EveryThreadGetsACoreOfItsOwn) {
  const ThreadPlacement placement = PlaceThreads(5, NumaMode::kAuto, Machine({4, 4}, 2));
  EXPECT_THAT(ThreadsPerNode(placement), ElementsAre(3, 2));
  std::vector<int> cpus;
  for (const auto& thread : placement.threads) {
    EXPECT_EQ(thread.cpus.size(), 2u);  // both hardware threads of one core
    cpus.insert(cpus.end(), thread.cpus.begin(), thread.cpus.end());
  }
  std::sort(cpus.begin(), cpus.end());
  EXPECT_EQ(std::unique(cpus.begin(), cpus.end()), cpus.end());
  EXPECT_TRUE(std::is_sorted(placement.threads.begin(), placement.threads.end(),
                             [](const auto& a, const auto& b) { return a.node < b.node; }));
}

TEST(PlaceThreads, SmallNodesAreFullBeforeLargeOnesWait) {
  EXPECT_THAT(ThreadsPerNode(PlaceThreads(9, NumaMode::kAuto, Machine({8, 2, 4}))),
              ElementsAre(4, 2, 3));
  EXPECT_THAT(ThreadsPerNode(PlaceThreads(14, NumaMode::kAuto, Machine({8, 2, 4}))),
              ElementsAre(8, 2, 4));
}

TEST(PlaceThreads, MoreThreadsThanCoresStayOnTheirNode) {
  const ThreadPlacement hyper = PlaceThreads(8, NumaMode::kAuto, Machine({2, 2}, 2));
  EXPECT_THAT(ThreadsPerNode(hyper), ElementsAre(4, 4));
  for (const auto& thread : hyper.threads) EXPECT_EQ(thread.cpus.size(), 4u);
  const ThreadPlacement crowded = PlaceThreads(21, NumaMode::kAuto, Machine({2, 2}));
  EXPECT_THAT(ThreadsPerNode(crowded), ElementsAre(11, 10));
}

TEST(PlaceThreads, NodesWithoutThreadsHaveNoPart) {
  const ThreadPlacement placement = PlaceThreads(2, NumaMode::kAuto, Machine({4, 4, 4}));
  EXPECT_THAT(placement.node_ids, ElementsAre(0, 1));
  EXPECT_THAT(ThreadsPerNode(PlaceThreads(1, NumaMode::kAuto, Machine({4, 4}))), ElementsAre(1));
}

TEST(ThreadPlacement, PartsCoverEverythingInProportion) {
  for (const std::vector<int>& cores : {std::vector<int>{4, 4}, {1, 7}, {3, 2, 5}}) {
    const int total = std::max(1, cores[0] + cores[1] + (cores.size() > 2 ? cores[2] : 0));
    const ThreadPlacement placement = PlaceThreads(total, NumaMode::kAuto, Machine(cores));
    for (int64_t n : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{64}, int64_t{1} << 49}) {
      EXPECT_EQ(placement.PartBegin(n, 0), 0);
      EXPECT_EQ(placement.PartBegin(n, placement.num_nodes()), n);
      for (int node = 0; node < placement.num_nodes(); ++node) {
        const int64_t part = placement.PartBegin(n, node + 1) - placement.PartBegin(n, node);
        const double share = static_cast<double>(n) * cores[static_cast<size_t>(node)] / total;
        EXPECT_NEAR(static_cast<double>(part), share, 1.0) << n << " on node " << node;
      }
    }
  }
}

TEST(RunOn, BindsTheCallingThread) {
  const int cpu = AllowedCpus().back();
  std::thread([&] {
    EXPECT_TRUE(RunOn({cpu}));
    EXPECT_THAT(AllowedCpus(), ElementsAre(cpu));
    EXPECT_TRUE(RunOn({}));
    EXPECT_THAT(AllowedCpus(), ElementsAre(cpu));
  }).join();
}

TEST(RunOn, RefusedProcessorsChangeNothing) {
  const std::vector<int> before = AllowedCpus();
  EXPECT_FALSE(RunOn({60'000}));
  EXPECT_EQ(AllowedCpus(), before);
}

}  // namespace
}  // namespace fathom
