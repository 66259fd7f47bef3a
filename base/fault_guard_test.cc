#include "base/fault_guard.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/mapped_file.h"

namespace fathom {
namespace {

class FaultGuardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    InstallFaultGuard();
    std::string pattern = ::testing::TempDir() + "/fathom_fault_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // `pages` pages of 'x'.
  std::filesystem::path Write(const std::string& name, size_t pages) {
    std::ofstream(directory_ / name, std::ios::binary) << std::string(pages * page_, 'x');
    return directory_ / name;
  }

  const size_t page_ = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  std::filesystem::path directory_;
};

// Not inlined into a constant: the compiler must not keep bytes in registers across a truncation.
int Read(const std::byte* at) {
  return static_cast<int>(*static_cast<const volatile std::byte*>(at));
}

TEST_F(FaultGuardTest, TruncatedPagesReadAsZerosAndMarkTheirFileOnly) {
  const auto path = Write("cut", 8);
  auto cut = MappedFile::Open(path);
  auto whole = MappedFile::Open(Write("whole", 8));
  ASSERT_TRUE(cut.ok() && whole.ok());
  EXPECT_EQ(Read(cut->bytes().data() + 5 * page_), 'x');
  std::filesystem::resize_file(path, 3 * page_);
  EXPECT_FALSE(cut->damaged()) << "nothing was read yet";
  EXPECT_EQ(Read(cut->bytes().data() + 5 * page_ + 7), 0);
  EXPECT_TRUE(cut->damaged());
  EXPECT_EQ(Read(cut->bytes().data() + 7 * page_), 0);
  EXPECT_EQ(Read(cut->bytes().data() + 3 * page_), 0) << "a second fault in front of the first";
  EXPECT_EQ(Read(cut->bytes().data() + 3 * page_ - 1), 'x') << "what is left stays";
  EXPECT_FALSE(whole->damaged());
  EXPECT_EQ(Read(whole->bytes().data() + 7 * page_), 'x');
}

TEST_F(FaultGuardTest, TheMarkMovesWithTheFileAndIsNotInherited) {
  const auto path = Write("cut", 4);
  auto opened = MappedFile::Open(path);
  ASSERT_TRUE(opened.ok());
  MappedFile moved = std::move(*opened);
  std::filesystem::resize_file(path, 0);
  EXPECT_EQ(Read(moved.bytes().data()), 0);
  EXPECT_TRUE(moved.damaged());
  EXPECT_FALSE(opened->damaged());
  // Reuses the place in the table.
  auto next = MappedFile::Open(Write("next", 4));
  ASSERT_TRUE(next.ok());
  moved = std::move(*next);
  EXPECT_FALSE(moved.damaged());
  EXPECT_EQ(Read(moved.bytes().data()), 'x');
}

TEST_F(FaultGuardTest, ManyThreadsMayFaultAtOnce) {
  const auto path = Write("cut", 256);
  auto file = MappedFile::Open(path);
  ASSERT_TRUE(file.ok());
  std::filesystem::resize_file(path, 0);
  std::vector<std::thread> threads;
  std::vector<int> sums(8, -1);
  for (size_t t = 0; t < sums.size(); ++t) {
    threads.emplace_back([&, t] {
      int sum = 0;
      // From the back to the front, so that every page is a fault of its own.
      for (size_t i = 256; i-- > 0;) sum += Read(file->bytes().data() + i * page_);
      sums[t] = sum;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sums, std::vector<int>(8, 0));
  EXPECT_TRUE(file->damaged());
}

TEST_F(FaultGuardTest, ManyFilesFit) {
  std::vector<MappedFile> files;
  const auto path = Write("many", 1);
  for (int i = 0; i < 300; ++i) {
    auto file = MappedFile::Open(path);
    ASSERT_TRUE(file.ok());
    files.push_back(std::move(file).value());
  }
  std::filesystem::resize_file(path, 0);
  EXPECT_EQ(Read(files[0].bytes().data()), 0);
  EXPECT_EQ(Read(files[299].bytes().data()), 0);
  EXPECT_TRUE(files[0].damaged());
  EXPECT_TRUE(files[299].damaged());
  EXPECT_FALSE(files[150].damaged()) << "each mapping has its own mark";
}

using FaultGuardDeathTest = FaultGuardTest;

// A mapping that nobody registered, and a signal that somebody sent.
TEST_F(FaultGuardDeathTest, OtherFaultsEndTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        const auto path = Write("cut", 2);
        std::FILE* file = std::fopen(path.c_str(), "rb");
        void* bytes = ::mmap(nullptr, page_, PROT_READ, MAP_SHARED, ::fileno(file), 0);
        std::filesystem::resize_file(path, 0);
        std::exit(Read(static_cast<const std::byte*>(bytes)));
      },
      "");
  EXPECT_DEATH(
      {
        ::kill(::getpid(), SIGBUS);
        std::exit(0);
      },
      "");
}

}  // namespace
}  // namespace fathom
