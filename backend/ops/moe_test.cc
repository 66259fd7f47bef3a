#include "backend/ops/moe.h"

#include "backend/ops/test_backends.h"
#include "backend/ops/test_values.h"

namespace fathom {
namespace {

using namespace testing_values;  // NOLINT(google-build-using-namespace)

struct TestExpert {
  TestExpert(DType dtype, int width, int inner)
      : w1(dtype, inner, width), w2(dtype, width, inner), w3(dtype, inner, width) {}
  static TestExpert Random(testing_values::Random& random, DType dtype, int width, int inner) {
    TestExpert e(dtype, width, inner);
    e.w1 = TestWeight::Random(random, dtype, inner, width);
    e.w2 = TestWeight::Random(random, dtype, width, inner);
    e.w3 = TestWeight::Random(random, dtype, inner, width);
    return e;
  }
  // One channel: gate = g * x[0], up = u * x[0], y[0] = h.
  void SetScalar(double g, double u) {
    w1.Set(0, 0, g);
    w3.Set(0, 0, u);
    w2.Set(0, 0, 1.0);
  }
  [[nodiscard]] ExpertWeights view() const { return {w1.view(), w2.view(), w3.view()}; }
  TestWeight w1, w2, w3;
};

double Silu(double z) { return z * Sigmoid(z); }

class Moe : public OpTest {
 protected:
  // out[0] of experts with one channel each and x[0] = 1; the last of `experts` is the shared one.
  float Scalar(const std::vector<std::pair<double, double>>& gate_up, std::vector<int32_t> chosen,
               std::vector<float> weights, float limit) {
    std::vector<TestExpert> experts;
    std::vector<ExpertWeights> views;
    experts.reserve(gate_up.size());
    for (auto [g, u] : gate_up) {
      experts.emplace_back(DType::kF8E4M3, 128, 128);
      experts.back().SetScalar(g, u);
      views.push_back(experts.back().view());
    }
    const ExpertWeights shared = views.back();
    views.pop_back();
    std::vector<float> x(128), out(128, -9.0f);
    x[0] = 1.0f;
    const auto k = static_cast<int64_t>(chosen.size());
    const Status status = backend().Moe({.x = {x.data(), 1, 128},
                                         .experts = {chosen.data(), 1, k},
                                         .weights = {weights.data(), 1, k},
                                         .routed = views,
                                         .shared = shared,
                                         .swiglu_limit = limit,
                                         .out = {out.data(), 1, 128}});
    EXPECT_TRUE(status.ok()) << status.ToString();
    EXPECT_TRUE(std::all_of(out.begin() + 1, out.end(), [](float v) { return v == 0.0f; }));
    return out[0];
  }
  // What w2 makes of a hidden value: official numerics round it to bf16 and then to e4m3.
  [[nodiscard]] double Down(double h) const { return official() ? AsE4m3({Bf16(h)}, 1)[0] : h; }
  void ExpectScalar(float got, double want) {
    EXPECT_NEAR(got, want, std::fabs(want) * (official() ? 0x1p-9 : 1e-5));
  }
};
FATHOM_ON_ALL_BACKENDS(Moe);

constexpr std::pair<double, double> kNothing = {0, 0};

TEST_P(Moe, ExpertIsSiluOfGateTimesUp) {
  ExpectScalar(Scalar({{2, 3}, kNothing}, {0}, {1}, 0), Down(Silu(2) * 3));
}

TEST_P(Moe, GateIsClampedFromAboveOnly) {
  ExpectScalar(Scalar({{20, 1}, kNothing}, {0}, {1}, 10), Down(Silu(10)));
  ExpectScalar(Scalar({{-20, 10}, kNothing}, {0}, {4096}, 10), Down(Silu(-20) * 10 * 4096));
}

TEST_P(Moe, UpIsClampedOnBothSides) {
  ExpectScalar(Scalar({{2, 20}, kNothing}, {0}, {1}, 10), Down(Silu(2) * 10));
  ExpectScalar(Scalar({{2, -20}, kNothing}, {0}, {1}, 10), Down(Silu(2) * -10));
}

TEST_P(Moe, LimitZeroDoesNotClamp) {
  ExpectScalar(Scalar({{20, -20}, kNothing}, {0}, {1}, 0), Down(Silu(20) * -20));
}

TEST_P(Moe, SharedExpertIsClampedToo) {
  ExpectScalar(Scalar({kNothing, {20, -20}}, {0}, {1}, 10), Down(Silu(10) * -10));
}

TEST_P(Moe, SharedExpertIsAddedUnscaled) {
  ExpectScalar(Scalar({{2, 2}, {1, 4}}, {0}, {0.25f}, 0),
               Down(Silu(2) * 2 * 0.25) + Down(Silu(1) * 4));
}

// silu(4) = 3.928 is 4 in e4m3; times 0.8 before that it is 3.142 and becomes 3.25.
TEST_P(Moe, RoutingWeightIsAppliedBeforeTheDownProjection) {
  const float got = Scalar({{4, 1}, kNothing}, {0}, {0.8f}, 0);
  if (official()) {
    EXPECT_EQ(got, 3.25f);
  } else {
    EXPECT_NEAR(got, Silu(4) * 0.8, 1e-5);
  }
}

TEST_P(Moe, EachExpertHasItsOwnWeight) {
  ExpectScalar(Scalar({{4, 1}, {4, 2}, {4, 4}, kNothing}, {2, 0}, {0.5f, 2}, 0),
               Down(Silu(4) * 4 * 0.5) + Down(Silu(4) * 2));
}

// 2^30 - 2^30 + 2^-10 in ascending ids; in the order of choice the small one would be lost.
TEST_P(Moe, ExpertsAreSummedByAscendingId) {
  const std::vector<std::pair<double, double>> experts = {{4, 1}, {4, 1}, {4, 1}, kNothing};
  ExpectScalar(Scalar(experts, {2, 0, 1}, {0x1p-10f, 0x1p30f, -0x1p30f}, 0),
               Down(Silu(4) * 0x1p-10));
  ExpectScalar(Scalar(experts, {1, 2, 0}, {-0x1p30f, 0x1p-10f, 0x1p30f}, 0),
               Down(Silu(4) * 0x1p-10));
}

// Three routed fp4 experts of five and the fp8 shared one, by the formulas.
struct Layer {
  static constexpr int kWidth = 256, kInner = 128, kExperts = 5, kK = 3;
  explicit Layer(int n) : x(Random(8).Bf16s(static_cast<size_t>(n) * kWidth)) {
    Random random(9);
    for (int e = 0; e < kExperts; ++e) {
      routed.push_back(TestExpert::Random(random, DType::kI8, kWidth, kInner));
    }
    shared.push_back(TestExpert::Random(random, DType::kF8E4M3, kWidth, kInner));
    for (TestWeight* w : {&shared[0].w1, &shared[0].w2, &shared[0].w3}) {
      for (uint8_t& s : w->scale()) s = static_cast<uint8_t>(s - 5);
    }
    for (const TestExpert& e : routed) views.push_back(e.view());
    for (int i = 0; i < n; ++i) {
      for (int k = 0; k < kK; ++k) experts.push_back((3 * i + 4 * k + 4) % kExperts);
    }
    weights = random.Floats(experts.size(), 0.1, 1.0);
    out.resize(x.size());
    args = {.x = {x.data(), n, kWidth},
            .experts = {experts.data(), n, kK},
            .weights = {weights.data(), n, kK},
            .routed = views,
            .shared = shared[0].view(),
            .swiglu_limit = 1.0f,
            .out = {out.data(), n, kWidth}};
  }
  std::vector<float> x;
  std::vector<TestExpert> routed, shared;
  std::vector<ExpertWeights> views;
  std::vector<int32_t> experts;
  std::vector<float> weights, out;
  MoeArgs args;
};

Doubles NaiveExpert(bool official, const TestExpert& e, Doubles x, double weight, double limit,
                    int* clamped) {
  if (official) x = AsE4m3(x, 128);
  const Doubles gate = MaybeBf16(official, e.w1.Times(x));
  const Doubles up = MaybeBf16(official, e.w3.Times(x));
  Doubles h;
  for (size_t i = 0; i < gate.size(); ++i) {
    if (gate[i] > limit || std::fabs(up[i]) > limit) ++*clamped;
    h.push_back(Silu(std::min(gate[i], limit)) * std::clamp(up[i], -limit, limit) * weight);
  }
  h = MaybeBf16(official, h);
  if (official) h = AsE4m3(h, 128);
  return MaybeBf16(official, e.w2.Times(h));
}

TEST_P(Moe, EqualsTheFormulasInDouble) {
  Layer layer(4);
  ASSERT_STATUS_OK(backend().Moe(layer.args));
  int clamped = 0;
  for (size_t i = 0; i < 4; ++i) {
    const Doubles x = ToDoubles(std::span(layer.x).subspan(i * Layer::kWidth, Layer::kWidth));
    Doubles want = NaiveExpert(official(), layer.shared[0], x, 1.0, 1.0, &clamped);
    for (size_t k = 0; k < Layer::kK; ++k) {
      const TestExpert& e = layer.routed[static_cast<size_t>(layer.experts[i * Layer::kK + k])];
      const double weight = static_cast<double>(layer.weights[i * Layer::kK + k]);
      const Doubles y = NaiveExpert(official(), e, x, weight, 1.0, &clamped);
      for (size_t c = 0; c < y.size(); ++c) want[c] += y[c];
    }
    // Official: a bf16 value on the other side of a boundary may flip an e4m3 code.
    EXPECT_LT(RelativeL2(layer.args.out.row(static_cast<int64_t>(i)), want),
              official() ? 5e-3 : 1e-5);
    for (float v : layer.args.out.row(static_cast<int64_t>(i))) {
      if (official()) {
        ASSERT_EQ(v, Bf16(v));
      }
    }
  }
  // The case is about both sides of the clamps.
  EXPECT_GT(clamped, 100);
  EXPECT_LT(clamped, 4 * 4 * Layer::kInner - 100);
}

TEST_P(Moe, ATokenAmongOthersHasTheSameBitsAsAlone) {
  Layer all(6);
  ASSERT_STATUS_OK(backend().Moe(all.args));
  for (int64_t i = 0; i < 6; ++i) {
    Layer one(6);
    one.args.x = one.args.x.Slice(i, 1);
    one.args.experts = one.args.experts.Slice(i, 1);
    one.args.weights = one.args.weights.Slice(i, 1);
    one.args.out = one.args.out.First(1);
    ASSERT_STATUS_OK(backend().Moe(one.args));
    EXPECT_TRUE(std::ranges::equal(one.args.out.elements(), all.args.out.row(i))) << i;
  }
}

TEST_P(Moe, ChecksItsArguments) {
  Layer layer(2);
  const MoeArgs good = layer.args;
  ASSERT_STATUS_OK(Check(good));
  const auto expect = [&](const std::string& operand, auto&& spoil) {
    MoeArgs bad = good;
    std::vector<ExpertWeights> routed = layer.views;
    bad.routed = routed;
    spoil(bad, routed);
    ExpectRejected(backend().Moe(bad), operand);
  };
  using Args = MoeArgs;
  using Routed = std::vector<ExpertWeights>;
  float* m = layer.out.data();
  expect("x", [&](Args& a, Routed&) { a.x = {m, 2, 128, 2}; });
  expect("w1", [&](Args& a, Routed&) { a.x = a.out = {m, 2, 128}; });
  expect("experts", [&](Args& a, Routed&) { a.experts = a.experts.First(1); });
  expect("experts", [&](Args& a, Routed&) { a.experts = {nullptr, 2, 3}; });
  expect("weights", [&](Args& a, Routed&) { a.weights = {m, 2, 2}; });
  expect("out", [&](Args& a, Routed&) { a.out = {m, 1, 256}; });
  expect("routed", [&](Args& a, Routed&) { a.routed = {}; });
  expect("w1", [&](Args&, Routed& r) { r[4].w1.cols = 128; });
  expect("w2", [&](Args&, Routed& r) { r[4].w2.cols = 256; });
  expect("w3", [&](Args&, Routed& r) { r[4].w3.rows = 64; });
  expect("w2", [&](Args& a, Routed&) { a.shared.w2.rows = 128; });
  expect("w3", [&](Args& a, Routed&) { a.shared.w3.scale = nullptr; });
  for (const int32_t id : {-1, 5}) {
    layer.experts[5] = id;
    ExpectRejected(backend().Moe(good), "expert id");
  }
}

}  // namespace
}  // namespace fathom
