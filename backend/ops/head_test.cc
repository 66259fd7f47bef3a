#include "backend/ops/head.h"

#include "backend/ops/test_backends.h"
#include "backend/ops/test_values.h"

namespace fathom {
namespace {

using namespace testing_values;  // NOLINT(google-build-using-namespace)

struct Call {
  Call(int n, int hc, int d, int vocab, std::vector<int> wanted)
      : rows(std::move(wanted)),
        copies(static_cast<size_t>(n * hc * d)),
        fn(static_cast<size_t>(hc * hc * d)),
        base(static_cast<size_t>(hc)),
        scale(1, 1.0f),
        norm_weight(static_cast<size_t>(d), 1.0f),
        head(DType::kBF16, vocab, d),
        logits(rows.size() * static_cast<size_t>(vocab), -9.0f) {
    args = {.hc = {copies.data(), n, hc, d},
            .rows = rows,
            .fn = {fn.data(), hc, hc * d},
            .base = {base.data(), hc},
            .scale = {scale.data(), 1},
            .norm_weight = {norm_weight.data(), d},
            .head = head.view(),
            .norm_eps = 1e-6f,
            .hc_eps = 1e-6f,
            .logits = {logits.data(), static_cast<int64_t>(rows.size()), vocab}};
  }
  std::vector<int> rows;
  std::vector<float> copies, fn, base, scale, norm_weight;
  TestWeight head;
  std::vector<float> logits;
  HeadArgs args;
};

class Head : public OpTest {};
FATHOM_ON_ALL_BACKENDS(Head);

TEST_P(Head, LogitsAreTheHeadTimesTheNormOfTheMixedCopies) {
  Call call(1, 2, 2, 3, {0});
  call.copies = {1, 2, 3, 4};
  call.base = {0, std::log(3.0f)};
  call.args.hc_eps = 0.5f;     // pre = 1, 5/4
  call.args.norm_eps = 10.0f;  // far from scale-invariant
  call.norm_weight = {1.0f, 2.0f};
  call.head.Set(0, 0, 1.0);
  call.head.Set(1, 1, -0.5);
  call.head.Set(2, 0, 2.0);
  call.head.Set(2, 1, 1.0);
  ASSERT_STATUS_OK(backend().Head(call.args));
  // y = (4.75, 7): mean of squares 35.78125.
  const Doubles x = MaybeBf16(official(), {4.75 / std::sqrt(45.78125), 14.0 / std::sqrt(45.78125)});
  ExpectValues(false, call.logits, {x[0], -0.5 * x[1], 2 * x[0] + x[1]}, 1e-6);
}

TEST_P(Head, OnlyTheWantedRowsInTheirOrder) {
  Call call(4, 1, 2, 2, {3, 1});
  call.copies = {1, 1, 1, -1, -1, -1, -1, 1};
  call.args.norm_eps = 0.0f;
  call.head.Set(0, 0, 1.0);
  call.head.Set(1, 1, 1.0);
  ASSERT_STATUS_OK(backend().Head(call.args));
  EXPECT_THAT(call.logits, testing::ElementsAre(-1, 1, 1, -1));
}

TEST_P(Head, NoRowsIsNoWork) {
  Call call(2, 1, 2, 2, {});
  ASSERT_STATUS_OK(backend().Head(call.args));
}

// x[1] is 2^-12 times x[0]; a sum rounded to bf16 would lose it.
TEST_P(Head, LogitsAreNotRoundedToBf16) {
  Call call(1, 1, 2, 1, {0});
  call.copies = {1.0f, 0x1p-12f};
  call.head.Set(0, 0, 1.0);
  call.head.Set(0, 1, 1.0);
  call.args.norm_eps = 0.0f;
  ASSERT_STATUS_OK(backend().Head(call.args));
  const Doubles x = MaybeBf16(official(), NaiveRmsNorm({1.0, 0x1p-12}, {1.0, 1.0}, 0.0));
  EXPECT_NEAR(call.logits[0], x[0] + x[1], 1e-6);
  EXPECT_NE(call.logits[0], static_cast<float>(Bf16(x[0] + x[1])));
}

TEST_P(Head, EqualsTheFormulasInDouble) {
  constexpr size_t kHc = 4, kD = 48, kVocab = 21;
  Call call(3, kHc, kD, kVocab, {0, 2});
  Random random(6);
  std::ranges::copy(random.Bf16s(call.copies.size(), -2.0, 2.0), call.copies.begin());
  std::ranges::copy(random.Floats(call.fn.size(), -0.5, 0.5), call.fn.begin());
  std::ranges::copy(random.Floats(kHc), call.base.begin());
  call.scale[0] = 1.3f;
  std::ranges::copy(random.Bf16s(kD, 0.5, 1.5), call.norm_weight.begin());
  call.head = TestWeight::Random(random, DType::kBF16, kVocab, kD);
  call.args.head = call.head.view();
  ASSERT_STATUS_OK(backend().Head(call.args));
  for (size_t m = 0; m < 2; ++m) {
    const Doubles all = ToDoubles(std::span(call.copies).subspan(2 * m * kHc * kD, kHc * kD));
    double squares = 0.0;
    for (double v : all) squares += v * v;
    const double rho = 1.0 / std::sqrt(squares / static_cast<double>(all.size()) + 1e-6);
    Doubles y(kD);
    for (size_t c = 0; c < kHc; ++c) {
      double mix = 0.0;
      for (size_t i = 0; i < all.size(); ++i)
        mix += static_cast<double>(call.fn[c * all.size() + i]) * all[i];
      const double pre =
          Sigmoid(mix * rho * static_cast<double>(1.3f) + static_cast<double>(call.base[c])) + 1e-6;
      for (size_t i = 0; i < kD; ++i) y[i] += pre * all[c * kD + i];
    }
    const Doubles x = MaybeBf16(
        official(), NaiveRmsNorm(MaybeBf16(official(), y), ToDoubles(call.norm_weight), 1e-6));
    // A bf16 rounding of x or y that falls the other way moves a logit by a step of one channel.
    ExpectValues(false, call.args.logits.row(static_cast<int64_t>(m)), call.head.Times(x),
                 official() ? 1e-3 : 1e-5);
  }
}

TEST_P(Head, ChecksItsArguments) {
  Call call(3, 4, 8, 5, {0, 2});
  const HeadArgs good = call.args;
  ASSERT_STATUS_OK(Check(good));
  const auto expect = [&](const std::string& operand, auto&& spoil) {
    HeadArgs bad = good;
    spoil(bad);
    ExpectRejected(backend().Head(bad), operand);
  };
  float* m = call.fn.data();
  expect("hc", [&](HeadArgs& a) { a.hc = {m, 3, 32}; });
  expect("fn", [&](HeadArgs& a) { a.fn = {m, 3, 32}; });
  expect("base", [&](HeadArgs& a) { a.base = {m, 3}; });
  expect("scale", [&](HeadArgs& a) { a.scale = {m, 3}; });
  expect("norm_weight", [&](HeadArgs& a) { a.norm_weight = {m, 32}; });
  expect("head", [&](HeadArgs& a) { a.head.cols = 4; });
  expect("logits", [&](HeadArgs& a) { a.logits = a.logits.First(1); });
  for (int row : {-1, 3}) {
    call.rows[1] = row;
    ExpectRejected(backend().Head(good), "row");
  }
}

}  // namespace
}  // namespace fathom
