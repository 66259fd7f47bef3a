// WeightMemory: values that kernels can work with, and no piece twice before all were used.
#include "bench/weight_memory.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>
#include <span>

#include "base/formats.h"

namespace fathom::bench {
namespace {

constexpr int64_t kBytes = 1 << 20;

const auto kFormats = {DType::kF8E4M3, DType::kI8, DType::kBF16, DType::kF32};

TEST(WeightMemory, EveryValueAndScaleIsFinite) {
  ThreadPool pool(2);
  HostDeviceMemory host;
  WeightMemory memory(pool, host, kBytes);
  for (const DType dtype : kFormats) {
    ASSERT_TRUE(memory.Reserve("w", dtype, 128, 256).ok());
    const WeightView w = memory.Take(dtype, 128, 256);
    const int64_t count = int64_t{w.rows} * w.cols;
    std::set<float> values;
    for (int64_t i = 0; i < count; ++i) {
      const auto* bytes = static_cast<const uint8_t*>(w.data);
      float value = 0.0f;
      if (dtype == DType::kF8E4M3) value = E4m3ToFloat(bytes[i]);
      if (dtype == DType::kI8)
        value = E2m1ToFloat(static_cast<uint8_t>(bytes[i / 2] >> 4 * (i % 2)));
      if (dtype == DType::kBF16) value = Bf16ToFloat(static_cast<const uint16_t*>(w.data)[i]);
      if (dtype == DType::kF32) value = static_cast<const float*>(w.data)[i];
      ASSERT_TRUE(std::isfinite(value)) << i;
      values.insert(value);
    }
    EXPECT_GE(values.size(), 15U);
    ASSERT_EQ(w.scale != nullptr, w.quantised());
    if (w.scale == nullptr) continue;
    const int64_t scales = WeightMemory::StoredBytes(dtype, w.rows, w.cols) -
                           (dtype == DType::kI8 ? count / 2 : count);
    EXPECT_EQ(scales, dtype == DType::kI8 ? count / 32 : 2);
    for (const uint8_t scale : std::span(w.scale, static_cast<size_t>(scales))) {
      EXPECT_TRUE(scale >= 116 && scale <= 119) << int{scale};
    }
  }
}

TEST(WeightMemory, APieceComesAgainWhenAllWereUsed) {
  ThreadPool pool(1);
  HostDeviceMemory host;
  WeightMemory memory(pool, host, kBytes);
  ASSERT_TRUE(memory.Reserve("w", DType::kF8E4M3, 128, 128).ok());
  const int64_t pieces = memory.ring_bytes() / (128 * 128);
  const void* first = memory.Take(DType::kF8E4M3, 128, 128).data;
  const auto* last = static_cast<const std::byte*>(first);
  for (int64_t i = 1; i < pieces; ++i) {
    const auto* next = static_cast<const std::byte*>(memory.Take(DType::kF8E4M3, 128, 128).data);
    EXPECT_EQ(next, last + 128 * 128);
    last = next;
  }
  EXPECT_EQ(memory.Take(DType::kF8E4M3, 128, 128).data, first);
}

TEST(WeightMemory, WhatDoesNotFitIsRefusedByName) {
  ThreadPool pool(1);
  HostDeviceMemory host;
  WeightMemory memory(pool, host, kBytes);
  EXPECT_TRUE(memory.Reserve("w", DType::kBF16, 128, 1024).ok());
  const Status refused = memory.Reserve("wq_b", DType::kBF16, 129, 1024);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("wq_b"), std::string::npos) << refused.message();
}

}  // namespace
}  // namespace fathom::bench
