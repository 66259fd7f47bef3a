// The side lane: the main lane's bits, rows of scratch memory of its own, and what it refuses.
#include "backend/cuda/lanes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "backend/cuda/test_support.h"
#ifdef FATHOM_CUDA_EMULATED
#include "backend/cuda/emulation/streams.h"
#endif

namespace fathom {
namespace {

using namespace testing_values;  // NOLINT(google-build-using-namespace)

// Calls `run` in every order that an emulated device may do streams' works in, or once.
void InEveryOrder(const std::function<void()>& run) {
#ifdef FATHOM_CUDA_EMULATED
  using emulation::Order;
  for (const Order order : {Order::kLate, Order::kOthersFirst, Order::kAtOnce}) {
    SCOPED_TRACE(static_cast<int>(order));
    emulation::SetOrder(order);
    run();
  }
  for (uint64_t seed = 0; seed < 4; ++seed) {
    SCOPED_TRACE(seed);
    emulation::SetOrder(Order::kShuffled, seed);
    run();
  }
  emulation::ResetOrder();
#else
  run();
#endif
}

// Room for sixteen rows, eight of which are the side lane's.
class CudaLanesTest : public CudaTest {
 protected:
  static constexpr int kRows = 20, kCols = 256, kOutputs = 48;
  struct Product {
    WeightView weight;
    const float* x = nullptr;
    float* out = nullptr;
    std::vector<float> want;

    [[nodiscard]] LinearArgs args() const {
      return {.x = {x, kRows, kCols}, .first = {weight, {out, kRows, kOutputs}}, .second = {}};
    }
  };

  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    backend_ = CudaBackend::Create(Numerics::kOfficial, {.scratch_rows = 16}).value();
    // Rows of scratch memory that are no wider than those of the products.
    BackendLimits limits = kLimits;
    limits.max_rows = 64;
    limits.max_cols = kCols;
    limits.max_heads = 1;
    limits.max_head_dim = 512;
    ASSERT_STATUS_OK(backend_->Prepare(limits));
    ASSERT_EQ(backend_->side_lane_rows(), 8);
    Random random(11);
    for (int i = 0; i < 4; ++i) {
      const TestWeight w = TestWeight::Random(random, DType::kF8E4M3, kOutputs, kCols);
      Product p;
      p.weight = Put(w);
      if (i % 2 == 1) {
        // At an address that the tile kernels do not take: the other way, with other scratch
        // memory.
        std::vector<uint8_t> shifted(1);
        shifted.insert(shifted.end(), w.data().begin(), w.data().end());
        p.weight.data = Put(shifted) + 1;
      }
      p.x = Put(random.Bf16s(kRows * kCols));
      p.out = Poisoned<float>(kRows * kOutputs);
      products_.push_back(std::move(p));
    }
    for (Product& p : products_) {
      ASSERT_STATUS_OK(backend_->Linear(p.args()));
      ASSERT_STATUS_OK(backend_->Synchronize());
      p.want = Get(static_cast<const float*>(p.out), kRows * kOutputs);
    }
  }

  // Two products in each lane, of more rows than a lane has at once.
  void CallInBothLanes() {
    ASSERT_STATUS_OK(backend_->Signal(0));
    ASSERT_STATUS_OK(backend_->Linear(products_[0].args()));
    ASSERT_STATUS_OK(backend_->UseLane(Lane::kSide));
    ASSERT_STATUS_OK(backend_->Await(0));
    ASSERT_STATUS_OK(backend_->Linear(products_[2].args()));
    ASSERT_STATUS_OK(backend_->Linear(products_[3].args()));
    ASSERT_STATUS_OK(backend_->Signal(7));
    ASSERT_STATUS_OK(backend_->UseLane(Lane::kMain));
    ASSERT_STATUS_OK(backend_->Linear(products_[1].args()));
  }
  void ExpectTheSameBits() {
    for (Product& p : products_) {
      EXPECT_EQ(Get(static_cast<const float*>(p.out), kRows * kOutputs), p.want);
      p.out = Poisoned<float>(kRows * kOutputs);
    }
  }

  std::unique_ptr<CudaBackend> backend_;
  std::vector<Product> products_;
};

TEST_F(CudaLanesTest, BothLanesGiveTheSameBitsBesideEachOther) {
  for (Product& p : products_) p.out = Poisoned<float>(kRows * kOutputs);
  InEveryOrder([&] {
    CallInBothLanes();
    ASSERT_STATUS_OK(backend_->Await(7));
    // All rows are the main lane's again, behind the side lane.
    ASSERT_STATUS_OK(backend_->Linear(products_[0].args()));
    ASSERT_STATUS_OK(backend_->Synchronize());
    ExpectTheSameBits();
  });
}

TEST_F(CudaLanesTest, SynchronizeWaitsForASideLaneThatNobodyAwaited) {
  for (Product& p : products_) p.out = Poisoned<float>(kRows * kOutputs);
  InEveryOrder([&] {
    CallInBothLanes();
    ASSERT_STATUS_OK(backend_->Synchronize());
    ExpectTheSameBits();
    ExpectRejected(backend_->Await(7), "event 7");
  });
}

TEST_F(CudaLanesTest, RecordingsHaveBothLanes) {
  for (Product& p : products_) p.out = Poisoned<float>(kRows * kOutputs);
  TestPages pages({{0, 2}}, 8);
  ASSERT_STATUS_OK(backend_->BeginStep(pages.plan()));
  ASSERT_STATUS_OK(backend_->BeginRecording());
  CallInBothLanes();
  ASSERT_STATUS_OK(backend_->Await(7));
  const Result<int> recording = backend_->EndRecording();
  ASSERT_STATUS_OK(recording.status());
  const std::vector<float> before = Get(static_cast<const float*>(products_[2].out), 1);
  EXPECT_TRUE(std::isnan(before[0]));
  std::vector<float*> outputs;
  for (const Product& p : products_) outputs.push_back(p.out);
  InEveryOrder([&] {
    ASSERT_STATUS_OK(backend_->Replay(recording.value()));
    ASSERT_STATUS_OK(backend_->Synchronize());
    for (size_t i = 0; i < products_.size(); ++i) {
      EXPECT_EQ(Get(static_cast<const float*>(outputs[i]), kRows * kOutputs), products_[i].want);
    }
  });
}

TEST_F(CudaLanesTest, ARecordingThatEndsWithoutTheSideLaneIsRefused) {
  TestPages pages({{0, 2}}, 8);
  ASSERT_STATUS_OK(backend_->BeginStep(pages.plan()));
  // What the side lane awaited before is not of the recording.
  CallInBothLanes();
  ASSERT_STATUS_OK(backend_->BeginRecording());
  ASSERT_STATUS_OK(backend_->UseLane(Lane::kSide));
  ExpectRejected(backend_->Linear(products_[0].args()), "awaited");
  ASSERT_STATUS_OK(backend_->UseLane(Lane::kMain));
  CallInBothLanes();
  EXPECT_FALSE(backend_->EndRecording().ok());
  // And that was all.
  for (Product& p : products_) p.out = Poisoned<float>(kRows * kOutputs);
  CallInBothLanes();
  ASSERT_STATUS_OK(backend_->Synchronize());
  ExpectTheSameBits();
}

TEST_F(CudaLanesTest, WhatTheSideLaneDoesNotDoIsRefused) {
  TestPages pages({{0, 2}}, 8);
  float* m = Poisoned<float>(4096);
  ExpectRejected(backend_->Signal(8), "event 8 of 8");
  ExpectRejected(backend_->Await(-1), "event -1 of 8");
  ExpectRejected(backend_->Await(0), "event 0");
  ASSERT_STATUS_OK(backend_->Signal(0));
  ExpectRejected(backend_->Await(0), "other lane");
  ASSERT_STATUS_OK(backend_->UseLane(Lane::kSide));
  ExpectRejected(backend_->Linear(products_[0].args()), "before it awaited");
  ExpectRejected(backend_->Signal(1), "before it awaited");
  ASSERT_STATUS_OK(backend_->Await(0));
  ExpectRejected(backend_->Await(0), "event 0");
  ExpectRejected(backend_->HcPost({{m, 1, 4}, {m, 1, 1}, {m, 1, 1, 1}, {m, 1, 1, 4}}), "side lane");
  ExpectRejected(backend_->BeginStep(pages.plan()), "side lane");
  ExpectRejected(backend_->Prepare(kLimits), "side lane");
  ExpectRejected(backend_->BeginRecording(), "side lane");
  ExpectRejected(backend_->Replay(0), "side lane");
  // A plan that was not begun.
  const PageView keys = pages.Add(CacheKind::kC4IndexKeys, {EntryEncoding::kE2m1, 32, 0, 4});
  int32_t* ids = Poisoned<int32_t>(64);
  const IndexerTopkArgs index = {.q = {m, 2, 1, 32},
                                 .head_weights = {m, 2, 1},
                                 .cos_sin = {m, 2, 4, 2},
                                 .plan = &pages.plan(),
                                 .keys = PutPages(keys, 8),
                                 .topk = 2,
                                 .entries = {ids, 2, 2},
                                 .num_entries = {ids, 2}};
  ExpectRejected(backend_->IndexerTopk(index), "the side lane's are not the begun plan's");
  ASSERT_STATUS_OK(backend_->UseLane(Lane::kMain));
  ASSERT_STATUS_OK(backend_->BeginStep(pages.plan()));
}

TEST_F(CudaLanesTest, ThereIsNoneWithoutRowsForIt) {
  const auto backend = CudaBackend::Create(Numerics::kOfficial, {.scratch_rows = 1}).value();
  EXPECT_EQ(backend->side_lane_rows(), 0);
  ASSERT_STATUS_OK(backend->Prepare(kLimits));
  EXPECT_EQ(backend->side_lane_rows(), 0);
  ExpectRejected(backend->UseLane(Lane::kSide), "no rows");
  EXPECT_EQ(cuda().side_lane_rows(), cuda::kSideLaneRows);
}

}  // namespace
}  // namespace fathom
