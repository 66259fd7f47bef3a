#include "backend/ops/route.h"

#include <numeric>

#include "backend/ops/test_backends.h"
#include "backend/ops/test_values.h"

namespace fathom {
namespace {

using namespace testing_values;  // NOLINT(google-build-using-namespace)

double SqrtSoftplus(double g) {
  return std::sqrt(std::max(g, 0.0) + std::log1p(std::exp(-std::fabs(g))));
}

// One call. By default the gate is the identity: the logits of a token are its input.
struct Call {
  Call(int n, int num_experts, int k)
      : x(static_cast<size_t>(n * num_experts)),
        gate(DType::kBF16, num_experts, num_experts),
        bias(static_cast<size_t>(num_experts)),
        experts(static_cast<size_t>(n * k), -7),
        weights(static_cast<size_t>(n * k), -7.0f) {
    for (int e = 0; e < num_experts; ++e) gate.Set(e, e, 1.0);
    args = {.x = {x.data(), n, num_experts},
            .gate = gate.view(),
            .bias = {bias.data(), num_experts},
            .hash_table = {},
            .token_ids = {},
            .experts = {experts.data(), n, k},
            .weights = {weights.data(), n, k}};
  }
  // Token i's choice comes from row token_ids[i] of the table.
  void UseHashTable(std::vector<int64_t> table, std::vector<TokenId> ids) {
    hash_table = std::move(table);
    token_ids = std::move(ids);
    const int64_t k = args.experts.dim(1);
    args.hash_table = {hash_table.data(), static_cast<int64_t>(hash_table.size()) / k, k};
    args.token_ids = token_ids;
    args.bias = {};
  }
  std::vector<float> x;
  TestWeight gate;
  std::vector<float> bias;
  std::vector<int64_t> hash_table;
  std::vector<TokenId> token_ids;
  std::vector<int32_t> experts;
  std::vector<float> weights;
  RouteArgs args;
};

class Route : public OpTest {};
FATHOM_ON_ALL_BACKENDS(Route);

TEST_P(Route, BestExpertsFirstWithNormalisedScaledWeights) {
  Call call(1, 5, 3);
  call.x = {-1, 2, 0.5f, 3, 1};
  call.args.scale = 2.5f;
  ASSERT_STATUS_OK(backend().Route(call.args));
  EXPECT_THAT(call.experts, testing::ElementsAre(3, 1, 4));
  const double p3 = SqrtSoftplus(3), p1 = SqrtSoftplus(2), p4 = SqrtSoftplus(1), sum = p3 + p1 + p4;
  ExpectValues(false, call.weights, {2.5 * p3 / sum, 2.5 * p1 / sum, 2.5 * p4 / sum}, 1e-6);
}

TEST_P(Route, BiasChoosesButNeverEntersTheWeight) {
  Call call(1, 4, 2);
  call.x = {3, 2, 1, -2};
  call.bias = {0, 0, 0, 10};
  ASSERT_STATUS_OK(backend().Route(call.args));
  EXPECT_THAT(call.experts, testing::ElementsAre(3, 0));
  const double a = SqrtSoftplus(-2), b = SqrtSoftplus(3);
  ExpectValues(false, call.weights, {a / (a + b), b / (a + b)}, 1e-6);
}

TEST_P(Route, EqualScoresGoToTheSmallerExpert) {
  Call call(2, 8, 3);
  std::fill(call.x.begin(), call.x.end(), 1.0f);
  call.x[8 + 6] = 2.0f;  // second token: one better expert
  ASSERT_STATUS_OK(backend().Route(call.args));
  EXPECT_THAT(call.experts, testing::ElementsAre(0, 1, 2, 6, 0, 1));
}

// e^200 is no float; e^-100 vanishes beside 1.
TEST_P(Route, SoftplusOfLargeLogits) {
  Call call(2, 4, 2);
  call.x = {200, 50, 20, 0, -100, -100, -120, -120};
  ASSERT_STATUS_OK(backend().Route(call.args));
  EXPECT_THAT(call.experts, testing::ElementsAre(0, 1, 0, 1));
  const double a = std::sqrt(200.0), b = std::sqrt(50.0);
  ExpectValues(false, call.weights, {a / (a + b), b / (a + b), 0.5, 0.5}, 1e-6);
}

TEST_P(Route, LogitsAreNotRoundedToBf16) {
  Call call(1, 2, 1);
  call.x = {1.0f, 1.0f};
  call.gate.Set(1, 0, 0x1p-12);  // 1 + 2^-12: bf16 would make it a tie
  ASSERT_STATUS_OK(backend().Route(call.args));
  EXPECT_EQ(call.experts[0], 1);
}

TEST_P(Route, SigmoidScores) {
  Call call(1, 3, 2);
  call.x = {0, -1, 2};
  call.args.scoring = RouteScoring::kSigmoid;
  ASSERT_STATUS_OK(backend().Route(call.args));
  EXPECT_THAT(call.experts, testing::ElementsAre(2, 0));
  const double a = Sigmoid(2), b = 0.5;
  ExpectValues(false, call.weights, {a / (a + b), b / (a + b)}, 1e-6);
}

TEST_P(Route, SoftmaxScoresAreNotNormalisedAgain) {
  Call call(1, 3, 2);
  call.x = {0, 1, 2};
  call.args.scoring = RouteScoring::kSoftmax;
  call.args.scale = 3.0f;
  ASSERT_STATUS_OK(backend().Route(call.args));
  EXPECT_THAT(call.experts, testing::ElementsAre(2, 1));
  const double sum = 1 + std::exp(1.0) + std::exp(2.0);
  ExpectValues(false, call.weights, {3 * std::exp(2.0) / sum, 3 * std::exp(1.0) / sum}, 1e-6);
}

TEST_P(Route, HashLayersTakeTheTablesExpertsAndTheGatesWeights) {
  Call call(2, 4, 2);
  call.x = {3, 2, 1, -2, 0, 1, 2, 3};
  call.args.scale = 1.5f;
  call.UseHashTable({9, 9, 3, 0, 1, 2}, {2, 1});  // token 0's row is damaged but nobody asks
  ASSERT_STATUS_OK(backend().Route(call.args));
  EXPECT_THAT(call.experts, testing::ElementsAre(1, 2, 3, 0));
  const double a = SqrtSoftplus(2), b = SqrtSoftplus(1), c = SqrtSoftplus(3), d = SqrtSoftplus(0);
  ExpectValues(false, call.weights,
               {1.5 * a / (a + b), 1.5 * b / (a + b), 1.5 * c / (c + d), 1.5 * d / (c + d)}, 1e-6);
}

TEST_P(Route, TableEntryThatIsNoExpertIsDataLoss) {
  for (const int64_t bad : {int64_t{4}, int64_t{-1}, (int64_t{1} << 32) + 1, INT64_MIN}) {
    Call call(1, 4, 2);
    call.UseHashTable({0, 1, 2, bad}, {1});
    const Status status = backend().Route(call.args);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << bad;
    EXPECT_THAT(status.message(), testing::HasSubstr("token 1"));
    EXPECT_THAT(status.message(), testing::HasSubstr(std::to_string(bad)));
    call.token_ids[0] = 0;
    EXPECT_TRUE(backend().Route(call.args).ok());
  }
}

TEST_P(Route, EqualsTheFormulasInDoubleAndARowHasTheSameBitsAlone) {
  constexpr int kN = 7, kExperts = 16, kInputs = 64, kK = 6;
  Random random(3);
  const TestWeight gate = TestWeight::Random(random, DType::kBF16, kExperts, kInputs);
  const std::vector<float> x = random.Bf16s(kN * kInputs);
  const std::vector<float> bias = random.Floats(kExperts, -0.5, 0.5);
  std::vector<int32_t> experts(kN * kK), one_experts(kK);
  std::vector<float> weights(kN * kK), one_weights(kK);
  RouteArgs args = {.x = {x.data(), kN, kInputs},
                    .gate = gate.view(),
                    .bias = {bias.data(), kExperts},
                    .hash_table = {},
                    .token_ids = {},
                    .scale = 1.5f,
                    .experts = {experts.data(), kN, kK},
                    .weights = {weights.data(), kN, kK}};
  ASSERT_STATUS_OK(backend().Route(args));
  for (size_t i = 0; i < kN; ++i) {
    Doubles p = gate.Times(ToDoubles(std::span(x).subspan(i * kInputs, kInputs)));
    for (double& v : p) v = SqrtSoftplus(v);
    std::vector<int32_t> order(kExperts);
    std::iota(order.begin(), order.end(), 0);
    const auto biased = [&](int32_t e) {
      return p[static_cast<size_t>(e)] + static_cast<double>(bias[static_cast<size_t>(e)]);
    };
    std::sort(order.begin(), order.end(),
              [&](int32_t a, int32_t b) { return biased(a) > biased(b); });
    ASSERT_GT(biased(order[kK - 1]) - biased(order[kK]), 1e-5) << "near tie: choose another seed";
    order.resize(kK);
    double sum = 0.0;
    for (int32_t e : order) sum += p[static_cast<size_t>(e)];
    Doubles want;
    for (int32_t e : order) want.push_back(1.5 * p[static_cast<size_t>(e)] / sum);
    EXPECT_THAT(args.experts.row(static_cast<int64_t>(i)), testing::ElementsAreArray(order));
    ExpectValues(false, args.weights.row(static_cast<int64_t>(i)), want, 1e-5);

    RouteArgs one = args;
    one.x = args.x.Slice(static_cast<int64_t>(i), 1);
    one.experts = {one_experts.data(), 1, kK};
    one.weights = {one_weights.data(), 1, kK};
    ASSERT_STATUS_OK(backend().Route(one));
    EXPECT_TRUE(std::ranges::equal(one_experts, args.experts.row(static_cast<int64_t>(i))));
    EXPECT_TRUE(std::ranges::equal(one_weights, args.weights.row(static_cast<int64_t>(i))));
  }
}

TEST_P(Route, ChecksItsArguments) {
  Call call(2, 4, 2);
  const RouteArgs good = call.args;
  ASSERT_STATUS_OK(Check(good));
  const auto expect = [&](const std::string& operand, auto&& spoil) {
    RouteArgs bad = call.args;
    spoil(bad);
    ExpectRejected(backend().Route(bad), operand);
  };
  float* m = call.x.data();
  std::vector<int32_t> many(200);
  expect("gate", [&](RouteArgs& a) { a.x = {m, 2, 3}; });
  expect("gate", [&](RouteArgs& a) { a.gate.data = nullptr; });
  expect("x", [&](RouteArgs& a) { a.x = {m, 2, 4, 2}; });
  expect("bias", [&](RouteArgs& a) { a.bias = {m, 3}; });
  expect("bias", [&](RouteArgs& a) { a.bias = {}; });
  expect("experts", [&](RouteArgs& a) { a.experts = a.experts.First(1); });
  expect("weights", [&](RouteArgs& a) { a.weights = {m, 2, 3}; });
  expect("experts per token", [&](RouteArgs& a) {
    a.experts = {many.data(), 2, 5};
    a.weights = {m, 2, 5};
  });
  call.UseHashTable({0, 1, 2, 3}, {0, 1});
  ASSERT_STATUS_OK(Check(call.args));
  expect("hash_table", [&](RouteArgs& a) { a.hash_table = {call.hash_table.data(), 4, 1}; });
  expect("token ids", [&](RouteArgs& a) { a.token_ids = a.token_ids.first(1); });
  for (TokenId bad_id : {-1, 2}) {
    call.token_ids[1] = bad_id;
    ExpectRejected(backend().Route(call.args), "token id");
  }
}

}  // namespace
}  // namespace fathom
