// Products with weights and experts, CUDA against the reference at the models' sizes and at odd
// ones, with poisoned outputs; and rows alone against rows among others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/cuda/test_experts.h"
#include "backend/cuda/test_support.h"

namespace fathom {
namespace {

using namespace testing_values;  // NOLINT(google-build-using-namespace)

using CudaLinear = CudaTest;

struct Shape {
  DType dtype;
  int rows;
  int cols;
  int n;
};

// Projections of Flash and Pro, the tiny and nano models, and sizes that divide into nothing.
constexpr Shape kLinears[] = {
    {DType::kF8E4M3, 1024, 4096, 5},
    {DType::kF8E4M3, 512, 7168, 3},
    {DType::kF8E4M3, 4096, 8192, 1},
    {DType::kF8E4M3, 8192, 1024, 9},
    {DType::kF8E4M3, 130, 256, 17},
    {DType::kI8, 2048, 4096, 2},
    {DType::kI8, 3072, 7168, 1},
    {DType::kI8, 4096, 2048, 3},
    {DType::kI8, 128, 128, 8},
    {DType::kBF16, 64, 4096, 4},
    {DType::kBF16, 1024, 4096, 2},
    {DType::kBF16, 7, 130, 19},
    {DType::kBF16, 3, 1, 2},
    {DType::kBF16, 5, 67, 33},
    {DType::kF32, 1024, 4096, 2},
    {DType::kF32, 24, 28672 / 2, 3},
    {DType::kF32, 9, 31, 11},
    {DType::kF32, 1, 2, 1},
    // Many rows, thirteen steps of columns and a short last segment.
    {DType::kF8E4M3, 130, 1664, 200},
    {DType::kI8, 130, 1664, 200},
    {DType::kBF16, 130, 1664, 200},
};

TEST_F(CudaLinear, EqualsTheReferenceAtAllSizes) {
  for (const Shape& s : kLinears) {
    for (const bool round : {true, false}) {
      SCOPED_TRACE(std::string(DTypeName(s.dtype)) + " " + std::to_string(s.rows) + " x " +
                   std::to_string(s.cols) + ", " + std::to_string(s.n) + " rows");
      Random random(static_cast<uint32_t>(s.rows + s.cols));
      const TestWeight w = TestWeight::Random(random, s.dtype, s.rows, s.cols);
      const std::vector<float> x =
          random.Bf16s(static_cast<size_t>(s.n) * static_cast<size_t>(s.cols));
      const size_t size = static_cast<size_t>(s.n) * static_cast<size_t>(s.rows);
      std::vector<float> want(size);
      ASSERT_STATUS_OK(reference().Linear({.x = {x.data(), s.n, s.cols},
                                           .first = {w.view(), {want.data(), s.n, s.rows}},
                                           .second = {},
                                           .round_output = round}));
      float* out = Poisoned<float>(size);
      const float* device_x = Put(x);
      const WeightView device_w = Put(w);
      ASSERT_STATUS_OK(cuda().Linear({.x = {device_x, s.n, s.cols},
                                      .first = {device_w, {out, s.n, s.rows}},
                                      .second = {},
                                      .round_output = round}));
      ASSERT_STATUS_OK(cuda().Synchronize());
      const std::vector<float> got = Get(out, size);
      ExpectRelativeL2(got, want, round ? 2e-3 : 1e-5);
      // A row alone.
      const int last = s.n - 1;
      float* one = Poisoned<float>(static_cast<size_t>(s.rows));
      ASSERT_STATUS_OK(cuda().Linear({.x = {device_x + int64_t{last} * s.cols, 1, s.cols},
                                      .first = {device_w, {one, 1, s.rows}},
                                      .second = {},
                                      .round_output = round}));
      EXPECT_TRUE(std::ranges::equal(Get(one, static_cast<size_t>(s.rows)),
                                     std::span(got).last(static_cast<size_t>(s.rows))));
    }
  }
}

// More rows than scratch memory takes at a time.
TEST_F(CudaLinear, LongStepsAreDoneInRounds) {
  constexpr int kN = 1500, kRows = 6, kCols = 128;
  Random random(2);
  const TestWeight w = TestWeight::Random(random, DType::kF8E4M3, kRows, kCols);
  const std::vector<float> x = random.Bf16s(size_t{kN} * kCols);
  std::vector<float> want(size_t{kN} * kRows);
  ASSERT_STATUS_OK(reference().Linear(
      {.x = {x.data(), kN, kCols}, .first = {w.view(), {want.data(), kN, kRows}}, .second = {}}));
  float* out = Poisoned<float>(want.size());
  ASSERT_STATUS_OK(
      cuda().Linear({.x = {Put(x), kN, kCols}, .first = {Put(w), {out, kN, kRows}}, .second = {}}));
  ExpectRelativeL2(Get(out, want.size()), want, 2e-3);
}

using CudaMoe = CudaTest;

struct MoeShape {
  DType routed;
  int dim;
  int width;
  int experts;
  int chosen;
  int n;
};
constexpr MoeShape kMoes[] = {
    {DType::kI8, 4096, 2048, 7, 6, 2},      // Flash, few experts
    {DType::kI8, 7168, 3072, 3, 2, 1},      // Pro
    {DType::kF8E4M3, 256, 128, 16, 4, 40},  // nano
    {DType::kI8, 128, 128, 4, 2, 9},        // tiny
    {DType::kBF16, 96, 40, 5, 3, 21},       // odd
    {DType::kI8, 1664, 640, 3, 2, 90},      // many rows of an expert, short last segments
    {DType::kI8, 128, 128, 3, 2, 1100},     // more rows than scratch memory takes at a time
};

TEST_F(CudaMoe, EqualsTheReferenceAndARowHasTheSameBitsAlone) {
  for (const MoeShape& s : kMoes) {
    SCOPED_TRACE(std::to_string(s.dim) + " x " + std::to_string(s.width));
    Random random(static_cast<uint32_t>(s.dim + s.n));
    std::vector<TestExpert> experts;
    experts.reserve(static_cast<size_t>(s.experts) + 1);
    std::vector<ExpertWeights> views, device_views;
    for (int e = 0; e <= s.experts; ++e) {
      const DType dtype = e < s.experts || s.routed == DType::kBF16 ? s.routed : DType::kF8E4M3;
      experts.emplace_back(random, dtype, s.dim, s.width);
      const TestExpert& x = experts.back();
      views.push_back(x.view());
      device_views.push_back({Put(x.w1), Put(x.w2), Put(x.w3)});
    }
    const ExpertWeights shared = views.back(), device_shared = device_views.back();
    views.pop_back();
    device_views.pop_back();
    const auto rows = static_cast<size_t>(s.n), chosen = static_cast<size_t>(s.chosen);
    const std::vector<float> x = random.Bf16s(rows * static_cast<size_t>(s.dim));
    std::vector<int32_t> ids;
    for (int i = 0; i < s.n; ++i) {
      const int first = random.Below(s.experts);
      for (int k = 0; k < s.chosen; ++k) ids.push_back((first + k) % s.experts);
    }
    const std::vector<float> weights = random.Floats(rows * chosen, 0.1, 1.0);
    std::vector<float> want(x.size());
    ASSERT_STATUS_OK(reference().Moe({.x = {x.data(), s.n, s.dim},
                                      .experts = {ids.data(), s.n, s.chosen},
                                      .weights = {weights.data(), s.n, s.chosen},
                                      .routed = views,
                                      .shared = shared,
                                      .swiglu_limit = 10.0f,
                                      .out = {want.data(), s.n, s.dim}}));
    MoeArgs args = {.x = {Put(x), s.n, s.dim},
                    .experts = {Put(ids), s.n, s.chosen},
                    .weights = {Put(weights), s.n, s.chosen},
                    .routed = device_views,
                    .shared = device_shared,
                    .swiglu_limit = 10.0f,
                    .out = {Poisoned<float>(want.size()), s.n, s.dim}};
    ASSERT_STATUS_OK(cuda().Moe(args));
    ASSERT_STATUS_OK(cuda().Synchronize());
    const std::vector<float> got = Get(args.out.data(), want.size());
    ExpectRelativeL2(got, want, 5e-3);
    const int64_t last = s.n - 1;
    args.x = args.x.Slice(last, 1);
    args.experts = args.experts.Slice(last, 1);
    args.weights = args.weights.Slice(last, 1);
    args.out = {Poisoned<float>(static_cast<size_t>(s.dim)), 1, s.dim};
    ASSERT_STATUS_OK(cuda().Moe(args));
    EXPECT_TRUE(std::ranges::equal(Get(args.out.data(), static_cast<size_t>(s.dim)),
                                   std::span(got).last(static_cast<size_t>(s.dim))));
  }
}

TEST_F(CudaMoe, AnIdThatIsNoExpertIsToldAndTheNextStepIsFine) {
  Random random(4);
  std::vector<TestExpert> experts;
  for (int e = 0; e < 3; ++e) experts.emplace_back(random, DType::kI8, 128, 128);
  std::vector<ExpertWeights> views;
  for (const TestExpert& e : experts) views.push_back({Put(e.w1), Put(e.w2), Put(e.w3)});
  const std::vector<float> x = random.Bf16s(3 * 128), weights = random.Floats(6);
  MoeArgs args = {.x = {Put(x), 3, 128},
                  .experts = {},
                  .weights = {Put(weights), 3, 2},
                  .routed = std::span(views).first(2),
                  .shared = views[2],
                  .swiglu_limit = 10.0f,
                  .out = {Poisoned<float>(x.size()), 3, 128}};
  for (const int32_t bad : {2, -1, INT32_MAX, INT32_MIN}) {
    args.experts = {Put(std::vector<int32_t>{0, 1, 1, bad, 0, 1}), 3, 2};
    ASSERT_STATUS_OK(cuda().Moe(args));
    const Status status = cuda().Synchronize();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), testing::HasSubstr("row 1 names expert " + std::to_string(bad)));
  }
  args.experts = {Put(std::vector<int32_t>{0, 1, 1, 0, 0, 1}), 3, 2};
  ASSERT_STATUS_OK(cuda().Moe(args));
  ASSERT_STATUS_OK(cuda().Synchronize());
}

}  // namespace
}  // namespace fathom
