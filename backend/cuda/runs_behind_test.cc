// Tokens that steps take where earlier ones left them, and results that come to the host while the
// device goes on.
#include "backend/runs_behind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <numeric>

#include "backend/cuda/test_support.h"

namespace fathom {
namespace {

using namespace testing_values;  // NOLINT(google-build-using-namespace)

class CudaRunsBehind : public CudaTest {
 protected:
  static constexpr int kVocab = 50, kDim = 64;

  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    // Row t of the embedding is t, t, t ...
    std::vector<uint16_t> rows;
    for (int t = 0; t < kVocab; ++t) {
      const auto bits = std::bit_cast<uint32_t>(static_cast<float>(t));
      rows.insert(rows.end(), kDim, static_cast<uint16_t>(bits >> 16));  // exact in bf16
    }
    embedding_ = {DType::kBF16, Put(rows), nullptr, kVocab, kDim};
  }
  // The ids that an operation on the begun plan sees.
  std::vector<int> IdsSeen(const StepPlan& plan) {
    const size_t n = plan.token_ids.size();
    float* out = Poisoned<float>(n * kDim);
    const Status status =
        cuda().EmbedExpand({plan.token_ids, embedding_, {out, static_cast<int64_t>(n), 1, kDim}});
    EXPECT_TRUE(status.ok()) << status.ToString();
    const std::vector<float> values = Get(out, n * kDim);
    std::vector<int> ids;
    for (size_t row = 0; row < n; ++row) ids.push_back(static_cast<int>(values[row * kDim]));
    return ids;
  }
  StepPlan PlanOf(const std::vector<TokenId>& ids) {
    positions_.resize(ids.size());
    std::iota(positions_.begin(), positions_.end(), 0);
    sequence_ = {0, static_cast<int>(ids.size()), 0};
    StepPlan plan;
    plan.token_ids = ids;
    plan.positions = positions_;
    plan.sequences = {&sequence_, 1};
    return plan;
  }

 private:
  WeightView embedding_;
  std::vector<Position> positions_;
  SequenceRows sequence_;
};

TEST_F(CudaRunsBehind, OperationsSeeTheTokensThatWerePlaced) {
  const TensorView<const int32_t> sampled(Put(std::vector<int32_t>{41, 42, 43}), 3);
  const std::vector<TokenId> ids = {1, 2, 3, 4, 5};
  const StepPlan plan = PlanOf(ids);
  ASSERT_STATUS_OK(cuda().BeginStep(plan));
  const TokenSource sources[] = {{0, 2}, {4, 0}, {3, 2}};
  ASSERT_STATUS_OK(cuda().PlaceTokens(sources, sampled));
  EXPECT_THAT(IdsSeen(plan), testing::ElementsAre(43, 2, 3, 43, 41));
  // Of that plan alone.
  ASSERT_STATUS_OK(cuda().BeginStep(plan));
  EXPECT_THAT(IdsSeen(plan), testing::ElementsAre(1, 2, 3, 4, 5));
}

TEST_F(CudaRunsBehind, MoreTokensThanABlockHasThreads) {
  constexpr int kRows = 1500;
  std::vector<int32_t> sampled(kRows);
  std::vector<TokenSource> sources;
  std::vector<int> want;
  for (int i = 0; i < kRows; ++i) {
    sampled[static_cast<size_t>(i)] = (i * 7) % kVocab;
    sources.push_back({i, kRows - 1 - i});
  }
  for (const TokenSource& s : sources) want.push_back(sampled[static_cast<size_t>(s.sampled)]);
  const std::vector<TokenId> ids(kRows, 0);
  const StepPlan plan = PlanOf(ids);
  ASSERT_STATUS_OK(cuda().BeginStep(plan));
  ASSERT_STATUS_OK(cuda().PlaceTokens(sources, {Put(sampled), kRows}));
  EXPECT_EQ(IdsSeen(plan), want);
}

TEST_F(CudaRunsBehind, TokensOutOfRangeAreRefused) {
  const TensorView<const int32_t> sampled(Put(std::vector<int32_t>{41, 42}), 2);
  const TokenSource fine[] = {{0, 0}};
  ExpectRejected(cuda().PlaceTokens(fine, sampled), "without a plan");
  const std::vector<TokenId> ids = {1, 2};
  const StepPlan plan = PlanOf(ids);
  ASSERT_STATUS_OK(cuda().BeginStep(plan));
  for (const TokenSource source : {TokenSource{2, 0}, {-1, 0}, {0, 2}, {0, -1}}) {
    ExpectRejected(cuda().PlaceTokens({&source, 1}, sampled), "for row");
  }
  ASSERT_STATUS_OK(cuda().PlaceTokens({}, {}));
  EXPECT_THAT(IdsSeen(plan), testing::ElementsAre(1, 2));
}

// What was there when it was begun, although it is written again before anybody waits.
TEST_F(CudaRunsBehind, ResultsAreThoseOfWhenTheyWereBegun) {
  constexpr size_t kCount = 64;
  int32_t* tokens = Poisoned<int32_t>(kCount);
  float* logprobs = Poisoned<float>(kCount);
  const auto fill = [&](int value) {
    const std::vector<int32_t> ids(kCount, value);
    const std::vector<float> values(kCount, static_cast<float>(-value));
    int32_t* new_ids = Put(ids);
    float* new_values = Put(values);
    ASSERT_STATUS_OK(cuda().memory().CopyWithin(reinterpret_cast<std::byte*>(tokens),
                                                reinterpret_cast<std::byte*>(new_ids),
                                                kCount * sizeof(int32_t)));
    ASSERT_STATUS_OK(cuda().memory().CopyWithin(reinterpret_cast<std::byte*>(logprobs),
                                                reinterpret_cast<std::byte*>(new_values),
                                                kCount * sizeof(float)));
  };
  const auto begin = [&](bool both) {
    return cuda().BeginReceive(
        std::as_bytes(std::span(tokens, kCount)),
        both ? std::as_bytes(std::span(logprobs, kCount)) : std::span<const std::byte>());
  };
  fill(1);
  const int first = begin(true).value();
  fill(2);
  const int second = begin(false).value();
  fill(3);
  ExpectRejected(begin(true).status(), "not received yet");
  const std::span<const std::byte> one = cuda().Receive(first).value();
  ASSERT_EQ(one.size(), kCount * 8);
  const auto* ids = reinterpret_cast<const int32_t*>(one.data());
  const auto* values = reinterpret_cast<const float*>(one.data() + kCount * sizeof(int32_t));
  for (size_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(ids[i], 1);
    EXPECT_EQ(values[i], -1.0f);
  }
  ExpectRejected(cuda().Receive(first).status(), "nothing that is under way");
  EXPECT_EQ(begin(true).value(), first);
  const std::span<const std::byte> two = cuda().Receive(second).value();
  ASSERT_EQ(two.size(), kCount * 4);
  EXPECT_EQ(reinterpret_cast<const int32_t*>(two.data())[kCount - 1], 2);
  EXPECT_EQ(reinterpret_cast<const int32_t*>(cuda().Receive(first).value().data())[0], 3);
  ExpectRejected(cuda().Receive(-1).status(), "under way");
  ExpectRejected(cuda().Receive(2).status(), "under way");
}

TEST_F(CudaRunsBehind, MoreResultsThanRowsHaveAreRefused) {
  std::byte* bytes = Poisoned<std::byte>(8 * 2048 + 4);
  ExpectRejected(cuda().BeginReceive({bytes, 8 * 2048 + 4}, {}).status(), "room for");
  EXPECT_TRUE(cuda().BeginReceive({bytes, 8 * 2048}, {}).ok());
}

// What the device found in work that was called before is told with the results.
TEST_F(CudaRunsBehind, FindingsComeWithTheResultsOfTheirStep) {
  Random random(4);
  constexpr int kDims = 128, kExperts = 2;
  const TestWeight gate = TestWeight::Random(random, DType::kBF16, kExperts, kDims);
  const std::vector<int64_t> wrong_table(size_t{kVocab}, 9);
  const std::vector<TokenId> ids = {1};
  RouteArgs route;
  route.x = {Put(random.Bf16s(kDims)), 1, kDims};
  route.gate = Put(gate);
  route.hash_table = {Put(wrong_table), kVocab, 1};
  route.token_ids = ids;
  route.scoring = RouteScoring::kSqrtSoftplus;
  route.scale = 1.0f;
  route.experts = {Poisoned<int32_t>(1), 1, 1};
  route.weights = {Poisoned<float>(1), 1, 1};
  std::byte* bytes = Poisoned<std::byte>(8);
  const int before = cuda().BeginReceive({bytes, 8}, {}).value();
  ASSERT_STATUS_OK(cuda().Route(route));
  const int behind = cuda().BeginReceive({bytes, 8}, {}).value();
  EXPECT_TRUE(cuda().Receive(before).ok());
  const Status status = cuda().Receive(behind).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), testing::HasSubstr("names expert 9 of 2"));
  // It is over with that.
  ASSERT_STATUS_OK(cuda().Synchronize());
}

}  // namespace
}  // namespace fathom
