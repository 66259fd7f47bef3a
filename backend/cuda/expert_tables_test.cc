// Experts that the backend was told of.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/cuda/test_experts.h"
#include "backend/cuda/test_support.h"

namespace fathom {
namespace {

using namespace testing_values;  // NOLINT(google-build-using-namespace)

constexpr int kDim = 128;
constexpr int kWidth = 128;
constexpr int kExperts = 4;
constexpr int kChosen = 2;
constexpr int kLayers = 2;

struct Layer {
  std::vector<ExpertWeights> routed;
  ExpertWeights shared;
};

class ExpertTables : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    // Room for a table of two operations' experts and not for a third.
    backend_ =
        CudaBackend::Create(Numerics::kOfficial, {.operand_bytes = 2048, .scratch_rows = 100})
            .value();
    ASSERT_STATUS_OK(backend_->Prepare(Limits()));
  }

  static BackendLimits Limits() {
    return {.max_rows = 300,
            .max_cols = 512,
            .max_experts = kExperts + 2,  // tables are not full
            .max_experts_per_token = kChosen,
            .max_expert_width = kWidth,
            .num_expert_layers = kLayers,
            .max_heads = 1,
            .max_head_dim = 64,
            .max_positions = 64};
  }
  CudaBackend& backend() { return *backend_; }

  Layer MakeLayer(Random& random) {
    Layer layer;
    for (int e = 0; e <= kExperts; ++e) {
      const DType dtype = e < kExperts ? DType::kI8 : DType::kF8E4M3;
      const TestExpert expert(random, dtype, kDim, kWidth);
      layer.routed.push_back({Put(expert.w1), Put(expert.w2), Put(expert.w3)});
    }
    layer.shared = layer.routed.back();
    layer.routed.pop_back();
    return layer;
  }

  // Inputs of a step of n rows; all of them have the same for one n.
  MoeArgs Args(int n, const Layer& layer) {
    Random random(static_cast<uint32_t>(n));
    std::vector<int32_t> ids;
    for (int i = 0; i < n; ++i) {
      const int first = random.Below(kExperts);
      for (int k = 0; k < kChosen; ++k) ids.push_back((first + k) % kExperts);
    }
    const auto rows = static_cast<size_t>(n);
    return {.x = {Put(random.Bf16s(rows * kDim)), n, kDim},
            .experts = {Put(ids), n, kChosen},
            .weights = {Put(random.Floats(rows * kChosen, 0.1, 1.0)), n, kChosen},
            .routed = layer.routed,
            .shared = layer.shared,
            .swiglu_limit = 10.0f,
            .out = {Poisoned<float>(rows * kDim), n, kDim}};
  }
  std::vector<float> Run(const MoeArgs& args) {
    const Status status = backend_->Moe(args);
    EXPECT_TRUE(status.ok()) << status.ToString();
    const Status done = backend_->Synchronize();
    EXPECT_TRUE(done.ok()) << done.ToString();
    std::vector<float> out =
        Get(static_cast<const float*>(args.out.data()), static_cast<size_t>(args.out.size()));
    for (const float v : out) EXPECT_TRUE(std::isfinite(v));
    return out;
  }

 private:
  std::unique_ptr<CudaBackend> backend_;
};

TEST_F(ExpertTables, ExpertsToldOfGiveTheSameBitsAsOthers) {
  Random random(1);
  const Layer layers[] = {MakeLayer(random), MakeLayer(random)};
  std::vector<std::vector<float>> want;
  for (const Layer& layer : layers) {
    for (const int n : {1, 70, 250}) want.push_back(Run(Args(n, layer)));
  }
  for (const Layer& layer : layers) {
    ASSERT_STATUS_OK(backend().AddExperts(layer.routed, layer.shared));
  }
  size_t at = 0;
  for (const Layer& layer : layers) {
    for (const int n : {1, 70, 250}) EXPECT_EQ(Run(Args(n, layer)), want[at++]);
  }
  // Neither other routed experts nor another shared one are taken for those told of.
  const Layer copy = layers[1];
  EXPECT_EQ(Run(Args(70, copy)), want[4]);
  MoeArgs mixed = Args(70, layers[1]);
  mixed.shared = layers[0].shared;
  const std::vector<float> other = Run(mixed);
  EXPECT_NE(other, want[4]);
  mixed.routed = copy.routed;
  EXPECT_EQ(Run(mixed), other);
  // After another Prepare nobody was told of.
  ASSERT_STATUS_OK(backend().Prepare(Limits()));
  EXPECT_EQ(Run(Args(70, layers[1])), want[4]);
  ASSERT_STATUS_OK(backend().AddExperts(layers[1].routed, layers[1].shared));
  EXPECT_EQ(Run(Args(70, layers[1])), want[4]);
}

// With operands of so few bytes that any table sent would have to wait or be refused.
TEST_F(ExpertTables, OperationsOnThemSendNothing) {
  Random random(2);
  const Layer layer = MakeLayer(random);
  const std::vector<float> want = Run(Args(9, layer));
  const auto tight = CudaBackend::Create(Numerics::kOfficial, {.operand_bytes = 512}).value();
  ASSERT_STATUS_OK(tight->Prepare(Limits()));
  const MoeArgs args = Args(9, layer);
  ExpectRejected(tight->Moe(args), "host operands");
  ASSERT_STATUS_OK(tight->AddExperts(layer.routed, layer.shared));
  ASSERT_STATUS_OK(tight->Moe(args));
  ASSERT_STATUS_OK(tight->Synchronize());
  EXPECT_EQ(Get(static_cast<const float*>(args.out.data()), want.size()), want);
}

TEST_F(ExpertTables, WhatHasNoRoomOrNoKernelIsRefused) {
  Random random(3);
  const Layer layer = MakeLayer(random);
  ExpectRejected(
      CudaBackend::Create(Numerics::kOfficial).value()->AddExperts(layer.routed, layer.shared),
      "Prepare");
  std::vector<ExpertWeights> many(kExperts + 3, layer.shared);
  ExpectRejected(backend().AddExperts(many, layer.shared), "experts: of a layer: 7");
  Layer wide = layer;
  wide.routed[2].w1.rows = wide.routed[2].w3.rows = kWidth + 1;
  ExpectRejected(backend().AddExperts(wide.routed, wide.shared), "width");
  Layer mixed = layer;
  mixed.routed[1].w3.dtype = DType::kBF16;
  ExpectRejected(backend().AddExperts(mixed.routed, mixed.shared), "same input format");
  for (int i = 0; i < kLayers; ++i) {
    ASSERT_STATUS_OK(backend().AddExperts(layer.routed, layer.shared));
  }
  ExpectRejected(backend().AddExperts(layer.routed, layer.shared), "experts: layers: 3");
}

}  // namespace
}  // namespace fathom
