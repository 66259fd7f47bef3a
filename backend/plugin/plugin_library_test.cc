// Files and tables that are no plug-ins of this host, each with its own refusal.
#include "backend/plugin/plugin_library.h"

#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "backend/plugin/test_table.h"

namespace fathom {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string LibraryPath(int number) {
  return FATHOM_BINARY_DIR "/plugins/libtest_library_" + std::to_string(number) + ".so";
}

void ExpectRefused(const std::string& path, StatusCode code, const std::string& reason) {
  const Result<FathomBackendTable> table = LoadPluginTable(path);
  ASSERT_FALSE(table.ok()) << path;
  EXPECT_EQ(table.status().code(), code) << table.status().ToString();
  EXPECT_THAT(table.status().message(),
              AllOf(StartsWith("--backend-plugin " + path + ": "), HasSubstr(reason)));
}

// A file of the test's own, which goes with it.
class TestFile {
 public:
  TestFile(const std::string& name, const std::vector<char>& bytes)
      : path_(testing::TempDir() + "plugin_" + name) {
    std::ofstream(path_, std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  ~TestFile() { std::filesystem::remove(path_); }
  TestFile(const TestFile&) = delete;
  TestFile& operator=(const TestFile&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::vector<char> BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(PluginLibrary, FilesThatAreNoSharedLibrariesAreRefused) {
  ExpectRefused("no/such/file.so", StatusCode::kNotFound, "No such file");
  ExpectRefused(testing::TempDir(), StatusCode::kInvalidArgument, "not a regular file");
  const TestFile empty("empty", {});
  ExpectRefused(empty.path(), StatusCode::kInvalidArgument, "not a shared library");
  const TestFile text("text", std::vector<char>(4096, 'x'));
  ExpectRefused(text.path(), StatusCode::kInvalidArgument, "not a shared library");
  // An object file, by its header.
  std::vector<char> object = BytesOf(LibraryPath(1));
  ASSERT_GT(object.size(), sizeof(Elf64_Ehdr));
  object[offsetof(Elf64_Ehdr, e_type)] = ET_REL;
  const TestFile relocatable("object", object);
  ExpectRefused(relocatable.path(), StatusCode::kInvalidArgument, "not a shared library");
}

TEST(PluginLibrary, OfAnotherMachineIsNamed) {
  std::vector<char> other = BytesOf(LibraryPath(1));
  ASSERT_GT(other.size(), sizeof(Elf64_Ehdr));
  other[offsetof(Elf64_Ehdr, e_machine)] = static_cast<char>(EM_RISCV);
  const TestFile file("riscv", other);
  ExpectRefused(file.path(), StatusCode::kInvalidArgument, "another kind of machine");
}

// Each of these would end the process if the loader got it, or be an error of its own.
TEST(PluginLibrary, CutAnywhereIsRefused) {
  const std::vector<char> whole = BytesOf(LibraryPath(1));
  Elf64_Ehdr header;
  ASSERT_GT(whole.size(), sizeof(header));
  std::memcpy(&header, whole.data(), sizeof(header));
  uint64_t needed = 0;  // bytes that segments are read from
  for (int i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    std::memcpy(&segment, whole.data() + header.e_phoff + static_cast<size_t>(i) * sizeof(segment),
                sizeof(segment));
    needed = std::max(needed, uint64_t{segment.p_offset + segment.p_filesz});
  }
  for (size_t bytes = 0; bytes < needed; bytes += bytes < 1024 ? 61 : 997) {
    const TestFile cut("cut", {whole.begin(), whole.begin() + static_cast<ptrdiff_t>(bytes)});
    const Result<FathomBackendTable> table = LoadPluginTable(cut.path());
    EXPECT_THAT(table.status().message(),
                testing::AnyOf(HasSubstr("cut short"), HasSubstr("not a shared library")))
        << bytes;
  }
}

TEST(PluginLibrary, WithoutATableIsRefused) {
  ExpectRefused(LibraryPath(1), StatusCode::kInvalidArgument, "exports no fathom_backend_table");
  ExpectRefused(LibraryPath(2), StatusCode::kInvalidArgument, "must be an object");
  ExpectRefused(LibraryPath(3), StatusCode::kInvalidArgument, "4 bytes, too few");
  ExpectRefused(LibraryPath(4), StatusCode::kInvalidArgument, "struct_size is 1048576");
  ExpectRefused(LibraryPath(5), StatusCode::kInvalidArgument, "fathom_test_that_is_nowhere");
  ExpectRefused(LibraryPath(6), StatusCode::kUnimplemented, "built for version 2.7");
}

TEST(PluginLibrary, AFileNameAloneIsAFileHere) {
  // Else the loader would find this one in the system's folders.
  ExpectRefused("libm.so.6", StatusCode::kNotFound, "No such file");
}

void ExpectWrong(const FathomBackendTable& table, StatusCode code, const std::string& reason) {
  const Result<FathomBackendTable> checked = CheckPluginTable(&table, sizeof(table));
  ASSERT_FALSE(checked.ok()) << reason;
  EXPECT_EQ(checked.status().code(), code) << checked.status().ToString();
  EXPECT_THAT(checked.status().message(), HasSubstr(reason));
}

TEST(PluginTable, OfThisVersionIsTakenAsItIs) {
  const FathomBackendTable table = test::RecordingTable();
  const Result<FathomBackendTable> checked = CheckPluginTable(&table, sizeof(table));
  ASSERT_TRUE(checked.ok()) << checked.status().ToString();
  EXPECT_EQ(std::memcmp(&*checked, &table, sizeof(table)), 0);
}

TEST(PluginTable, WithFieldsBehindThoseOfThisHostIsTakenWithoutThem) {
  struct Longer {
    FathomBackendTable table;
    char more[64];
  } longer = {test::RecordingTable(), {}};
  longer.table.struct_size = sizeof(longer);
  EXPECT_TRUE(CheckPluginTable(&longer.table, sizeof(longer)).ok());
}

TEST(PluginTable, OfAnotherVersionIsRefusedWithBoth) {
  FathomBackendTable table = test::RecordingTable();
  table.minor = FATHOM_PLUGIN_MINOR + 1;
  ExpectWrong(table, StatusCode::kUnimplemented,
              "built for version 1.2 of the interface; this fathom takes 1.0 to 1.1");
  table = test::RecordingTable();
  table.major = 0;
  ExpectWrong(table, StatusCode::kUnimplemented, "built for version 0.1");
}

TEST(PluginTable, OfASizeThatIsNoneIsRefused) {
  FathomBackendTable table = test::RecordingTable();
  for (const uint64_t size :
       {uint64_t{0}, uint64_t{8}, uint64_t{sizeof(table) - 1}, sizeof(table) + 1, UINT64_MAX}) {
    table.struct_size = size;
    ExpectWrong(table, StatusCode::kInvalidArgument, "struct_size is " + std::to_string(size));
  }
  table = test::RecordingTable();
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{15}}) {
    EXPECT_THAT(CheckPluginTable(&table, bytes).status().message(), HasSubstr("too few"));
  }
  EXPECT_THAT(CheckPluginTable(&table, 16).status().message(), HasSubstr("struct_size"));
}

TEST(PluginTable, WithWrongFieldsIsRefusedByTheirNames) {
  const auto wrong = [](void (*change)(FathomBackendTable&), const std::string& reason) {
    FathomBackendTable table = test::RecordingTable();
    change(table);
    ExpectWrong(table, StatusCode::kInvalidArgument, reason);
  };
  wrong([](auto& t) { t.name[0] = '\0'; }, "name");
  wrong([](auto& t) { t.name[3] = '\n'; }, "name");
  wrong([](auto& t) { std::memset(t.name, 'x', sizeof(t.name)); }, "name");
  wrong([](auto& t) { t.numerics = 0; }, "numerics");
  wrong([](auto& t) { t.numerics = 4; }, "numerics");
  wrong([](auto& t) { t.encodings = 1u << FATHOM_ENTRY_E2M1; }, "encodings");
  wrong([](auto& t) { t.host_readable = 2; }, "host_readable");
  wrong([](auto& t) { t.features = 2; }, "features");
}

// What version 1.0 reserved says nothing there.
TEST(PluginTable, OfTheFirstVersionHasNoFeatures) {
  FathomBackendTable table = test::RecordingTable();
  table.features = 1u << FATHOM_FEATURE_E4M3_HEADS;
  EXPECT_EQ(CheckPluginTable(&table, sizeof(table))->features, table.features);
  for (const uint32_t bits : {0u, 1u, 0xFFFFFFFFu}) {
    table.minor = 0;
    table.features = bits;
    const Result<FathomBackendTable> checked = CheckPluginTable(&table, sizeof(table));
    ASSERT_TRUE(checked.ok()) << checked.status().ToString();
    EXPECT_EQ(checked->features, 0u);
  }
}

TEST(PluginTable, OfAnyBytesIsTakenOrRefused) {
  std::mt19937 random(7);
  int taken = 0;
  for (int round = 0; round < 50'000; ++round) {
    FathomBackendTable table = test::RecordingTable();
    auto* const bytes = reinterpret_cast<unsigned char*>(&table);
    for (int flips = 1 + static_cast<int>(random() % 3); flips > 0; --flips) {
      const size_t at = random() % offsetof(FathomBackendTable, create);
      bytes[at] = static_cast<unsigned char>(random() % 4 == 0 ? random() : bytes[at] ^ 1);
    }
    const Result<FathomBackendTable> checked = CheckPluginTable(&table, sizeof(table));
    if (!checked.ok()) continue;
    ++taken;
    ASSERT_EQ(checked->major, uint32_t{FATHOM_PLUGIN_MAJOR});
    ASSERT_LE(checked->minor, uint32_t{FATHOM_PLUGIN_MINOR});
    ASSERT_EQ(checked->struct_size, sizeof(table));
    ASSERT_LT(strnlen(checked->name, sizeof(checked->name)), sizeof(checked->name));
    ASSERT_TRUE(checked->numerics > 0 && checked->numerics < 4);
    ASSERT_TRUE(checked->host_readable == 0 || checked->host_readable == 1);
    ASSERT_LE(checked->features, 1u << FATHOM_FEATURE_E4M3_HEADS);
  }
  EXPECT_GT(taken, 0);
}

TEST(PluginTable, NeedsEveryFunctionButThreeAndNamesTheOneThatLacks) {
  for (const test::RequiredFunction& function : test::RequiredFunctions()) {
    FathomBackendTable table = test::RecordingTable();
    std::memset(reinterpret_cast<char*>(&table) + function.offset, 0, sizeof(void*));
    ExpectWrong(table, StatusCode::kInvalidArgument, std::string(function.name) + " is null");
  }
  FathomBackendTable table = test::RecordingTable();
  table.add_weight = nullptr;
  table.begin_step = nullptr;
  table.synchronize = nullptr;
  EXPECT_TRUE(CheckPluginTable(&table, sizeof(table)).ok());
  constexpr size_t kFunctions =
      (sizeof(FathomBackendTable) - offsetof(FathomBackendTable, create)) / sizeof(void*);
  EXPECT_EQ(test::RequiredFunctions().size(), kFunctions - 3);
}

}  // namespace
}  // namespace fathom
