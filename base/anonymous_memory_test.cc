#include "base/anonymous_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "base/cpu_topology.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

TEST(AnonymousMemory, IsZeroedWholePages) {
  auto memory = AnonymousMemory::Create(5000, false);
  ASSERT_TRUE(memory.ok()) << memory.status().ToString();
  const std::span<std::byte> bytes = memory->bytes();
  EXPECT_GE(bytes.size(), 5000u);
  EXPECT_EQ(bytes.size() % 4096, 0u);
  EXPECT_TRUE(
      std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{}; }));
  std::memset(bytes.data(), 7, bytes.size());
  const AnonymousMemory moved = std::move(memory).value();
  EXPECT_EQ(moved.bytes().data(), bytes.data());
  EXPECT_EQ(moved.bytes()[4999], std::byte{7});
}

TEST(AnonymousMemory, SizesThatNobodyHasAreRefused) {
  EXPECT_EQ(AnonymousMemory::Create(0, false).status().code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(AnonymousMemory::Create(size_t{1} << 62, true).status().code(),
            StatusCode::kOutOfMemory);
  EXPECT_EQ(AnonymousMemory::Create(~size_t{0}, true).status().code(), StatusCode::kOutOfMemory);
}

TEST(AnonymousMemory, HugePagesAreAlignedAndCounted) {
  constexpr size_t kBytes = size_t{16} << 20;
  auto memory = AnonymousMemory::Create(kBytes + 1, true);
  ASSERT_TRUE(memory.ok()) << memory.status().ToString();
  EXPECT_EQ(memory->bytes().size(), kBytes + AnonymousMemory::kHugePageBytes);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->bytes().data()) % AnonymousMemory::kHugePageBytes,
            0u);
  EXPECT_EQ(memory->HugePageBytes(), 0);  // nothing is touched yet
  std::memset(memory->bytes().data(), 1, kBytes);
  const int64_t huge = memory->HugePageBytes();
  EXPECT_GE(huge, 0);
  EXPECT_LE(huge, static_cast<int64_t>(memory->bytes().size()));
  EXPECT_EQ(huge % static_cast<int64_t>(AnonymousMemory::kHugePageBytes), 0);
  // How many there are is up to the system, unless it gives none at all.
  if (HugePagePolicy().empty() || HugePagePolicy() == "never") {
    EXPECT_EQ(huge, 0);
  }
  memory->MakeReadOnly();
  EXPECT_EQ(memory->HugePageBytes(), huge);
}

TEST(AnonymousMemory, SmallPagesAreNotCountedAsHuge) {
  auto memory = AnonymousMemory::Create(size_t{8} << 20, false);
  ASSERT_TRUE(memory.ok());
  ::madvise(memory->bytes().data(), memory->bytes().size(), MADV_NOHUGEPAGE);
  std::memset(memory->bytes().data(), 1, memory->bytes().size());
  EXPECT_EQ(memory->HugePageBytes(), 0);
}

TEST(AnonymousMemoryDeathTest, ReadOnlyMeansThat) {
  auto memory = AnonymousMemory::Create(4096, false);
  ASSERT_TRUE(memory.ok());
  memory->MakeReadOnly();
  EXPECT_EQ(memory->bytes()[0], std::byte{});
  EXPECT_DEATH(std::memset(memory->bytes().data(), 1, 1), "");
}

TEST(HugePagePolicy, IsTheWordInBrackets) {
  const fs::path root =
      fs::path(::testing::TempDir()) / ("fathom_huge_pages_" + std::to_string(::getpid()));
  const fs::path file = root / "kernel" / "mm" / "transparent_hugepage" / "enabled";
  fs::remove_all(root);
  EXPECT_EQ(HugePagePolicy(root), "");
  fs::create_directories(file.parent_path());
  const auto policy = [&](const std::string& text) {
    std::ofstream(file) << text;
    return HugePagePolicy(root);
  };
  EXPECT_EQ(policy("always madvise [never]\n"), "never");
  EXPECT_EQ(policy("[always] madvise never\n"), "always");
  EXPECT_EQ(policy("]odd["), "");
  EXPECT_EQ(policy(""), "");
  fs::remove_all(root);
}

TEST(TakePagesFrom, NodesThatExistAreTaken) {
  std::thread([] {
    const int node = ReadCpuTopology().node_ids.front();
    // Containers may forbid the call; then nothing changes.
    if (TakePagesFrom(node)) {
      auto memory = AnonymousMemory::Create(4096, false);
      ASSERT_TRUE(memory.ok());
      memory->bytes()[0] = std::byte{1};
      EXPECT_TRUE(TakePagesFrom(-1));
    }
    EXPECT_FALSE(TakePagesFrom(1023));
    EXPECT_FALSE(TakePagesFrom(100'000));
  }).join();
}

}  // namespace
}  // namespace fathom
