#include "base/cpu_topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace fathom {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A machine as sysfs shows it, in a temporary folder.
class FakeSysfs {
 public:
  explicit FakeSysfs(const std::string& name)
      : root_(fs::path(::testing::TempDir()) /
              ("fathom_topology_" + name + "_" + std::to_string(::getpid()))) {
    fs::remove_all(root_);
  }
  ~FakeSysfs() { fs::remove_all(root_); }
  FakeSysfs(const FakeSysfs&) = delete;
  FakeSysfs& operator=(const FakeSysfs&) = delete;

  void Node(int node, const std::string& cpus) {
    Write(root_ / "node" / ("node" + std::to_string(node)) / "cpulist", cpus);
  }
  void Online(const std::string& nodes) { Write(root_ / "node" / "online", nodes); }
  void Siblings(int cpu, const std::string& cpus) {
    Write(root_ / "cpu" / ("cpu" + std::to_string(cpu)) / "topology" / "thread_siblings_list",
          cpus);
  }
  [[nodiscard]] const fs::path& root() const { return root_; }

 private:
  static void Write(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  const fs::path root_;
};

std::vector<int> CpusOf(const CpuTopology& topology, int node) {
  std::vector<int> cpus;
  for (const CpuTopology::Core& core : topology.cores) {
    if (core.node == node) cpus.insert(cpus.end(), core.cpus.begin(), core.cpus.end());
  }
  return cpus;
}

TEST(ParseCpuList, ReadsWhatSysfsWrites) {
  const auto parse = [](const char* text) { return ParseCpuList(text).value(); };
  EXPECT_THAT(parse("0"), ElementsAre(0));
  EXPECT_THAT(parse("0-3,8,10-11\n"), ElementsAre(0, 1, 2, 3, 8, 10, 11));
  EXPECT_THAT(parse("5,1-2,2"), ElementsAre(1, 2, 5));
  EXPECT_THAT(parse("\n"), IsEmpty());
}

TEST(ParseCpuList, RefusesAnythingElse) {
  for (const char* text : {"-1", "1-", "3-1", "0,", ",0", "a", "0;1", "0-999999999", "1 2"}) {
    EXPECT_FALSE(ParseCpuList(text).ok()) << text;
  }
}

TEST(CpuTopology, NodesAndHyperThreadsAreTold) {
  FakeSysfs machine("two");
  machine.Online("0-1");
  machine.Node(0, "0-1,4-5");
  machine.Node(1, "2-3,6-7");
  for (int cpu = 0; cpu < 8; ++cpu) {
    machine.Siblings(cpu, std::to_string(cpu % 4) + "," + std::to_string(cpu % 4 + 4));
  }
  const CpuTopology all = ReadCpuTopology(machine.root(), {0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_THAT(all.node_ids, ElementsAre(0, 1));
  ASSERT_EQ(all.cores.size(), 4u);
  EXPECT_THAT(all.cores[0].cpus, ElementsAre(0, 4));
  EXPECT_THAT(CpusOf(all, 0), ElementsAre(0, 4, 1, 5));
  EXPECT_THAT(CpusOf(all, 1), ElementsAre(2, 6, 3, 7));
  EXPECT_EQ(all.num_cpus(), 8);
}

TEST(CpuTopology, OnlyAllowedProcessorsCount) {
  FakeSysfs machine("masked");
  machine.Online("0,2");
  machine.Node(0, "0-3");
  machine.Node(2, "4-7");
  for (int cpu = 0; cpu < 8; ++cpu) {
    const int first = cpu / 2 * 2;
    machine.Siblings(cpu, std::to_string(first) + "-" + std::to_string(first + 1));
  }
  const CpuTopology part = ReadCpuTopology(machine.root(), {1, 6, 7, 5});
  EXPECT_THAT(part.node_ids, ElementsAre(0, 2));
  ASSERT_EQ(part.cores.size(), 3u);
  EXPECT_THAT(part.cores[0].cpus, ElementsAre(1));
  EXPECT_THAT(part.cores[1].cpus, ElementsAre(5));
  EXPECT_THAT(part.cores[2].cpus, ElementsAre(6, 7));
  const CpuTopology second = ReadCpuTopology(machine.root(), {4, 5});
  EXPECT_THAT(second.node_ids, ElementsAre(2));
  EXPECT_EQ(second.cores.front().node, 0);
}

TEST(CpuTopology, SystemsThatSayNothingAreOneNode) {
  FakeSysfs machine("silent");
  const CpuTopology topology = ReadCpuTopology(machine.root(), {3, 9});
  EXPECT_THAT(topology.node_ids, ElementsAre(0));
  ASSERT_EQ(topology.cores.size(), 2u);
  EXPECT_THAT(topology.cores[0].cpus, ElementsAre(3));
  EXPECT_THAT(topology.cores[1].cpus, ElementsAre(9));
}

TEST(CpuTopology, DamagedListsAreLeftOut) {
  FakeSysfs machine("damaged");
  machine.Online("0-1");
  machine.Node(0, "0-1");
  machine.Node(1, "two to three");
  const CpuTopology topology = ReadCpuTopology(machine.root(), {0, 1, 2});
  EXPECT_THAT(topology.node_ids, ElementsAre(0));
  EXPECT_THAT(CpusOf(topology, 0), ElementsAre(0, 1, 2));
}

TEST(CpuTopology, ThisMachineHasWhatTheProcessMayUse) {
  const std::vector<int> allowed = AllowedCpus();
  const CpuTopology topology = ReadCpuTopology();
  EXPECT_EQ(topology.num_cpus(), static_cast<int>(allowed.size()));
  EXPECT_FALSE(topology.node_ids.empty());
}

}  // namespace
}  // namespace fathom
