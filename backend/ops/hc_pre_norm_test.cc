#include "backend/ops/hc_pre_norm.h"

#include "backend/ops/test_backends.h"
#include "backend/ops/test_values.h"

namespace fathom {
namespace {

using namespace testing_values;  // NOLINT(google-build-using-namespace)

// Inputs and outputs of one call.
struct Site {
  Site(int64_t n, int64_t hc, int64_t d)
      : copies(static_cast<size_t>(n * hc * d)),
        fn(static_cast<size_t>((2 + hc) * hc * hc * d)),
        base(static_cast<size_t>((2 + hc) * hc)),
        scale(3, 1.0f),
        norm_weight(static_cast<size_t>(d), 1.0f),
        x(static_cast<size_t>(n * d)),
        post(static_cast<size_t>(n * hc)),
        comb(static_cast<size_t>(n * hc * hc)) {
    const int64_t mixes = (2 + hc) * hc;
    args = {.hc = {copies.data(), n, hc, d},
            .fn = {fn.data(), mixes, hc * d},
            .base = {base.data(), mixes},
            .scale = {scale.data(), 3},
            .norm_weight = {norm_weight.data(), d},
            .norm_eps = 1e-6f,
            .hc_eps = 1e-6f,
            .sinkhorn_iters = 20,
            .x = {x.data(), n, d},
            .post = {post.data(), n, hc},
            .comb = {comb.data(), n, hc, hc}};
  }
  std::vector<float> copies, fn, base, scale, norm_weight, x, post, comb;
  HcPreNormArgs args;
};

Site RandomSite(int64_t n, int64_t hc, int64_t d, uint32_t seed) {
  Site site(n, hc, d);
  Random random(seed);
  const auto fill = [&](std::vector<float>& v, double low, double high) {
    for (float& f : v) f = static_cast<float>(random.Uniform(low, high));
  };
  for (float& f : site.copies) f = static_cast<float>(Bf16(random.Uniform(-2.0, 2.0)));
  fill(site.fn, -0.3, 0.3);
  fill(site.base, -1.0, 1.0);
  fill(site.scale, 0.5, 2.0);
  fill(site.norm_weight, 0.5, 1.5);
  return site;
}

class HcPreNorm : public OpTest {};
FATHOM_ON_ALL_BACKENDS(HcPreNorm);

// Mixes are the biases alone. Logits of comb [[0, ln 3], [0, 0]]: the row softmax gives
// [[1/4, 3/4], [1/2, 1/2]], its column step [[1/3, 3/5], [2/3, 2/5]].
Site TwoCopySite() {
  Site site(1, 2, 2);
  site.copies = {1, 2, 3, 4};
  site.base = {0, 0, 0, std::log(3.0f), 0, std::log(3.0f), 0, 0};
  site.args.hc_eps = 0.0f;
  return site;
}

TEST_P(HcPreNorm, SinkhornStartsWithRowsAndEndsWithColumns) {
  Site site = TwoCopySite();
  site.args.sinkhorn_iters = 1;
  ASSERT_STATUS_OK(backend().HcPreNorm(site.args));
  ExpectValues(false, site.comb, {1 / 3., 3 / 5., 2 / 3., 2 / 5.}, 1e-6);
}

TEST_P(HcPreNorm, EveryFurtherIterationIsOneRowAndOneColumnStep) {
  Site site = TwoCopySite();
  site.args.sinkhorn_iters = 2;
  ASSERT_STATUS_OK(backend().HcPreNorm(site.args));
  ExpectValues(false, site.comb, {4 / 11., 12 / 19., 7 / 11., 7 / 19.}, 1e-6);
}

TEST_P(HcPreNorm, EpsIsAddedToTheSoftmaxAndToEverySum) {
  Site site = TwoCopySite();
  site.args.sinkhorn_iters = 1;
  site.args.hc_eps = 0.5f;
  ASSERT_STATUS_OK(backend().HcPreNorm(site.args));
  // (softmax + 1/2) = [[3/4, 5/4], [1, 1]], columns over 7/4 + 1/2 and 9/4 + 1/2.
  ExpectValues(false, site.comb, {1 / 3., 5 / 11., 4 / 9., 4 / 11.}, 1e-6);

  site.args.sinkhorn_iters = 2;
  ASSERT_STATUS_OK(backend().HcPreNorm(site.args));
  const double row0 = 1 / 3. + 5 / 11. + 0.5, row1 = 4 / 9. + 4 / 11. + 0.5;
  const double a = 1 / 3. / row0, b = 5 / 11. / row0, c = 4 / 9. / row1, d = 4 / 11. / row1;
  ExpectValues(false, site.comb,
               {a / (a + c + 0.5), b / (b + d + 0.5), c / (a + c + 0.5), d / (b + d + 0.5)}, 1e-6);
}

TEST_P(HcPreNorm, PostIsTwiceASigmoidWithoutEps) {
  Site site = TwoCopySite();
  site.args.hc_eps = 0.25f;
  ASSERT_STATUS_OK(backend().HcPreNorm(site.args));
  ExpectValues(false, site.post, {1.0, 1.5}, 1e-6);  // sigmoid(0), sigmoid(ln 3) = 3/4
}

TEST_P(HcPreNorm, XIsTheNormOfTheCopiesWeightedBySigmoidPlusEps) {
  Site site = TwoCopySite();
  site.base[0] = std::log(3.0f);
  site.args.hc_eps = 0.25f;    // pre = 1, 3/4
  site.args.norm_eps = 10.0f;  // far from scale-invariant
  site.norm_weight = {1.0f, 2.0f};
  ASSERT_STATUS_OK(backend().HcPreNorm(site.args));
  // y = (1, 2) + 3/4 (3, 4) = (3.25, 5), both bf16 values; mean of squares 17.78125.
  const double rms = std::sqrt(17.78125 + 10.0);
  ExpectValues(official(), site.x, {3.25 / rms, 10.0 / rms}, 1e-6);
}

TEST_P(HcPreNorm, YIsRoundedToBf16BeforeTheNorm) {
  Site site(1, 1, 1);
  site.copies = {1.0f};
  site.base[0] = 0.0098f;  // pre = 0.50245, which bf16 rounds to 129/256
  site.norm_weight = {1.75f};
  site.args.hc_eps = 0.0f;
  site.args.norm_eps = 0x1p20f;  // the norm divides by 1024
  ASSERT_STATUS_OK(backend().HcPreNorm(site.args));
  EXPECT_NEAR(site.x[0] * 0x1p18f, official() ? 226.0 : 256 * 1.75 * Sigmoid(0.0098), 1e-3);
}

TEST_P(HcPreNorm, RhoIsTheRmsOverAllCopiesWithEpsInside) {
  Site site(1, 2, 2);
  site.copies = {1, 1, 1, 3};  // mean of squares 3
  site.args.norm_eps = 1.0f;   // rho = 1/2
  site.fn[2 * 4 + 3] = 1.0f;   // mix 2 (post of copy 0) reads the last channel of copy 1
  site.scale = {0.0f, 2.0f, 0.0f};
  ASSERT_STATUS_OK(backend().HcPreNorm(site.args));
  ExpectValues(false, site.post, {2 * Sigmoid(3.0), 1.0}, 1e-6);
}

TEST_P(HcPreNorm, EqualsTheFormulasInDouble) {
  for (const size_t d : {8u, 33u, 64u}) {
    const size_t hc = 4;
    const size_t n = 2;
    Site site = RandomSite(2, 4, static_cast<int64_t>(d), 7);
    ASSERT_STATUS_OK(backend().HcPreNorm(site.args));
    for (size_t i = 0; i < n; ++i) {
      const Doubles all = ToDoubles(std::span(site.copies).subspan(i * hc * d, hc * d));
      double squares = 0.0;
      for (double v : all) squares += v * v;
      const double rho = 1.0 / std::sqrt(squares / static_cast<double>(all.size()) + 1e-6);
      const auto mixed = [&](size_t m, size_t which) {
        double dot = 0.0;
        for (size_t c = 0; c < all.size(); ++c) {
          dot += static_cast<double>(site.fn[m * all.size() + c]) * all[c];
        }
        return dot * rho * static_cast<double>(site.scale[which]) +
               static_cast<double>(site.base[m]);
      };
      Doubles y(d);
      Doubles post;
      for (size_t c = 0; c < hc; ++c) {
        for (size_t k = 0; k < d; ++k) y[k] += (Sigmoid(mixed(c, 0)) + 1e-6) * all[c * d + k];
        post.push_back(2.0 * Sigmoid(mixed(hc + c, 1)));
      }
      double comb[4][4];
      for (size_t j = 0; j < hc; ++j) {
        double sum = 0.0;
        for (size_t k = 0; k < hc; ++k) sum += comb[j][k] = std::exp(mixed(2 * hc + 4 * j + k, 2));
        for (size_t k = 0; k < hc; ++k) comb[j][k] = comb[j][k] / sum + 1e-6;
      }
      for (int step = 0; step < 39; ++step) {  // 20 column steps, 19 row steps between them
        for (size_t a = 0; a < hc; ++a) {
          double sum = 1e-6;
          for (size_t b = 0; b < hc; ++b) sum += step % 2 == 0 ? comb[b][a] : comb[a][b];
          for (size_t b = 0; b < hc; ++b) (step % 2 == 0 ? comb[b][a] : comb[a][b]) /= sum;
        }
      }
      ExpectValues(false, std::span(site.post).subspan(i * hc, hc), post, 1e-5);
      ExpectValues(false, std::span(site.comb).subspan(i * 16, 16), Doubles(comb[0], comb[0] + 16),
                   1e-5);
      for (size_t k = 0; k < hc; ++k) {
        EXPECT_NEAR(comb[0][k] + comb[1][k] + comb[2][k] + comb[3][k], 1.0, 1e-5);
      }
      // y may land on the other side of a bf16 boundary, which moves x by one step.
      const Doubles x = NaiveRmsNorm(MaybeBf16(official(), y), ToDoubles(site.norm_weight), 1e-6);
      ExpectValues(official(), std::span(site.x).subspan(i * d, d), x, 2e-6, 2.0);
    }
  }
}

TEST_P(HcPreNorm, ATokenAmongOthersHasTheSameBitsAsAlone) {
  Site all = RandomSite(5, 4, 48, 3);
  ASSERT_STATUS_OK(backend().HcPreNorm(all.args));
  for (int64_t i = 0; i < 5; ++i) {
    Site one = RandomSite(5, 4, 48, 3);
    one.args.hc = one.args.hc.Slice(i, 1);
    one.args.x = one.args.x.First(1);
    one.args.post = one.args.post.First(1);
    one.args.comb = one.args.comb.First(1);
    ASSERT_STATUS_OK(backend().HcPreNorm(one.args));
    EXPECT_TRUE(std::ranges::equal(one.args.x.elements(), all.args.x.row(i)));
    EXPECT_TRUE(std::ranges::equal(one.args.post.elements(), all.args.post.row(i)));
    EXPECT_TRUE(std::ranges::equal(one.args.comb.elements(), all.args.comb.row(i)));
  }
}

TEST_P(HcPreNorm, ChecksItsArguments) {
  Site site = RandomSite(3, 4, 8, 1);
  const HcPreNormArgs good = site.args;
  ASSERT_STATUS_OK(Check(good));
  const auto expect = [&](const std::string& operand, auto&& spoil) {
    HcPreNormArgs bad = good;
    spoil(bad);
    ExpectRejected(backend().HcPreNorm(bad), operand);
  };
  float* m = site.fn.data();
  expect("hc", [&](HcPreNormArgs& a) { a.hc = {m, 3, 32}; });
  expect("fn", [&](HcPreNormArgs& a) { a.fn = {m, 23, 32}; });
  expect("base", [&](HcPreNormArgs& a) { a.base = {m, 23}; });
  expect("scale", [&](HcPreNormArgs& a) { a.scale = {m, 1}; });
  expect("norm_weight", [&](HcPreNormArgs& a) { a.norm_weight = {m, 32}; });
  expect("x", [&](HcPreNormArgs& a) { a.x = {m, 2, 8}; });
  expect("post", [&](HcPreNormArgs& a) { a.post = {m, 3, 3}; });
  expect("comb", [&](HcPreNormArgs& a) { a.comb = {m, 3, 16}; });
  expect("sinkhorn_iters", [&](HcPreNormArgs& a) { a.sinkhorn_iters = 0; });
}

}  // namespace
}  // namespace fathom
