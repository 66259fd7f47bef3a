#include "backend/ops/linear.h"

#include "backend/ops/test_backends.h"
#include "backend/ops/test_values.h"

namespace fathom {
namespace {

using namespace testing_values;  // NOLINT(google-build-using-namespace)

class Linear : public OpTest {
 protected:
  std::vector<float> Multiply(const std::vector<float>& x, const TestWeight& w,
                              bool round_output = true) {
    const auto n = static_cast<int64_t>(x.size()) / w.cols();
    std::vector<float> out(static_cast<size_t>(n * w.rows()), -99.0f);
    const Status status = backend().Linear({.x = {x.data(), n, w.cols()},
                                            .first = {w.view(), {out.data(), n, w.rows()}},
                                            .second = {},
                                            .round_output = round_output});
    EXPECT_TRUE(status.ok()) << status.ToString();
    return out;
  }
  // One input row with a single value.
  static std::vector<float> OneHot(int size, int at, float value) {
    std::vector<float> x(static_cast<size_t>(size));
    x[static_cast<size_t>(at)] = value;
    return x;
  }
};
FATHOM_ON_ALL_BACKENDS(Linear);

constexpr DType kWeightTypes[] = {DType::kF8E4M3, DType::kI8, DType::kBF16, DType::kF32};

// Sizes that are no multiple of a scale block's rows, and several blocks of columns.
TEST_P(Linear, EqualsTheProductInDoubleForEveryWeightFormat) {
  for (DType dtype : kWeightTypes) {
    for (const bool round_output : {true, false}) {
      Random random(4);
      const TestWeight w = TestWeight::Random(random, dtype, 131, 384);
      const std::vector<float> x = random.Bf16s(3 * 384);
      Doubles want;
      for (size_t i = 0; i < 3; ++i) {
        Doubles row = ToDoubles(std::span(x).subspan(i * 384, 384));
        if (official() && w.quantised()) row = AsE4m3(row, 128);
        row = w.Times(row);
        want.insert(want.end(), row.begin(), row.end());
      }
      SCOPED_TRACE(static_cast<int>(dtype));
      // fp32 sums of 384 products.
      ExpectValues(official() && round_output, Multiply(x, w, round_output), want, 5e-6);
    }
  }
}

TEST_P(Linear, OddSizesOfUnquantisedWeights) {
  Random random(5);
  for (int k : {1, 2, 7, 8, 15, 17, 31, 33, 65}) {
    const TestWeight w = TestWeight::Random(random, DType::kBF16, 5, k);
    const std::vector<float> x = random.Bf16s(static_cast<size_t>(k));
    ExpectValues(official(), Multiply(x, w), w.Times(ToDoubles(x)), 1e-6);
  }
}

TEST_P(Linear, EachBlockOfFp8WeightsHasItsScale) {
  TestWeight w(DType::kF8E4M3, 130, 256);
  w.scale() = {127, 128, 129, 130};  // rows 0..127 and 128.., columns 0..127 and 128..
  for (auto [row, col] : {std::pair{127, 127}, {127, 128}, {128, 127}, {128, 128}}) {
    w.data()[static_cast<size_t>(row * 256 + col)] = 0x38;  // 1.0
  }
  EXPECT_EQ(Multiply(OneHot(256, 127, 1), w)[127], 1.0f);
  EXPECT_EQ(Multiply(OneHot(256, 128, 1), w)[127], 2.0f);
  EXPECT_EQ(Multiply(OneHot(256, 127, 1), w)[128], 4.0f);
  EXPECT_EQ(Multiply(OneHot(256, 128, 1), w)[128], 8.0f);
}

TEST_P(Linear, Fp4HasTheEvenColumnInTheLowNibbleAndAScalePer32Columns) {
  TestWeight w(DType::kI8, 2, 128);
  w.data()[64 + 16] = 0x72;                              // row 1, columns 32 and 33: codes 2 and 7
  w.scale() = {127, 127, 127, 127, 127, 129, 127, 127};  // row 1, columns 32..63: 4
  EXPECT_THAT(Multiply(OneHot(128, 32, 1), w), testing::ElementsAre(0, 4));
  EXPECT_THAT(Multiply(OneHot(128, 33, 1), w), testing::ElementsAre(0, 24));
}

// A plain "byte << 23" reads scale byte 0 as zero.
TEST_P(Linear, ScaleByteZeroIsTwoToTheMinus127) {
  for (DType dtype : {DType::kF8E4M3, DType::kI8}) {
    TestWeight w(dtype, 1, 128);
    w.data()[0] = dtype == DType::kI8 ? 0x02 : 0x38;  // 1.0
    std::fill(w.scale().begin(), w.scale().end(), uint8_t{0});
    EXPECT_EQ(Multiply(OneHot(128, 0, 0x1p100f), w)[0], 0x1p-27f);
  }
}

TEST_P(Linear, OnlyQuantisedWeightsRoundTheirInput) {
  const float x = 1.0f + 0x1p-7f;  // bf16 holds it, e4m3 has 3 bits
  for (DType dtype : kWeightTypes) {
    TestWeight w(dtype, 1, 128);
    w.Set(0, 5, 1.0);
    const float want = official() && w.quantised() ? 1.0f : x;
    EXPECT_EQ(Multiply(OneHot(128, 5, x), w)[0], want) << static_cast<int>(dtype);
  }
}

// A large value must not push its neighbours in the next group below the grid.
TEST_P(Linear, InputGroupsAre128Wide) {
  TestWeight w(DType::kF8E4M3, 2, 256);
  w.Set(0, 128, 1.0);
  w.Set(1, 127, 1.0);
  std::vector<float> x = OneHot(256, 0, 448.0f);
  x[128] = 0x1p-15f;
  x[127] = 0x1p-15f;
  EXPECT_THAT(Multiply(x, w), testing::ElementsAre(0x1p-15f, official() ? 0.0f : 0x1p-15f));
}

// amax * 2^-k / 448 exactly a power of two must not be bumped to the next one, and a value just
// above it must be: 3 * 2^-9 is on the grid only under the smaller scale.
TEST_P(Linear, InputScaleIsTheSmallestPowerOfTwoThatFits) {
  TestWeight w(DType::kF8E4M3, 1, 128);
  w.Set(0, 1, 1.0);
  std::vector<float> x = OneHot(128, 0, 448.0f);
  x[1] = 0x3p-9f;
  EXPECT_EQ(Multiply(x, w)[0], 0x3p-9f);
  x[0] = 450.0f;
  EXPECT_EQ(Multiply(x, w)[0], official() ? 0x1p-7f : 0x3p-9f);
}

TEST_P(Linear, Fp32ResultsStayFp32) {
  TestWeight w(DType::kBF16, 1, 2);
  w.Set(0, 0, 1.0);
  w.Set(0, 1, 1.0);
  const std::vector<float> x = {1.0f, 0x1p-12f};
  EXPECT_EQ(Multiply(x, w, /*round_output=*/false)[0], 1.0f + 0x1p-12f);
  EXPECT_EQ(Multiply(x, w, /*round_output=*/true)[0], official() ? 1.0f : 1.0f + 0x1p-12f);
}

TEST_P(Linear, TwoWeightsOfOneCallEqualTwoCalls) {
  for (DType dtype : kWeightTypes) {
    Random random(6);
    const TestWeight a = TestWeight::Random(random, dtype, 40, 256);
    const TestWeight b = TestWeight::Random(random, dtype, 129, 256);
    const std::vector<float> x = random.Bf16s(2 * 256);
    std::vector<float> out_a(80);
    std::vector<float> out_b(258);
    ASSERT_STATUS_OK(backend().Linear({.x = {x.data(), 2, 256},
                                       .first = {a.view(), {out_a.data(), 2, 40}},
                                       .second = {b.view(), {out_b.data(), 2, 129}}}));
    EXPECT_EQ(out_a, Multiply(x, a));
    EXPECT_EQ(out_b, Multiply(x, b));
  }
}

TEST_P(Linear, ARowAmongOthersHasTheSameBitsAsAlone) {
  for (DType dtype : kWeightTypes) {
    Random random(7);
    const TestWeight w = TestWeight::Random(random, dtype, 70, 256);
    for (size_t n : {2u, 3u, 5u, 17u}) {
      const std::vector<float> x = random.Bf16s(n * 256);
      const std::vector<float> all = Multiply(x, w, false);
      for (size_t i = 0; i < n; ++i) {
        const std::vector<float> one = {x.begin() + static_cast<long>(i) * 256,
                                        x.begin() + static_cast<long>(i + 1) * 256};
        const std::span<const float> row = std::span(all).subspan(i * 70, 70);
        ASSERT_TRUE(std::ranges::equal(Multiply(one, w, false), row)) << n << " rows, row " << i;
      }
    }
  }
}

TEST_P(Linear, ChecksItsArguments) {
  TestWeight f8(DType::kF8E4M3, 8, 128);
  TestWeight bf16(DType::kBF16, 8, 128);
  std::vector<float> memory(1024);
  float* m = memory.data();
  const LinearArgs good = {.x = {m, 3, 128}, .first = {f8.view(), {m, 3, 8}}, .second = {}};
  ASSERT_STATUS_OK(Check(good));
  const auto expect = [&](const std::string& operand, auto&& spoil) {
    LinearArgs bad = good;
    spoil(bad);
    ExpectRejected(backend().Linear(bad), operand);
  };
  expect("first", [&](LinearArgs& a) { a.x = {m, 3, 127}; });
  expect("first", [&](LinearArgs& a) { a.first.weight.data = nullptr; });
  expect("first", [&](LinearArgs& a) { a.first.weight.scale = nullptr; });
  expect("first.out", [&](LinearArgs& a) { a.first.out = {m, 2, 8}; });
  expect("second", [&](LinearArgs& a) {
    a.second = {TestWeight(DType::kF8E4M3, 8, 256).view(), {}};
  });
  expect("second.out", [&](LinearArgs& a) { a.second = {f8.view(), {m, 3, 7}}; });
  expect("both weights", [&](LinearArgs& a) { a.second = {bf16.view(), {m, 3, 8}}; });
  expect("x", [&](LinearArgs& a) { a.x = {m, 3, 128, 2}; });
  expect("x", [&](LinearArgs& a) { a.x = {nullptr, 3, 128}; });
  expect("multiple of 128", [&](LinearArgs& a) {
    a.x = {m, 3, 64};
    a.first.weight.cols = 64;
  });
}

}  // namespace
}  // namespace fathom
