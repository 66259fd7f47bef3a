// Memory of the host that the GPU reads in place, and values made on the device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "backend/cuda/scratch.h"
#include "backend/cuda/test_support.h"

namespace fathom {
namespace {

// Needs no GPU.
TEST(CudaScratch, OnePassMeasuresWhatTheOtherPlaces) {
  BackendLimits limits = {.max_rows = 300,
                          .max_cols = 512,
                          .max_experts = 32,
                          .max_experts_per_token = 4,
                          .max_expert_width = 256,
                          .max_heads = 8,
                          .max_head_dim = 64,
                          .max_positions = 4096};
  CudaOptions options;
  cuda::Scratch measured, placed;
  const MemoryLayout layout = cuda::LayOutScratch(limits, options, nullptr, measured);
  EXPECT_EQ(measured.inputs, nullptr);
  std::vector<std::byte> memory(static_cast<size_t>(layout.bytes()));
  EXPECT_EQ(cuda::LayOutScratch(limits, options, memory.data(), placed).bytes(), layout.bytes());
  EXPECT_LE(
      reinterpret_cast<std::byte*>(placed.index_scores + placed.index_rows * placed.max_entries),
      memory.data() + memory.size());
  // An item per row and expert of it, in the second dimension of a grid.
  limits.max_rows = 8192;
  limits.max_experts_per_token = 31;
  cuda::LayOutScratch(limits, options, nullptr, measured);
  EXPECT_LE(measured.rows * 32, 65535);
  options.scratch_rows = 0;
  cuda::LayOutScratch(limits, options, nullptr, measured);
  EXPECT_EQ(measured.rows, 1);
}

using CudaMemoryTest = CudaTest;

TEST_F(CudaMemoryTest, OperationsReadPinnedMemoryAtTheHostsAddresses) {
  DeviceMemory& pinned = cuda().pinned_memory();
  EXPECT_TRUE(pinned.host_readable());
  EXPECT_GT(pinned.State()->total_bytes, 0);
  constexpr int kRows = 3, kCols = 300, kOut = 130;
  std::vector<float> x(kRows * kCols), w(kOut * kCols);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(static_cast<int>(i % 17) - 8);
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(static_cast<int>(i % 13) - 6);
  const DeviceBuffer buffer =
      pinned.Allocate(static_cast<int64_t>(w.size() * sizeof(float))).value();
  ASSERT_STATUS_OK(pinned.CopyIn(buffer.data(), std::as_bytes(std::span(w))));
  const std::vector<float> nothing(kRows * kOut, -1.0f);
  const float* const input = Put(x);
  float* const near = Put(nothing);
  float* const far = Put(nothing);
  const WeightView in_device = {DType::kF32, Put(w), nullptr, kOut, kCols};
  const WeightView in_host = {DType::kF32, buffer.data(), nullptr, kOut, kCols};
  ASSERT_STATUS_OK(cuda().Linear({{input, kRows, kCols}, {in_device, {near, kRows, kOut}}, {}}));
  ASSERT_STATUS_OK(cuda().Linear({{input, kRows, kCols}, {in_host, {far, kRows, kOut}}, {}}));
  std::vector<float> want(nothing.size()), got(nothing.size());
  ASSERT_STATUS_OK(cuda().memory().CopyOut(std::as_writable_bytes(std::span(want)),
                                           reinterpret_cast<const std::byte*>(near)));
  ASSERT_STATUS_OK(cuda().memory().CopyOut(std::as_writable_bytes(std::span(got)),
                                           reinterpret_cast<const std::byte*>(far)));
  EXPECT_EQ(got, want);
  EXPECT_NE(got, nothing);
}

TEST_F(CudaMemoryTest, PinnedMemoryThatIsNotThereIsOutOfMemory) {
  EXPECT_EQ(cuda().pinned_memory().Allocate(int64_t{1} << 45).status().code(),
            StatusCode::kOutOfMemory);
}

TEST_F(CudaMemoryTest, FillsGiveTheBytesOfTheHostAndNoMore) {
  for (const bool pinned : {false, true}) {
    DeviceMemory& memory = pinned ? cuda().pinned_memory() : cuda().memory();
    for (const auto kind : {FillRecipe::Kind::kNormal, FillRecipe::Kind::kUniform,
                            FillRecipe::Kind::kBytes, FillRecipe::Kind::kNibbles}) {
      for (const bool is_bf16 : {false, true}) {
        FillRecipe recipe;
        recipe.kind = kind;
        recipe.is_bf16 = is_bf16;
        recipe.key = 0x1234567890ABCDEFu;
        recipe.mean = 0.3;
        recipe.spread = 1.7;
        recipe.num_copies = is_bf16 ? 0 : 4;
        for (size_t i = 0; i < std::size(recipe.table); ++i) {
          recipe.table[i] =
              static_cast<uint8_t>(kind == FillRecipe::Kind::kNibbles ? i * 7 % 16 : i * 31 % 256);
        }
        for (const int64_t bytes : {1, 4, 8, 1001, 3'000'004}) {
          const DeviceBuffer buffer = memory.Allocate(bytes + 64).value();
          const std::vector<std::byte> poison(static_cast<size_t>(bytes) + 64, std::byte{0xA5});
          ASSERT_STATUS_OK(memory.CopyIn(buffer.data(), poison));
          ASSERT_STATUS_OK(cuda().Fill(recipe, buffer.data(), bytes));
          ASSERT_STATUS_OK(cuda().Synchronize());
          std::vector<std::byte> got(poison.size());
          ASSERT_STATUS_OK(memory.CopyOut(got, buffer.data()));
          std::vector<std::byte> want = poison;
          for (int64_t begin = 0; begin < bytes; begin += 8) {
            const uint64_t word =
                FillWord(recipe, FillQuantiles(), static_cast<uint64_t>(begin / 8));
            std::memcpy(want.data() + begin, &word,
                        static_cast<size_t>(std::min<int64_t>(8, bytes - begin)));
          }
          ASSERT_EQ(std::memcmp(got.data(), want.data(), want.size()), 0)
              << static_cast<int>(kind) << " " << is_bf16 << " " << bytes << " " << pinned;
        }
      }
    }
  }
}

TEST_F(CudaMemoryTest, FillsThatCannotBeAreRefused) {
  FillRecipe recipe;
  const DeviceBuffer buffer = cuda().memory().Allocate(64).value();
  EXPECT_EQ(cuda().Fill(recipe, buffer.data() + 4, 8).code(), StatusCode::kInvalidArgument);
  recipe.kind = FillRecipe::Kind::kExpertTable;
  EXPECT_EQ(cuda().Fill(recipe, buffer.data(), 8).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fathom
