#include "checkpoint/safetensors_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "checkpoint/safetensors.h"
#include "checkpoint/test_data.h"

namespace fathom {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

size_t NumFiles(const std::filesystem::path& directory) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(directory), {}));
}

// Arithmetic only: nothing of this size is written.
TEST(SafetensorsLayout, OffsetsBeyond32And40Bits) {
  const std::vector<TensorSpec> specs = {{"small", DType::kF8E8M0, {3}},
                                         {"a", DType::kBF16, {3'000'000'000}},
                                         {"b", DType::kF32, {1 << 20, 1 << 20}}};
  auto layout = LayOutSafetensors(specs, "x");
  ASSERT_TRUE(layout.ok()) << layout.status().ToString();
  const Json header = Json::parse(layout->preamble.substr(8));
  const uint64_t b_bytes = uint64_t{4} << 40;
  const uint64_t a_end = b_bytes + 6'000'000'000;
  EXPECT_EQ(header["b"]["data_offsets"], (Json{0, b_bytes}));  // wider elements first
  EXPECT_EQ(header["a"]["data_offsets"], (Json{b_bytes, a_end}));
  EXPECT_EQ(header["small"]["data_offsets"], (Json{a_end, a_end + 3}));
  EXPECT_EQ(layout->file_bytes, layout->preamble.size() + a_end + 3);
  EXPECT_EQ(layout->extents[1].begin, layout->preamble.size() + b_bytes);
  EXPECT_EQ(layout->extents[1].bytes, 6'000'000'000u);
  EXPECT_EQ(layout->preamble.size() % 8, 0u);
}

TEST(SafetensorsLayout, RefusesWhatDoesNotFit) {
  const std::vector<TensorSpec> one = {{"a", DType::kI64, {int64_t{1} << 60}}};
  EXPECT_EQ(LayOutSafetensors(one, "x").status().code(), StatusCode::kInvalidArgument);
  const std::vector<TensorSpec> sum = {{"a", DType::kI8, {int64_t{1} << 62}},
                                       {"b", DType::kI8, {int64_t{1} << 62}}};
  EXPECT_THAT(LayOutSafetensors(sum, "x").status().message(), HasSubstr("does not fit a file"));
  const std::vector<TensorSpec> negative = {{"a", DType::kI8, {-1}}};
  EXPECT_FALSE(LayOutSafetensors(negative, "x").ok());
  const std::vector<TensorSpec> twice = {{"a", DType::kI8, {1}}, {"a", DType::kI8, {1}}};
  EXPECT_THAT(LayOutSafetensors(twice, "x").status().message(), HasSubstr("given twice"));
}

TEST(SafetensorsWriter, PartsInAnyOrderMakeTheFile) {
  TempDirectory directory;
  const auto path = directory.path() / "x.safetensors";
  const std::vector<TensorSpec> specs = {{"a", DType::kI8, {4}}, {"b", DType::kI8, {2}}};
  const auto bytes = std::as_bytes(std::span<const char>("abcdef", 6));
  {
    auto writer = SafetensorsWriter::Create(path, specs);
    ASSERT_TRUE(writer.ok()) << writer.status().ToString();
    ASSERT_TRUE(writer->Write(0, 2, bytes.subspan(2, 2)).ok());
    ASSERT_TRUE(writer->Write(1, 0, bytes.subspan(4, 2)).ok());
    ASSERT_TRUE(writer->Write(0, 0, bytes.first(2)).ok());
    EXPECT_FALSE(std::filesystem::exists(path));
    ASSERT_TRUE(writer->Finish().ok());
  }
  EXPECT_EQ(NumFiles(directory.path()), 1u);
  auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.begin() + 4, file->Find("a")->data.begin()));
  EXPECT_TRUE(std::equal(bytes.begin() + 4, bytes.end(), file->Find("b")->data.begin()));
}

TEST(SafetensorsWriter, AnUnfinishedFileLeavesNothing) {
  TempDirectory directory;
  const std::vector<TensorSpec> specs = {{"a", DType::kI8, {4}}};
  {
    auto writer = SafetensorsWriter::Create(directory.path() / "x.safetensors", specs);
    ASSERT_TRUE(writer.ok());
    EXPECT_EQ(writer->Finish().code(), StatusCode::kInternal);
    EXPECT_EQ(NumFiles(directory.path()), 1u);
  }
  EXPECT_EQ(NumFiles(directory.path()), 0u);
  auto nowhere = SafetensorsWriter::Create(directory.path() / "no/x.safetensors", specs);
  EXPECT_THAT(nowhere.status().message(), HasSubstr("No such file"));
}

}  // namespace
}  // namespace fathom
