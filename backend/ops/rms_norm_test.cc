#include "backend/ops/rms_norm.h"

#include "backend/ops/test_backends.h"
#include "backend/ops/test_values.h"

namespace fathom {
namespace {

using namespace testing_values;  // NOLINT(google-build-using-namespace)

class RmsNorm : public OpTest {
 protected:
  std::vector<float> Norm(std::vector<float> x, const std::vector<float>& weight, float eps) {
    const auto d = static_cast<int64_t>(weight.size());
    const auto n = static_cast<int64_t>(x.size()) / d;
    std::vector<float> out(x.size(), -99.0f);
    const Status status = backend().RmsNorm({.x = {x.data(), n, d},
                                             .weight = {weight.data(), d},
                                             .eps = eps,
                                             .out = {out.data(), n, d}});
    EXPECT_TRUE(status.ok()) << status.ToString();
    return out;
  }
};
FATHOM_ON_ALL_BACKENDS(RmsNorm);

TEST_P(RmsNorm, EpsIsInsideTheRoot) {
  EXPECT_THAT(Norm({1, 1}, {1, 1}, 3.0f), testing::ElementsAre(0.5f, 0.5f));
}

TEST_P(RmsNorm, WeightMultipliesAsItIs) {
  // A "1 + w" norm would give 1 and 3.
  EXPECT_THAT(Norm({4, 4}, {0, 2}, 0.0f), testing::ElementsAre(0.0f, 2.0f));
}

TEST_P(RmsNorm, EveryRowHasItsOwnScale) {
  EXPECT_THAT(Norm({2, 2, -64, 64, 0, 0}, {1, 1}, 0x1p-40f),
              testing::ElementsAre(1, 1, -1, 1, 0, 0));
}

TEST_P(RmsNorm, EqualsTheFormulaInDoubleRoundedOnce) {
  Random random(2);
  for (const size_t d : {1u, 3u, 15u, 16u, 17u, 64u, 100u, 512u}) {
    const std::vector<float> x = random.Bf16s(3 * d, -3.0, 3.0);
    const std::vector<float> weight = random.Bf16s(d, 0.5, 2.0);
    Doubles want;
    for (size_t i = 0; i < 3; ++i) {
      const Doubles row = NaiveRmsNorm(ToDoubles(std::span(x).subspan(i * d, d)), ToDoubles(weight),
                                       static_cast<double>(1e-6f));
      want.insert(want.end(), row.begin(), row.end());
    }
    ExpectValues(official(), Norm(x, weight, 1e-6f), want, 1e-6);
  }
}

TEST_P(RmsNorm, MayWriteOverItsInput) {
  Random random(3);
  const std::vector<float> weight = random.Bf16s(33);
  std::vector<float> x = random.Bf16s(4 * 33);
  const std::vector<float> want = Norm(x, weight, 1e-6f);
  const TensorView<float> view(x.data(), 4, 33);
  ASSERT_STATUS_OK(backend().RmsNorm({view, {weight.data(), 33}, 1e-6f, view}));
  EXPECT_EQ(x, want);
}

TEST_P(RmsNorm, ChecksItsArguments) {
  std::vector<float> memory(256);
  float* m = memory.data();
  const RmsNormArgs good = {.x = {m, 3, 8}, .weight = {m, 8}, .eps = 1e-6f, .out = {m, 3, 8}};
  ASSERT_STATUS_OK(Check(good));
  RmsNormArgs bad = good;
  bad.weight = {m, 9};
  ExpectRejected(backend().RmsNorm(bad), "weight");
  bad = good;
  bad.out = {m, 2, 8};
  ExpectRejected(backend().RmsNorm(bad), "out");
  bad = good;
  bad.x = {m, 3, 8, 2};  // rows would be longer than the weight
  ExpectRejected(backend().RmsNorm(bad), "x");
  bad = good;
  bad.x = {nullptr, 3, 8};
  ExpectRejected(backend().RmsNorm(bad), "x");
}

}  // namespace
}  // namespace fathom
