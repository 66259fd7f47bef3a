#include "base/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "base/anonymous_memory.h"

namespace fathom {
namespace {

using ::testing::HasSubstr;

class MappedFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/fathom_mapped_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::filesystem::path Write(const std::string& name, const std::string& text) {
    std::ofstream(directory_ / name, std::ios::binary) << text;
    return directory_ / name;
  }
  static std::string Text(const MappedFile& file) {
    return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
  }

  std::filesystem::path directory_;
};

TEST_F(MappedFileTest, ShowsTheBytesOfTheFile) {
  auto file = MappedFile::Open(Write("a", std::string("ab\0c", 4)));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(Text(*file), std::string("ab\0c", 4));
}

TEST_F(MappedFileTest, EmptyFileHasNoBytes) {
  auto file = MappedFile::Open(Write("empty", ""));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_TRUE(file->bytes().empty());
  Advise(file->bytes(), MemoryAdvice::kWillNeed);
}

TEST_F(MappedFileTest, MovingKeepsTheAddressAndEmptiesTheSource) {
  auto file = MappedFile::Open(Write("a", "abc"));
  ASSERT_TRUE(file.ok());
  const std::byte* address = file->bytes().data();
  MappedFile moved = std::move(*file);
  EXPECT_EQ(moved.bytes().data(), address);
  EXPECT_TRUE(file->bytes().empty());
  auto other = MappedFile::Open(Write("b", "xyz"));
  ASSERT_TRUE(other.ok());
  moved = std::move(*other);
  EXPECT_EQ(Text(moved), "xyz");
}

TEST_F(MappedFileTest, MissingFileIsNotFoundAndNamed) {
  auto file = MappedFile::Open(directory_ / "nowhere");
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(file.status().message(), HasSubstr("nowhere"));
}

TEST_F(MappedFileTest, DirectoryAndPipeAreRefusedWithoutWaiting) {
  const auto pipe = directory_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const auto& path : {directory_, pipe}) {
    auto file = MappedFile::Open(path);
    ASSERT_FALSE(file.ok());
    EXPECT_THAT(file.status().message(), HasSubstr(path.string() + ": not a regular file"));
  }
}

TEST_F(MappedFileTest, AdviceInsideAPageLeavesTheBytesAlone) {
  auto file = MappedFile::Open(Write("a", std::string(10000, 'x')));
  ASSERT_TRUE(file.ok());
  for (auto advice : {MemoryAdvice::kSequential, MemoryAdvice::kRandom, MemoryAdvice::kWillNeed,
                      MemoryAdvice::kDontNeed}) {
    Advise(file->bytes().subspan(4097, 100), advice);
  }
  EXPECT_EQ(Text(*file), std::string(10000, 'x'));
}

TEST_F(MappedFileTest, PopulatedPagesAreInMemory) {
  auto file = MappedFile::Open(Write("a", std::string(3'000'000, 'x')));
  ASSERT_TRUE(file.ok());
  Advise(file->bytes(), MemoryAdvice::kRandom);  // no read-ahead that would help
  Populate(file->bytes().subspan(4099, 2'900'000));
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> resident((3'000'000 + page - 1) / page);
  auto* begin = const_cast<std::byte*>(file->bytes().data());
  ASSERT_EQ(mincore(begin, 3'000'000, resident.data()), 0);
  for (size_t i = 4099 / page; i < (4099 + 2'900'000) / page; ++i)
    EXPECT_EQ(resident[i] & 1, 1) << i;
  Populate({});
  EXPECT_EQ(Text(*file), std::string(3'000'000, 'x'));
}

TEST_F(MappedFileTest, PagesAreInMemoryOnceTheyAreRead) {
  EXPECT_TRUE(InMemory({}));
  auto file = MappedFile::Open(Write("a", std::string(3 << 20, 'x')));
  ASSERT_TRUE(file.ok());
  Populate(file->bytes());
  EXPECT_TRUE(InMemory(file->bytes()));
  EXPECT_TRUE(InMemory(file->bytes().subspan(5000, 3)));
  // Memory of which only the first page was touched stands in for a file that was read in part:
  // when the system drops pages of a file is its own business.
  auto memory = AnonymousMemory::Create(size_t{4} << 20, false);
  ASSERT_TRUE(memory.ok());
  ::madvise(memory->bytes().data(), memory->bytes().size(), MADV_NOHUGEPAGE);
  memory->bytes()[0] = std::byte{1};
  EXPECT_TRUE(InMemory(memory->bytes().first(100)));
  EXPECT_FALSE(InMemory(memory->bytes().first(4097)));
  EXPECT_FALSE(InMemory(memory->bytes()));
  EXPECT_FALSE(InMemory(memory->bytes().last(1)));
}

}  // namespace
}  // namespace fathom
