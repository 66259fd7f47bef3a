// Operands in device memory for comparisons of the CUDA backend with the reference.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/test_gpu.h"
#include "backend/ops/test_backends.h"
#include "backend/ops/test_pages.h"
#include "backend/ops/test_values.h"
#include "backend/reference/reference_backend.h"

namespace fathom {

// Both backends, and memory of the device that lasts as long as the test: one buffer per operand,
// so that memcheck sees an access beside it.
class CudaTest : public testing::Test {
 protected:
  static constexpr BackendLimits kLimits = {.max_rows = 2048,
                                            .max_cols = 16384,
                                            .max_experts = 384,
                                            .max_experts_per_token = 8,
                                            .max_expert_width = 3072,
                                            .max_heads = 128,
                                            .max_head_dim = 512,
                                            .max_positions = 1 << 16};

  void SetUp() override {
    if (!MissingGpu().empty()) GTEST_SKIP() << MissingGpu();
    cuda_ = CudaBackend::Create(Numerics::kOfficial, {.scratch_rows = 1024}).value();
    ASSERT_STATUS_OK(cuda_->Prepare(kLimits));
  }

  CudaBackend& cuda() { return *cuda_; }
  ReferenceBackend& reference() { return reference_; }

  template <typename T>
  T* Put(std::span<const T> values) {
    const auto bytes = static_cast<int64_t>(values.size_bytes());
    buffers_.push_back(cuda_->memory().Allocate(std::max<int64_t>(bytes, 1)).value());
    const Status status = cuda_->memory().CopyIn(buffers_.back().data(), std::as_bytes(values));
    EXPECT_TRUE(status.ok()) << status.ToString();
    return reinterpret_cast<T*>(buffers_.back().data());
  }
  template <typename T>
  T* Put(const std::vector<T>& values) {
    return Put(std::span<const T>(values));
  }
  WeightView Put(const testing_values::TestWeight& weight) {
    WeightView view = weight.view();
    const auto bytes = static_cast<size_t>(weight.data().size());
    view.data = Put(std::span(static_cast<const uint8_t*>(view.data), bytes));
    if (view.scale != nullptr) view.scale = Put(std::span(view.scale, weight.scale().size()));
    return view;
  }
  // Memory that holds NaN.
  template <typename T>
  T* Poisoned(size_t n) {
    std::vector<T> values(n);
    std::memset(values.data(), 0xFF, n * sizeof(T));
    return Put(values);
  }
  template <typename T>
  std::vector<T> Get(const T* data, size_t n) {
    std::vector<T> values(n);
    const Status status = cuda_->memory().CopyOut(std::as_writable_bytes(std::span(values)),
                                                  reinterpret_cast<const std::byte*>(data));
    EXPECT_TRUE(status.ok()) << status.ToString();
    return values;
  }
  // All pages of a kind, in device memory. `blocks` is that of all sequences together.
  PageView PutPages(const PageView& view, int blocks) {
    PageView copy = view;
    copy.base =
        Put(std::span<const std::byte>(view.base - view.block_stride, Bytes(view, blocks))) +
        view.block_stride;
    return copy;
  }
  // Back to where PutPages took them from.
  void GetPages(const PageView& device, const PageView& view, int blocks) {
    const Status status = cuda_->memory().CopyOut(
        {view.base - view.block_stride, Bytes(view, blocks)}, device.base - view.block_stride);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }

 private:
  static size_t Bytes(const PageView& view, int blocks) {
    return static_cast<size_t>(view.block_stride) * (static_cast<size_t>(blocks) + 1);
  }

  std::unique_ptr<CudaBackend> cuda_;
  ReferenceBackend reference_{Numerics::kOfficial};
  std::vector<DeviceBuffer> buffers_;  // given back before the backend
};

// The distances of kernels.md's table. NaN never passes.
inline void ExpectRelativeL2(std::span<const float> got, std::span<const float> want,
                             double bound) {
  ASSERT_EQ(got.size(), want.size());
  EXPECT_LE(testing_values::RelativeL2(got, testing_values::ToDoubles(want)), bound);
}
inline void ExpectWithinUlps(std::span<const float> got, std::span<const float> want, double ulps) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const auto w = static_cast<double>(want[i]);
    ASSERT_LE(std::fabs(static_cast<double>(got[i]) - w), ulps * testing_values::Bf16Ulp(w))
        << "element " << i << ": " << got[i] << ", reference " << want[i];
  }
}
inline void ExpectWithin(std::span<const float> got, std::span<const float> want, double bound) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_LE(std::fabs(static_cast<double>(got[i]) - static_cast<double>(want[i])), bound)
        << "element " << i << ": " << got[i] << ", reference " << want[i];
  }
}
// Values whose bits differ, as a share of all.
inline double ShareOfOthers(std::span<const float> got, std::span<const float> want) {
  size_t others = 0;
  for (size_t i = 0; i < got.size(); ++i) others += got[i] == want[i] ? 0 : 1;
  return static_cast<double>(others) / static_cast<double>(got.size());
}

}  // namespace fathom
