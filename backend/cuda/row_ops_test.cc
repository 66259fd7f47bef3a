// Operations on rows, CUDA against the reference at the models' sizes and at odd ones, with
// poisoned outputs.
#include <gtest/gtest.h>

#include "backend/cuda/test_support.h"

namespace fathom {
namespace {

using namespace testing_values;  // NOLINT(google-build-using-namespace)

using CudaHc = CudaTest;

struct HcShape {
  int copies;
  int width;
  int n;
};
constexpr HcShape kHcs[] = {{4, 4096, 2}, {4, 7168, 1}, {4, 256, 5}, {4, 256, 18}, {2, 33, 3},
                            {8, 100, 2},  {4, 48, 270}, {3, 33, 20}, {4, 33, 3},   {4, 8, 1100}};

TEST_F(CudaHc, PreNormAndPostEqualTheReference) {
  for (const HcShape& s : kHcs) {
    SCOPED_TRACE(s.width);
    Random random(static_cast<uint32_t>(s.width));
    const int mixes = (2 + s.copies) * s.copies;
    const auto n = static_cast<size_t>(s.n), hc = static_cast<size_t>(s.copies),
               d = static_cast<size_t>(s.width), m = static_cast<size_t>(mixes);
    const std::vector<float> copies = random.Bf16s(n * hc * d, -2.0, 2.0),
                             fn = random.Floats(m * hc * d, -0.05, 0.05), base = random.Floats(m),
                             scale = random.Floats(3, 0.5, 2.0), weight = random.Bf16s(d, 0.5, 1.5);
    std::vector<float> x(n * d), post(n * hc), comb(n * hc * hc);
    const HcPreNormArgs host = {.hc = {copies.data(), s.n, s.copies, s.width},
                                .fn = {fn.data(), mixes, int64_t{s.copies} * s.width},
                                .base = {base.data(), mixes},
                                .scale = {scale.data(), 3},
                                .norm_weight = {weight.data(), s.width},
                                .norm_eps = 1e-6f,
                                .hc_eps = 1e-6f,
                                .sinkhorn_iters = 20,
                                .x = {x.data(), s.n, s.width},
                                .post = {post.data(), s.n, s.copies},
                                .comb = {comb.data(), s.n, s.copies, s.copies}};
    ASSERT_STATUS_OK(reference().HcPreNorm(host));
    HcPreNormArgs device = host;
    device.hc = {Put(copies), s.n, s.copies, s.width};
    device.fn = {Put(fn), mixes, int64_t{s.copies} * s.width};
    device.base = {Put(base), mixes};
    device.scale = {Put(scale), 3};
    device.norm_weight = {Put(weight), s.width};
    device.x = {Poisoned<float>(x.size()), s.n, s.width};
    device.post = {Poisoned<float>(post.size()), s.n, s.copies};
    device.comb = {Poisoned<float>(comb.size()), s.n, s.copies, s.copies};
    ASSERT_STATUS_OK(cuda().HcPreNorm(device));
    ASSERT_STATUS_OK(cuda().Synchronize());
    // The weighted sum may land on the other side of a bf16 boundary, the norm on another.
    ExpectWithinUlps(Get(device.x.data(), x.size()), x, 2.0);
    EXPECT_LE(ShareOfOthers(Get(device.x.data(), x.size()), x), 1e-2);
    ExpectWithin(Get(device.post.data(), post.size()), post, 1e-5);
    ExpectWithin(Get(device.comb.data(), comb.size()), comb, 1e-5);

    // The last row alone has the same bits.
    HcPreNormArgs last = device;
    last.hc = {device.hc.data() + (n - 1) * hc * d, 1, s.copies, s.width};
    last.x = {Poisoned<float>(d), 1, s.width};
    last.post = {Poisoned<float>(hc), 1, s.copies};
    last.comb = {Poisoned<float>(hc * hc), 1, s.copies, s.copies};
    ASSERT_STATUS_OK(cuda().HcPreNorm(last));
    ASSERT_STATUS_OK(cuda().Synchronize());
    EXPECT_EQ(Get(last.x.data(), d), Get(device.x.data() + (n - 1) * d, d));
    EXPECT_EQ(Get(last.post.data(), hc), Get(device.post.data() + (n - 1) * hc, hc));
    EXPECT_EQ(Get(last.comb.data(), hc * hc), Get(device.comb.data() + (n - 1) * hc * hc, hc * hc));

    const std::vector<float> out = random.Bf16s(n * d);
    std::vector<float> after = copies;
    ASSERT_STATUS_OK(reference().HcPost({.out = {out.data(), s.n, s.width},
                                         .post = host.post,
                                         .comb = host.comb,
                                         .hc = {after.data(), s.n, s.copies, s.width}}));
    float* device_after = Put(copies);
    ASSERT_STATUS_OK(cuda().HcPost({.out = {Put(out), s.n, s.width},
                                    .post = {Put(post), s.n, s.copies},
                                    .comb = {Put(comb), s.n, s.copies, s.copies},
                                    .hc = {device_after, s.n, s.copies, s.width}}));
    // The same sums in double.
    EXPECT_EQ(Get(device_after, after.size()), after);
  }
}

using CudaRows = CudaTest;

TEST_F(CudaRows, NormsEqualTheReference) {
  for (const int width : {1, 7, 64, 512, 1024, 1536, 4096, 7168}) {
    Random random(static_cast<uint32_t>(width));
    const auto d = static_cast<size_t>(width);
    const std::vector<float> x = random.Bf16s(3 * d, -3.0, 3.0), weight = random.Bf16s(d, 0.5, 2.0);
    std::vector<float> want(x.size());
    ASSERT_STATUS_OK(reference().RmsNorm({.x = {x.data(), 3, width},
                                          .weight = {weight.data(), width},
                                          .eps = 1e-6f,
                                          .out = {want.data(), 3, width}}));
    float* out = Poisoned<float>(want.size());
    ASSERT_STATUS_OK(cuda().RmsNorm({.x = {Put(x), 3, width},
                                     .weight = {Put(weight), width},
                                     .eps = 1e-6f,
                                     .out = {out, 3, width}}));
    ExpectWithinUlps(Get(out, want.size()), want, 1.0);
  }
}

TEST_F(CudaRows, RotationsOfLatePositionsEqualTheReference) {
  std::vector<Position> positions;
  for (int i = 0; i < 300; ++i) positions.push_back(3'507 * i);
  std::vector<float> frequencies;
  for (int k = 0; k < 32; ++k) {
    frequencies.push_back(static_cast<float>(std::pow(160000.0, -k / 32.0)));
  }
  std::vector<float> want(positions.size() * 64);
  RopeTableArgs args = {.positions = positions,
                        .frequencies = {frequencies.data(), 32},
                        .cos_sin = {want.data(), 300, 32, 2}};
  ASSERT_STATUS_OK(reference().RopeTable(args));
  args.frequencies = {Put(frequencies), 32};
  args.cos_sin = {Poisoned<float>(want.size()), 300, 32, 2};
  ASSERT_STATUS_OK(cuda().RopeTable(args));
  const std::vector<float> got = Get(static_cast<const float*>(args.cos_sin.data()), want.size());
  // Two libraries' sines in double, rounded to fp32: the nearest values but where both are within
  // 2^-50 of a midpoint.
  ExpectWithin(got, want, 0x1p-24);
  EXPECT_LE(ShareOfOthers(got, want), 1e-3);
}

TEST_F(CudaRows, RoutesEqualTheReference) {
  struct Gate {
    int experts, cols, chosen, n;
  };
  for (const Gate& s :
       {Gate{256, 4096, 6, 3}, {384, 7168, 6, 1}, {16, 256, 4, 19}, {5, 33, 5, 2}}) {
    for (const RouteScoring scoring :
         {RouteScoring::kSqrtSoftplus, RouteScoring::kSigmoid, RouteScoring::kSoftmax}) {
      Random random(static_cast<uint32_t>(s.experts + s.n));
      TestWeight gate(DType::kBF16, s.experts, s.cols);
      for (int e = 0; e < s.experts; ++e) {
        for (int c = 0; c < s.cols; ++c) gate.Set(e, c, Bf16(random.Uniform(-0.05, 0.05)));
      }
      const auto n = static_cast<size_t>(s.n), k = static_cast<size_t>(s.chosen);
      const std::vector<float> x = random.Bf16s(n * static_cast<size_t>(s.cols), -2.0, 2.0),
                               bias = random.Floats(static_cast<size_t>(s.experts), -0.3, 0.3);
      std::vector<int32_t> experts(n * k);
      std::vector<float> weights(n * k);
      RouteArgs args = {.x = {x.data(), s.n, s.cols},
                        .gate = gate.view(),
                        .bias = {bias.data(), s.experts},
                        .hash_table = {},
                        .token_ids = {},
                        .scoring = scoring,
                        .scale = 1.5f,
                        .experts = {experts.data(), s.n, s.chosen},
                        .weights = {weights.data(), s.n, s.chosen}};
      ASSERT_STATUS_OK(reference().Route(args));
      args.x = {Put(x), s.n, s.cols};
      args.gate = Put(gate);
      args.bias = {Put(bias), s.experts};
      args.experts = {Poisoned<int32_t>(experts.size()), s.n, s.chosen};
      args.weights = {Poisoned<float>(weights.size()), s.n, s.chosen};
      ASSERT_STATUS_OK(cuda().Route(args));
      // Sums in double: no score is near enough to another to change places.
      EXPECT_EQ(Get(static_cast<const int32_t*>(args.experts.data()), experts.size()), experts);
      ExpectRelativeL2(Get(static_cast<const float*>(args.weights.data()), weights.size()), weights,
                       1e-5);
    }
  }
}

TEST_F(CudaRows, EmbeddingsAndLogitsEqualTheReference) {
  struct Model {
    int vocab, width, copies;
  };
  for (const Model& s : {Model{1000, 4096, 4}, {300, 7168, 4}, {512, 256, 4}, {7, 33, 2}}) {
    SCOPED_TRACE(s.width);
    Random random(static_cast<uint32_t>(s.width));
    const auto d = static_cast<size_t>(s.width), hc = static_cast<size_t>(s.copies),
               v = static_cast<size_t>(s.vocab);
    const TestWeight table = TestWeight::Random(random, DType::kBF16, s.vocab, s.width);
    const WeightView device_table = Put(table);
    const std::vector<TokenId> ids = {0, s.vocab - 1, 3};
    std::vector<float> copies(3 * hc * d);
    ASSERT_STATUS_OK(reference().EmbedExpand(
        {.token_ids = ids, .table = table.view(), .hc = {copies.data(), 3, s.copies, s.width}}));
    float* device_copies = Poisoned<float>(copies.size());
    ASSERT_STATUS_OK(cuda().EmbedExpand(
        {.token_ids = ids, .table = device_table, .hc = {device_copies, 3, s.copies, s.width}}));
    EXPECT_EQ(Get(device_copies, copies.size()), copies);

    const std::vector<float> fn = random.Floats(hc * hc * d, -0.05, 0.05), base = random.Floats(hc),
                             scale = {1.25f}, weight = random.Bf16s(d, 0.5, 1.5);
    const std::vector<int> rows = {2, 0};
    std::vector<float> logits(2 * v);
    HeadArgs args = {.hc = {copies.data(), 3, s.copies, s.width},
                     .rows = rows,
                     .fn = {fn.data(), s.copies, int64_t{s.copies} * s.width},
                     .base = {base.data(), s.copies},
                     .scale = {scale.data(), 1},
                     .norm_weight = {weight.data(), s.width},
                     .head = table.view(),
                     .norm_eps = 1e-6f,
                     .hc_eps = 1e-6f,
                     .logits = {logits.data(), 2, s.vocab}};
    ASSERT_STATUS_OK(reference().Head(args));
    args.hc = {device_copies, 3, s.copies, s.width};
    args.fn = {Put(fn), s.copies, int64_t{s.copies} * s.width};
    args.base = {Put(base), s.copies};
    args.scale = {Put(scale), 1};
    args.norm_weight = {Put(weight), s.width};
    args.head = device_table;
    args.logits = {Poisoned<float>(logits.size()), 2, s.vocab};
    ASSERT_STATUS_OK(cuda().Head(args));
    // A bf16 rounding of x that falls the other way in one channel of thousands: 2^-8 / 50.
    ExpectRelativeL2(Get(static_cast<const float*>(args.logits.data()), logits.size()), logits,
                     1e-4);
  }
}

TEST_F(CudaRows, OutputProjectionsEqualTheReference) {
  struct Out {
    int heads, dim, pairs, groups, rank, n;
    DType dtype;
    bool quantise = false;
  };
  // Flash's, Pro's and nano's heads; steps for few inputs and for many; heads that two groups of
  // 128 columns share, whose pairs no lane has whole; ranks that tiles don't take.
  for (const Out& s : {Out{64, 512, 32, 8, 128, 2, DType::kF8E4M3},
                       {64, 512, 32, 8, 128, 2, DType::kF8E4M3, true},
                       {128, 512, 32, 16, 64, 1, DType::kF8E4M3},
                       {128, 512, 32, 16, 64, 1, DType::kF8E4M3, true},
                       {8, 64, 8, 2, 32, 7, DType::kF8E4M3},
                       {8, 64, 8, 2, 32, 7, DType::kF8E4M3, true},
                       {4, 256, 8, 2, 128, 150, DType::kF8E4M3},
                       {4, 256, 8, 2, 128, 150, DType::kF8E4M3, true},
                       {8, 96, 7, 2, 16, 3, DType::kF8E4M3, true},
                       {128, 6, 2, 2, 16, 3, DType::kF8E4M3, true},
                       {128, 6, 2, 2, 16, 3, DType::kBF16},
                       {8, 64, 8, 2, 5, 7, DType::kF8E4M3, true},
                       {8, 64, 8, 2, 16, 7, DType::kI8, true},
                       {6, 37, 5, 3, 5, 4, DType::kBF16}}) {
    SCOPED_TRACE(testing::Message()
                 << s.heads << " heads of " << s.dim << (s.quantise ? ", e4m3" : ""));
    Random random(static_cast<uint32_t>(s.heads));
    const int rows = s.groups * s.rank, cols = s.heads / s.groups * s.dim;
    const TestWeight wo_a = TestWeight::Random(random, s.dtype, rows, cols);
    const auto n = static_cast<size_t>(s.n);
    std::vector<float> o = random.Bf16s(n * static_cast<size_t>(s.heads * s.dim));
    std::vector<float> cos_sin;
    for (int i = 0; i < s.n * s.pairs; ++i) AppendCosSin({random.Uniform(-3.0, 3.0)}, cos_sin);
    float* device_o = Put(o);
    std::vector<float> want(n * static_cast<size_t>(rows));
    ASSERT_STATUS_OK(reference().InverseRopeOut({.o = {o.data(), s.n, s.heads, s.dim},
                                                 .cos_sin = {cos_sin.data(), s.n, s.pairs, 2},
                                                 .wo_a = wo_a.view(),
                                                 .groups = s.groups,
                                                 .out = {want.data(), s.n, rows},
                                                 .quantise_input = s.quantise}));
    float* out = Poisoned<float>(want.size());
    ASSERT_STATUS_OK(cuda().InverseRopeOut({.o = {device_o, s.n, s.heads, s.dim},
                                            .cos_sin = {Put(cos_sin), s.n, s.pairs, 2},
                                            .wo_a = Put(wo_a),
                                            .groups = s.groups,
                                            .out = {out, s.n, rows},
                                            .quantise_input = s.quantise}));
    ExpectRelativeL2(Get(out, want.size()), want, 3e-3);
  }
}

}  // namespace
}  // namespace fathom
