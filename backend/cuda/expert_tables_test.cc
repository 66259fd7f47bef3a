// Experts that the backend was told of, and those of them that lie in memory of the host.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/cuda/scratch.h"
#include "backend/cuda/test_experts.h"
#include "backend/cuda/test_support.h"

namespace fathom {
namespace {

using namespace testing_values;  // NOLINT(google-build-using-namespace)

constexpr int kDim = 128;
constexpr int kWidth = 128;
constexpr int kExperts = 4;
constexpr int kChosen = 2;
constexpr int kLayers = 3;
constexpr int kStaged = 2;  // experts of a layer that have room beside it
// Three matrices with their scales, all multiples of the alignment.
constexpr int64_t kExpertBytes = 3 * kDim * kWidth / 2 * 17 / 16;
// From where on experts of the host are copied.
constexpr int kFewRows = 64, kManyRows = 65;
constexpr int kRoundsRows = 90;  // more than scratch memory takes at a time
static_assert(!cuda::StagesExperts(kFewRows, kChosen, kExperts));
static_assert(cuda::StagesExperts(kManyRows, kChosen, kExperts));

struct Layer {
  std::vector<ExpertWeights> routed;
  ExpertWeights shared;
};

class ExpertTables : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    // Little room for tables of experts that nobody was told of.
    backend_ = CudaBackend::Create(Numerics::kOfficial, {.operand_bytes = 2048, .scratch_rows = 70})
                   .value();
    ASSERT_STATUS_OK(backend_->Prepare(Limits()));
  }

  static BackendLimits Limits() {
    return {.max_rows = 100,
            .max_cols = 512,
            .max_experts = kExperts + 2,  // tables are not full
            .max_experts_per_token = kChosen,
            .max_expert_width = kWidth,
            .num_expert_layers = kLayers,
            .host_experts_per_layer = kStaged,
            .host_expert_bytes = kExpertBytes,
            .max_heads = 1,
            .max_head_dim = 64,
            .max_positions = 64};
  }
  CudaBackend& backend() { return *backend_; }

  // With these of the routed experts in memory of the host.
  Layer MakeLayer(Random& random, const std::vector<int>& on_host = {}) {
    Layer layer;
    pinned_.push_back(backend_->pinned_memory().Allocate(kExperts * kExpertBytes).value());
    std::byte* at = pinned_.back().data();
    const auto pin = [&](const TestWeight& weight) {
      WeightView view = weight.view();
      std::memcpy(at, view.data, weight.data().size());
      view.data = at;
      at += weight.data().size();
      std::memcpy(at, view.scale, weight.scale().size());
      view.scale = reinterpret_cast<const uint8_t*>(at);
      at += weight.scale().size();
      return view;
    };
    for (int e = 0; e <= kExperts; ++e) {
      const DType dtype = e < kExperts ? DType::kI8 : DType::kF8E4M3;
      const TestExpert expert(random, dtype, kDim, kWidth);
      if (std::ranges::find(on_host, e) == on_host.end()) {
        layer.routed.push_back({Put(expert.w1), Put(expert.w2), Put(expert.w3)});
      } else {
        // One behind the other, as arrays of a model are.
        const WeightView w1 = pin(expert.w1), w2 = pin(expert.w2), w3 = pin(expert.w3);
        layer.routed.push_back({w1, w2, w3});
      }
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

  void Tell(std::span<const Layer> layers) {
    for (const Layer& layer : layers) {
      ASSERT_STATUS_OK(backend_->AddExperts(layer.routed, layer.shared));
    }
  }
  // Makes other values of all experts in memory of the host, once the GPU has nothing to do.
  void Damage() {
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (const DeviceBuffer& buffer : pinned_) {
      for (int64_t i = 0; i < buffer.bytes(); ++i) {
        buffer.data()[i] ^= i % 16 == 0 ? std::byte{1} : std::byte{0};
      }
    }
  }

 private:
  std::unique_ptr<CudaBackend> backend_;
  std::vector<DeviceBuffer> pinned_;
};

TEST_F(ExpertTables, ExpertsToldOfGiveTheSameBitsAsOthers) {
  Random random(1);
  const Layer layers[] = {MakeLayer(random), MakeLayer(random, {1})};
  std::vector<std::vector<float>> want;
  for (const Layer& layer : layers) {
    for (const int n : {1, kManyRows, kRoundsRows}) want.push_back(Run(Args(n, layer)));
  }
  Tell(layers);
  size_t at = 0;
  for (const Layer& layer : layers) {
    for (const int n : {1, kManyRows, kRoundsRows}) EXPECT_EQ(Run(Args(n, layer)), want[at++]);
  }
  // Neither other routed experts nor another shared one are taken for those told of.
  const Layer copy = layers[1];
  EXPECT_EQ(Run(Args(kManyRows, copy)), want[4]);
  MoeArgs mixed = Args(kManyRows, layers[1]);
  mixed.shared = layers[0].shared;
  const std::vector<float> other = Run(mixed);
  EXPECT_NE(other, want[4]);
  mixed.routed = copy.routed;
  EXPECT_EQ(Run(mixed), other);
  // After another Prepare nobody was told of.
  ASSERT_STATUS_OK(backend().Prepare(Limits()));
  EXPECT_EQ(Run(Args(kManyRows, layers[1])), want[4]);
  ASSERT_STATUS_OK(backend().AddExperts(layers[1].routed, layers[1].shared));
  EXPECT_EQ(Run(Args(kManyRows, layers[1])), want[4]);
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
  ExpectRejected(backend().AddExperts(layer.routed, layer.shared), "experts: layers: 4");
}

// None, some, and more than have room of a layer's experts on the host; layers in turn, the same
// layer again, more rows than scratch memory takes at a time, and steps without a prefetch.
TEST_F(ExpertTables, StagedExpertsGiveTheBitsOfThoseInPlace) {
  Random random(4);
  const Layer layers[] = {MakeLayer(random, {0, 2}), MakeLayer(random, {1, 2, 3}),
                          MakeLayer(random)};
  std::vector<std::vector<float>> few, many;
  for (const Layer& layer : layers) {
    few.push_back(Run(Args(kManyRows, layer)));
    many.push_back(Run(Args(kRoundsRows, layer)));
  }
  Tell(layers);
  const auto prefetch = [&](int layer, int rows) {
    ASSERT_STATUS_OK(backend().PrefetchExperts(layers[layer].routed, rows, kChosen));
  };
  for (const size_t layer : {0u, 1u, 2u, 0u, 0u}) {
    prefetch(static_cast<int>(layer), kManyRows);
    EXPECT_EQ(Run(Args(kManyRows, layers[layer])), few[layer]);
  }
  EXPECT_EQ(Run(Args(kManyRows, layers[0])), few[0]);
  // All launched before any is done.
  std::vector<MoeArgs> launched;
  for (int i = 0; i < 6; ++i) {
    prefetch(i % 3, kRoundsRows);
    launched.push_back(Args(kRoundsRows, layers[i % 3]));
    ASSERT_STATUS_OK(backend().Moe(launched.back()));
  }
  ASSERT_STATUS_OK(backend().Synchronize());
  for (size_t i = 0; i < launched.size(); ++i) {
    EXPECT_EQ(Get(static_cast<const float*>(launched[i].out.data()), many[0].size()), many[i % 3]);
  }
  // Other experts than those announced, and then those.
  prefetch(0, kRoundsRows);
  ASSERT_STATUS_OK(backend().Moe(Args(kRoundsRows, layers[1])));
  EXPECT_EQ(Run(Args(kRoundsRows, layers[0])), many[0]);
  prefetch(1, kRoundsRows);
  prefetch(0, kRoundsRows);
  EXPECT_EQ(Run(Args(kRoundsRows, layers[1])), many[1]);
  // Experts nobody was told of, and copies that nothing takes.
  const Layer copy = layers[1];
  ASSERT_STATUS_OK(backend().PrefetchExperts(copy.routed, kRoundsRows, kChosen));
  EXPECT_EQ(Run(Args(kRoundsRows, copy)), many[1]);
  prefetch(1, kRoundsRows);
  ASSERT_STATUS_OK(backend().Prepare(Limits()));
  prefetch(1, kRoundsRows);
  EXPECT_EQ(Run(Args(kRoundsRows, layers[1])), many[1]);
  Tell(layers);
  prefetch(1, kRoundsRows);
}

// What an operation reads shows when the host's copy changes behind the prefetch.
TEST_F(ExpertTables, OnlyTheMoeBehindALongPrefetchReadsTheCopy) {
  Random random(5);
  const Layer layers[] = {MakeLayer(random, {0, 1})};
  Tell(layers);
  const Layer& layer = layers[0];
  const MoeArgs args = Args(kManyRows, layer);
  const std::vector<float> before = Run(args);
  Damage();
  const std::vector<float> after = Run(args);
  EXPECT_NE(after, before);
  Damage();
  EXPECT_EQ(Run(args), before);

  const auto run = [&](int rows, const auto& between) {
    const Status status = backend().PrefetchExperts(layer.routed, rows, kChosen);
    EXPECT_TRUE(status.ok()) << status.ToString();
    between();
    Damage();
    std::vector<float> out = Run(args);
    Damage();
    return out;
  };
  const auto nothing = [] {};
  EXPECT_EQ(run(kManyRows, nothing), before);
  // Short steps copy nothing, nor do they take what an earlier one copied.
  EXPECT_EQ(run(kFewRows, nothing), after);
  EXPECT_EQ(run(kManyRows,
                [&] {
                  const Status status = backend().PrefetchExperts(layer.routed, 1, kChosen);
                  EXPECT_TRUE(status.ok());
                }),
            after);
  // A copy is taken once.
  EXPECT_EQ(run(kManyRows, [&] { EXPECT_TRUE(backend().Moe(args).ok()); }), after);
}

// A recording holds no copy, nor waits for one that was begun before it.
TEST_F(ExpertTables, WhatIsRecordedReadsExpertsInPlace) {
  Random random(6);
  const Layer layers[] = {MakeLayer(random, {0, 3})};
  Tell(layers);
  const Layer& layer = layers[0];
  const MoeArgs args = Args(kManyRows, layer);
  const std::vector<float> before = Run(args);
  Damage();
  const std::vector<float> after = Run(args);
  Damage();
  const TestPages pages({{0, 1}}, 8);
  ASSERT_STATUS_OK(backend().BeginStep(pages.plan()));
  ASSERT_STATUS_OK(backend().PrefetchExperts(layer.routed, kManyRows, kChosen));
  ASSERT_STATUS_OK(backend().BeginRecording());
  ASSERT_STATUS_OK(backend().PrefetchExperts(layer.routed, kManyRows, kChosen));
  ASSERT_STATUS_OK(backend().Moe(args));
  const Result<int> recording = backend().EndRecording();
  ASSERT_TRUE(recording.ok()) << recording.status().ToString();
  for (const std::vector<float>* want : {&before, &after}) {
    ASSERT_STATUS_OK(backend().Replay(*recording));
    ASSERT_STATUS_OK(backend().Synchronize());
    EXPECT_EQ(Get(static_cast<const float*>(args.out.data()), before.size()), *want);
    Damage();
  }
}

// Needs no GPU.
TEST(ExpertScratch, RoomForExpertsOfTheHostIsThereForLongStepsOnly) {
  BackendLimits limits = {.max_rows = 1366,
                          .max_cols = 4096,
                          .max_experts = 256,
                          .max_experts_per_token = 6,
                          .max_expert_width = 2048,
                          .num_expert_layers = 43,
                          .max_heads = 64,
                          .max_head_dim = 512,
                          .max_positions = 65536};
  cuda::Scratch scratch;
  const auto bytes = [&] { return cuda::LayOutScratch(limits, {}, nullptr, scratch).bytes(); };
  const int64_t without = bytes();
  limits.host_experts_per_layer = 38;
  limits.host_expert_bytes = 13369344;
  const int64_t table = int64_t{43} * 257 * static_cast<int64_t>(sizeof(ExpertWeights));
  EXPECT_EQ(bytes() - without, 38 * limits.host_expert_bytes + (table + 255) / 256 * 256);
  limits.max_rows = 1365;
  const int64_t with = bytes();
  limits.host_experts_per_layer = 0;
  EXPECT_EQ(with, bytes());
}

}  // namespace
}  // namespace fathom
