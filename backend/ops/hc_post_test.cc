#include "backend/ops/hc_post.h"

#include "backend/ops/test_backends.h"
#include "backend/ops/test_values.h"

namespace fathom {
namespace {

using namespace testing_values;  // NOLINT(google-build-using-namespace)

class HcPost : public OpTest {
 protected:
  // One token, two copies of one channel.
  std::vector<float> Post(std::vector<float> copies, float out, std::vector<float> post,
                          std::vector<float> comb) {
    const std::vector<float> out_row = {out};
    const Status status = backend().HcPost({.out = {out_row.data(), 1, 1},
                                            .post = {post.data(), 1, 2},
                                            .comb = {comb.data(), 1, 2, 2},
                                            .hc = {copies.data(), 1, 2, 1}});
    EXPECT_TRUE(status.ok()) << status.ToString();
    return copies;
  }
};
FATHOM_ON_ALL_BACKENDS(HcPost);

TEST_P(HcPost, FirstIndexOfCombIsTheSourceCopyAndSecondTheDestination) {
  // Only source 0 -> destination 1.
  EXPECT_THAT(Post({5, 7}, 3, {2, 10}, {0, 1, 0, 0}), testing::ElementsAre(6, 35));
}

TEST_P(HcPost, EveryDestinationMixesTheCopiesAsTheyWereBefore) {
  // comb exchanges the copies; using an already written copy would give {7, 7}.
  EXPECT_THAT(Post({5, 7}, 0, {1, 1}, {0, 1, 1, 0}), testing::ElementsAre(7, 5));
}

TEST_P(HcPost, EqualsTheFormulaInDoubleRoundedOnce) {
  Random random(1);
  for (const size_t hc : {1u, 2u, 4u, 8u}) {
    for (const size_t width : {1u, 7u, 16u, 33u, 64u}) {
      const size_t n = 3;
      std::vector<float> copies = random.Bf16s(n * hc * width);
      const std::vector<float> before = copies;
      const std::vector<float> out = random.Bf16s(n * width);
      const std::vector<float> post = random.Floats(n * hc, 0.0, 2.0);
      const std::vector<float> comb = random.Floats(n * hc * hc, 0.0, 1.0);
      const auto h = static_cast<int64_t>(hc);
      const auto d = static_cast<int64_t>(width);
      ASSERT_STATUS_OK(backend().HcPost({.out = {out.data(), 3, d},
                                         .post = {post.data(), 3, h},
                                         .comb = {comb.data(), 3, h, h},
                                         .hc = {copies.data(), 3, h, d}}));
      Doubles want;
      for (size_t i = 0; i < n; ++i) {
        for (size_t k = 0; k < hc; ++k) {
          for (size_t c = 0; c < width; ++c) {
            double x = static_cast<double>(post[i * hc + k]) * out[i * width + c];
            for (size_t j = 0; j < hc; ++j) {
              x += static_cast<double>(comb[(i * hc + j) * hc + k]) *
                   before[(i * hc + j) * width + c];
            }
            want.push_back(x);
          }
        }
      }
      ExpectValues(official(), copies, want, 1e-6);
    }
  }
}

TEST_P(HcPost, ChecksItsArguments) {
  std::vector<float> memory(1024);
  float* m = memory.data();
  const HcPostArgs good = {
      .out = {m, 3, 8}, .post = {m, 3, 4}, .comb = {m, 3, 4, 4}, .hc = {m, 3, 4, 8}};
  ASSERT_STATUS_OK(Check(good));
  HcPostArgs bad = good;
  bad.out = {m, 3, 7};
  ExpectRejected(backend().HcPost(bad), "out");
  bad = good;
  bad.post = {m, 4, 3};
  ExpectRejected(backend().HcPost(bad), "post");
  bad = good;
  bad.comb = {m, 3, 16};
  ExpectRejected(backend().HcPost(bad), "comb");
  bad = good;
  bad.hc = {m, 3, 32};
  ExpectRejected(backend().HcPost(bad), "hc");
  bad = {.out = {m, 1, 2}, .post = {m, 1, 9}, .comb = {m, 1, 9, 9}, .hc = {m, 1, 9, 2}};
  ExpectRejected(backend().HcPost(bad), "hc");
}

}  // namespace
}  // namespace fathom
