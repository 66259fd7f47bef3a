// Memory of the host that the GPU reads in place, and the layout of scratch memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  limits.max_rows = limits.max_cols = limits.max_expert_width = INT32_MAX;
  EXPECT_TRUE(cuda::LayOutScratch(limits, options, nullptr, measured).overflow());
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

}  // namespace
}  // namespace fathom
