#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <fstream>
#include <limits>
#include <system_error>

#include "checkpoint/test_data.h"

namespace fathom {
namespace {

using ::testing::HasSubstr;

template <typename T, size_t N>
std::span<const std::byte> Bytes(const std::array<T, N>& values) {
  return std::as_bytes(std::span(values));
}

class SafetensorsTest : public ::testing::Test {
 protected:
  const std::array<float, 6> floats_ = {1, 2, 3, 4, 5, 6};
  const std::array<int8_t, 3> bytes_ = {-1, 0, 7};
  const std::array<int64_t, 1> longs_ = {1LL << 40};
  TempDirectory directory_;
  const std::filesystem::path path_ = directory_.path() / "x.safetensors";
};

TEST_F(SafetensorsTest, WhatIsWrittenIsReadBack) {
  const std::vector<StoredTensor> written = {{"b\"\\\n\xc3\xa9", DType::kI8, {3}, Bytes(bytes_)},
                                             {"a", DType::kF32, {2, 3}, Bytes(floats_)},
                                             {"c", DType::kI64, {}, Bytes(longs_)},
                                             {"empty", DType::kBF16, {0, 5}, {}}};
  ASSERT_TRUE(WriteSafetensors(path_, written).ok());
  auto file = SafetensorsFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  ASSERT_EQ(file->tensors().size(), written.size());
  for (const StoredTensor& expected : written) {
    const StoredTensor* read = file->Find(expected.name);
    ASSERT_NE(read, nullptr) << expected.name;
    EXPECT_EQ(read->dtype, expected.dtype);
    EXPECT_EQ(read->shape, expected.shape);
    ASSERT_EQ(read->data.size(), expected.data.size());
    EXPECT_TRUE(std::equal(read->data.begin(), read->data.end(), expected.data.begin()));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(read->data.data()) %
                  static_cast<uintptr_t>(DTypeBytes(read->dtype)),
              0u);
  }
  EXPECT_EQ(file->Find("d"), nullptr);
  EXPECT_EQ(file->tensors()[0].name, "a");  // in order of name
}

// A sparse file; sizes and offsets that no 32-bit or 40-bit number holds.
TEST_F(SafetensorsTest, TensorsBeyond2To32And2To40AreFound) {
  std::string header =
      R"({"a":{"dtype":"I8","shape":[4294967304],"data_offsets":[0,4294967304]},)"
      R"("b":{"dtype":"I8","shape":[1024,1069547520],"data_offsets":[4294967304,1099511627784]},)"
      R"("c":{"dtype":"I64","shape":[1],"data_offsets":[1099511627784,1099511627792]}})";
  header.append((8 - header.size() % 8) % 8, ' ');
  std::string text(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(text.data(), &length, sizeof length);
  WriteText(path_, text + header);
  std::error_code error;
  std::filesystem::resize_file(path_, 8 + header.size() + 1'099'511'627'792, error);
  if (error) GTEST_SKIP() << "no files of 1 TiB here: " << error.message();
  std::fstream out(path_, std::ios::binary | std::ios::in | std::ios::out);
  out.seekp(-8, std::ios::end);
  out.write("\x2a\0\0\0\0\0\0\0", 8);
  out.close();
  ASSERT_TRUE(out);
  auto file = SafetensorsFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(file->Find("a")->data.size(), 4'294'967'304u);
  EXPECT_EQ(file->Find("b")->data.size(), 1024 * uint64_t{1'069'547'520});
  EXPECT_EQ(static_cast<int>(file->Find("b")->data.back()), 0);
  int64_t value = 0;
  std::memcpy(&value, file->Find("c")->data.data(), sizeof value);
  EXPECT_EQ(value, 42);
}

TEST_F(SafetensorsTest, NoTensorsIsAValidFile) {
  ASSERT_TRUE(WriteSafetensors(path_, {}).ok());
  auto file = SafetensorsFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_TRUE(file->tensors().empty());
}

TEST_F(SafetensorsTest, WriterRefusesWhatNoReaderWouldTake) {
  const StoredTensor good = {"a", DType::kF32, {2, 3}, Bytes(floats_)};
  const std::vector<std::vector<StoredTensor>> cases = {
      {{"a", DType::kF32, {2, 2}, Bytes(floats_)}},
      {{"a", DType::kF32, {-2, -3}, Bytes(floats_)}},
      {{"a", DType::kF32, {std::numeric_limits<int64_t>::max(), 8}, Bytes(floats_)}},
      {good, good},
      {{"__metadata__", DType::kF32, {6}, Bytes(floats_)}},
      {{"\xff", DType::kF32, {6}, Bytes(floats_)}}};
  for (const auto& tensors : cases) {
    const Status status = WriteSafetensors(path_, tensors);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(path_.string()));
    EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
  }
}

TEST_F(SafetensorsTest, WriterReportsADirectoryThatIsNotThere) {
  const auto path = directory_.path() / "no" / "x.safetensors";
  const Status status = WriteSafetensors(path, {});
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr(path.string()));
}

TEST(TensorBytes, OverflowIsNoSize) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(TensorBytes(DType::kF32, {2, 3}), 24u);
  EXPECT_EQ(TensorBytes(DType::kF64, {}), 8u);
  EXPECT_EQ(TensorBytes(DType::kI8, {kMax}), static_cast<uint64_t>(kMax));
  EXPECT_EQ(TensorBytes(DType::kF32, {kMax}), std::nullopt);
  EXPECT_EQ(TensorBytes(DType::kI8, {1LL << 32, 1LL << 32}), std::nullopt);
  EXPECT_EQ(TensorBytes(DType::kI8, {1LL << 32, 1LL << 32, 0}), 0u);
  EXPECT_EQ(TensorBytes(DType::kI8, {-1}), std::nullopt);
}

}  // namespace
}  // namespace fathom
