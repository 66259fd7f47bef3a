#include "base/host_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace fathom {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kGiB = int64_t{1} << 30;

class HostMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(root_);
    Write("proc/meminfo",
          "MemTotal:       33554432 kB\nMemFree:  1 kB\nMemAvailable: 16777216 kB\n");
  }
  void TearDown() override { fs::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  [[nodiscard]] HostMemory Read() const { return ReadHostMemory(root_ / "proc", root_ / "cg"); }

  const fs::path root_ =
      fs::path(::testing::TempDir()) / ("fathom_host_memory_" + std::to_string(::getpid()));
};

TEST_F(HostMemoryTest, MeminfoAloneIsTheMachine) {
  const HostMemory memory = Read();
  EXPECT_TRUE(memory.known());
  EXPECT_EQ(memory.total_bytes, 32 * kGiB);
  EXPECT_EQ(memory.available_bytes, 16 * kGiB);
}

TEST_F(HostMemoryTest, AGroupsLimitCountsLessWhatItHolds) {
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("cg/a/b/memory.max", std::to_string(8 * kGiB) + "\n");
  Write("cg/a/b/memory.current", std::to_string(5 * kGiB) + "\n");
  Write("cg/a/b/memory.stat", "anon 77\nfile 1\ninactive_file " + std::to_string(2 * kGiB) +
                                  "\nactive_file " + std::to_string(kGiB) + "\n");
  const HostMemory memory = Read();
  EXPECT_EQ(memory.total_bytes, 8 * kGiB);
  EXPECT_EQ(memory.available_bytes, 6 * kGiB);
}

TEST_F(HostMemoryTest, TheTightestGroupUpToTheRootCounts) {
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("cg/a/b/memory.max", "max\n");
  Write("cg/a/b/memory.current", "4096\n");
  Write("cg/a/memory.max", std::to_string(4 * kGiB) + "\n");
  Write("cg/a/memory.current", std::to_string(kGiB) + "\n");
  EXPECT_EQ(Read().available_bytes, 3 * kGiB);
  Write("cg/memory.max", std::to_string(2 * kGiB) + "\n");
  Write("cg/memory.current", "0\n");
  EXPECT_EQ(Read().available_bytes, 2 * kGiB);
  EXPECT_EQ(Read().total_bytes, 2 * kGiB);
}

TEST_F(HostMemoryTest, AContainerSeesItsGroupAsTheRoot) {
  Write("proc/self/cgroup", "0::/docker/0123abcd\n");
  Write("cg/memory.max", std::to_string(kGiB) + "\n");
  Write("cg/memory.current", "0\n");
  EXPECT_EQ(Read().available_bytes, kGiB);
}

TEST_F(HostMemoryTest, VersionOneHasOtherNames) {
  Write("proc/self/cgroup", "12:cpu,cpuacct:/x\n4:hugetlb,memory:/x\n");
  Write("cg/memory/x/memory.limit_in_bytes", std::to_string(2 * kGiB) + "\n");
  Write("cg/memory/x/memory.usage_in_bytes", std::to_string(kGiB) + "\n");
  Write("cg/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("cg/memory/memory.usage_in_bytes", std::to_string(kGiB) + "\n");
  EXPECT_EQ(Read().available_bytes, kGiB);
}

TEST_F(HostMemoryTest, AFullGroupHasAPage) {
  Write("proc/self/cgroup", "0::/\n");
  Write("cg/memory.max", "4096\n");
  Write("cg/memory.current", "999999999\n");
  EXPECT_TRUE(Read().known());
  EXPECT_EQ(Read().available_bytes, 4096);
}

TEST_F(HostMemoryTest, DamagedFilesAreNoNumbers) {
  Write("proc/self/cgroup", "nonsense\n0::\n::\n0::/../..\n");
  Write("cg/memory.max", "-5\n");
  Write("cg/memory.current", "x\n");
  EXPECT_EQ(Read().available_bytes, 16 * kGiB);
  Write("proc/meminfo", "MemTotal: lots\n");
  EXPECT_FALSE(Read().known());
}

TEST(HostMemory, ThisMachineSaysSomething) {
  const HostMemory memory = ReadHostMemory();
  EXPECT_TRUE(memory.known());
  EXPECT_GE(memory.total_bytes, memory.available_bytes);
}

}  // namespace
}  // namespace fathom
