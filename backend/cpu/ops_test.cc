// Every operation of CpuBackend: against the reference on the same inputs, and against itself for
// other numbers of threads and for its rows one by one.
#include <gtest/gtest.h>

#include <bit>
#include <functional>
#include <memory>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/test_support.h"
#include "backend/cpu/test_targets.h"
#include "backend/reference/reference_backend.h"

namespace fathom {
namespace {

using test::MakeWeight;
using test::Random;
using test::TestWeight;
using test::View;

constexpr Numerics kBothNumerics[] = {Numerics::kOfficial, Numerics::kExact};

BackendLimits Limits() {
  BackendLimits limits;
  limits.max_rows = 300;
  limits.max_cols = 1024;
  limits.max_experts = 40;
  limits.max_experts_per_token = 8;
  limits.max_expert_width = 256;
  limits.max_heads = 8;
  limits.max_head_dim = 128;
  limits.max_positions = 4096;
  return limits;
}

void ExpectOk(const Status& status) { ASSERT_TRUE(status.ok()) << status.ToString(); }

// Runs an operation on rows [first, first + count) of its inputs and returns its outputs, row after
// row.
using RowsOp = std::function<std::vector<float>(Backend&, int first, int count)>;

// Bit for bit: any number of threads, and each row on its own, and an uneven split. Returns the
// outputs.
std::vector<float> ExpectInvariant(Numerics numerics, int rows, const RowsOp& op,
                                   const CpuOptions& options = {},
                                   std::span<const WeightView> weights = {}) {
  const auto prepare = [&](CpuBackend& backend) {
    ExpectOk(backend.Prepare(Limits()));
    for (const WeightView& weight : weights) ExpectOk(backend.AddWeight(weight));
  };
  CpuBackend one(numerics, 1, options);
  prepare(one);
  const std::vector<float> all = op(one, 0, rows);
  for (int threads : {2, 3}) {
    CpuBackend backend(numerics, threads, options);
    prepare(backend);
    EXPECT_EQ(op(backend, 0, rows), all) << threads << " threads";
    std::vector<float> parts;
    for (int first = 0, size = 1; first < rows; first += size, size = 2 * size + 1) {
      const std::vector<float> part = op(backend, first, std::min(size, rows - first));
      parts.insert(parts.end(), part.begin(), part.end());
    }
    EXPECT_EQ(parts, all) << "parts of growing size, " << threads << " threads";
  }
  std::vector<float> single;
  for (int row = 0; row < rows; ++row) {
    const std::vector<float> part = op(one, row, 1);
    single.insert(single.end(), part.begin(), part.end());
  }
  EXPECT_EQ(single, all) << "row by row";
  return all;
}

std::vector<float> Reference(Numerics numerics, int rows, const RowsOp& op) {
  ReferenceBackend reference(numerics);
  return op(reference, 0, rows);
}

// One unit in the last place of a bf16 of this size.
double Bf16Ulp(double x) {
  const double a = std::max(std::fabs(x), 0x1p-100);
  return std::ldexp(1.0, std::ilogb(a) - 7);
}

// bound(i) is the fp32 error; a bf16 result may land one step further.
void ExpectNear(const std::vector<float>& got, const std::vector<float>& want, bool bf16,
                const std::function<double(size_t)>& bound) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double tolerance =
        bound(i) + (bf16 ? Bf16Ulp(std::max(std::fabs(static_cast<double>(got[i])),
                                            std::fabs(static_cast<double>(want[i]))))
                         : 0.0);
    ASSERT_NEAR(got[i], want[i], tolerance) << "element " << i;
  }
}

double RelativeError(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double d = static_cast<double>(got[i]) - static_cast<double>(want[i]);
    difference += d * d;
    norm += static_cast<double>(want[i]) * static_cast<double>(want[i]);
  }
  return std::sqrt(difference / norm);
}

std::vector<float> Abs(std::vector<float> v) {
  for (float& x : v) x = std::fabs(x);
  return v;
}

TestWeight Abs(TestWeight w) {
  const WeightView view = w.view;
  const size_t bytes = view.dtype == DType::kBF16 ? 2 : view.dtype == DType::kF32 ? 4 : 1;
  for (size_t i = bytes - 1; i < w.data.size(); i += bytes) {
    w.data[i] &= view.dtype == DType::kI8 ? 0x77 : 0x7F;
  }
  w.view.data = w.data.data();
  w.view.scale = w.scale.empty() ? nullptr : w.scale.data();
  return w;
}

class CpuOps : public test::PerTarget {};
FATHOM_FOR_TARGETS(CpuOps, test::FastTargets());

RowsOp LinearOp(std::vector<float>& x, int cols, const WeightView& first, const WeightView& second,
                bool round) {
  return [&x, cols, first, second, round](Backend& backend, int begin, int count) {
    std::vector<float> y(static_cast<size_t>(count * first.rows)), z;
    LinearArgs args;
    args.x = {x.data() + int64_t{begin} * cols, count, cols};
    args.first = {first, View(y, count)};
    if (!second.empty()) {
      z.resize(static_cast<size_t>(count * second.rows));
      args.second = {second, View(z, count)};
    }
    args.round_output = round;
    ExpectOk(backend.Linear(args));
    std::vector<float> out;
    for (int i = 0; i < count; ++i) {
      out.insert(out.end(), y.begin() + i * first.rows, y.begin() + (i + 1) * first.rows);
      if (!second.empty()) {
        out.insert(out.end(), z.begin() + i * second.rows, z.begin() + (i + 1) * second.rows);
      }
    }
    return out;
  };
}

TEST_P(CpuOps, Linear) {
  Random random(11);
  struct Shape {
    DType dtype;
    int rows, cols, n;
  };
  const Shape shapes[] = {{DType::kF8E4M3, 128, 256, 9}, {DType::kF8E4M3, 37, 128, 5},
                          {DType::kI8, 96, 384, 6},      {DType::kI8, 1, 128, 3},
                          {DType::kBF16, 50, 77, 7},     {DType::kBF16, 33, 3, 4},
                          {DType::kF32, 20, 100, 66}};
  for (Numerics numerics : kBothNumerics) {
    for (const Shape& s : shapes) {
      for (bool round : {true, false}) {
        const TestWeight first = MakeWeight(random, s.dtype, s.rows, s.cols);
        const TestWeight second = MakeWeight(random, s.dtype, s.rows / 2 + 3, s.cols);
        std::vector<float> x = random.Bf16s(int64_t{s.n} * s.cols);
        const RowsOp op = LinearOp(x, s.cols, first.view, second.view, round);
        const std::vector<float> got = ExpectInvariant(numerics, s.n, op);
        const std::vector<float> want = Reference(numerics, s.n, op);
        // fp32 sum of `cols` products, against one in double: cols * 2^-24 of the sum of
        // magnitudes.
        std::vector<float> abs_x = Abs(x);
        const TestWeight abs_first = Abs(first), abs_second = Abs(second);
        const std::vector<float> magnitude = Reference(
            numerics, s.n, LinearOp(abs_x, s.cols, abs_first.view, abs_second.view, false));
        ExpectNear(got, want, round && numerics == Numerics::kOfficial, [&](size_t i) {
          return (s.cols + 1) * 0x1p-24 * static_cast<double>(magnitude[i]);
        });
      }
    }
  }
}

TEST_P(CpuOps, LinearOfManyRowsIsSplitWithoutAChange) {
  Random random(12);
  const TestWeight w = MakeWeight(random, DType::kBF16, 16, 64);
  std::vector<float> x = random.Bf16s(int64_t{290} * 64);
  ExpectInvariant(Numerics::kOfficial, 290, LinearOp(x, 64, w.view, {}, true));
}

// Integers times e2m1 halves: every fp32 sum is exact, so order cannot matter and bits must agree.
TEST_P(CpuOps, LinearIsBitEqualToTheReferenceWhereSumsAreExact) {
  Random random(13);
  for (DType dtype : {DType::kI8, DType::kF8E4M3}) {
    TestWeight w = MakeWeight(random, dtype, 64, 256, 127);
    if (dtype == DType::kF8E4M3) {
      for (uint8_t& c : w.data) c = static_cast<uint8_t>((c & 0x80) | (0x30 + (c & 0x0F)));
    }
    std::vector<float> x(7 * 256);
    for (float& v : x) v = static_cast<float>(random.Int(-8, 8));
    const RowsOp op = LinearOp(x, 256, w.view, {}, false);
    EXPECT_EQ(ExpectInvariant(Numerics::kOfficial, 7, op), Reference(Numerics::kOfficial, 7, op));
  }
}

// Experts, routing and inputs of one MoE layer.
struct MoeCase {
  int dim, width, shared_width, num_experts, k, n;
  DType routed_dtype, shared_dtype;
  std::vector<TestWeight> weights;
  std::vector<ExpertWeights> routed;
  ExpertWeights shared;
  std::vector<float> x, mix;
  std::vector<int32_t> experts;

  void Make(Random& random, int middle) {
    const auto expert = [&](DType dtype, int rows) {
      const size_t at = weights.size();
      weights.push_back(MakeWeight(random, dtype, rows, dim, middle));
      weights.push_back(MakeWeight(random, dtype, dim, rows, middle));
      weights.push_back(MakeWeight(random, dtype, rows, dim, middle));
      return ExpertWeights{weights[at].view, weights[at + 1].view, weights[at + 2].view};
    };
    weights.reserve(static_cast<size_t>(3 * (num_experts + 1)));
    for (int e = 0; e < num_experts; ++e) routed.push_back(expert(routed_dtype, width));
    shared = expert(shared_dtype, shared_width);
    x = random.Bf16s(int64_t{n} * dim);
    for (int i = 0; i < n; ++i) {
      std::vector<int32_t> ids(static_cast<size_t>(num_experts));
      for (int e = 0; e < num_experts; ++e) ids[static_cast<size_t>(e)] = e;
      for (int s = 0; s < k; ++s) {
        std::swap(ids[static_cast<size_t>(s)],
                  ids[static_cast<size_t>(random.Int(s, num_experts - 1))]);
        experts.push_back(ids[static_cast<size_t>(s)]);
        mix.push_back(static_cast<float>(random.Int(1, 100)) * 0.01f);
      }
    }
  }
  [[nodiscard]] RowsOp Op(float limit) {
    return [this, limit](Backend& backend, int begin, int count) {
      std::vector<float> out(static_cast<size_t>(count * dim), -7.0f);
      MoeArgs args;
      args.x = {x.data() + int64_t{begin} * dim, count, dim};
      args.experts = {experts.data() + int64_t{begin} * k, count, k};
      args.weights = {mix.data() + int64_t{begin} * k, count, k};
      args.routed = routed;
      args.shared = shared;
      args.swiglu_limit = limit;
      args.out = View(out, count);
      ExpectOk(backend.Moe(args));
      return out;
    };
  }
};

TEST_P(CpuOps, Moe) {
  Random random(14);
  for (Numerics numerics : kBothNumerics) {
    for (float limit : {0.0f, 1.5f}) {
      MoeCase c{256, 128, 256, 10, 4, 23, DType::kI8, DType::kF8E4M3, {}, {}, {}, {}, {}, {}};
      c.Make(random, 119);
      const std::vector<float> got = ExpectInvariant(numerics, c.n, c.Op(limit));
      // Gate and up are bf16 roundings of fp32 sums; one that falls on the other side changes h by
      // a bf16 step and its e4m3 code by up to 2^-3 of one of 128 terms. docs: rel < 5e-3.
      const double error = RelativeError(got, Reference(numerics, c.n, c.Op(limit)));
      EXPECT_LT(error, numerics == Numerics::kOfficial ? 5e-3 : 1e-5);
    }
  }
}

TEST_P(CpuOps, MoeWithUnquantisedExpertsOfOddWidths) {
  Random random(15);
  for (Numerics numerics : kBothNumerics) {
    MoeCase c{72, 40, 24, 3, 3, 9, DType::kBF16, DType::kF32, {}, {}, {}, {}, {}, {}};
    c.Make(random, 119);
    const std::vector<float> got = ExpectInvariant(numerics, c.n, c.Op(10.0f));
    const double error = RelativeError(got, Reference(numerics, c.n, c.Op(10.0f)));
    EXPECT_LT(error, numerics == Numerics::kOfficial ? 5e-3 : 1e-5);
  }
}

// Exact sums in front of SiLU, so that h and its codes are those of the reference.
TEST_P(CpuOps, MoeOfExactSumsDiffersOnlyInTheLastSum) {
  Random random(16);
  MoeCase c{256, 128, 128, 6, 3, 12, DType::kI8, DType::kI8, {}, {}, {}, {}, {}, {}};
  c.Make(random, 121);
  for (float& v : c.x) v = static_cast<float>(random.Int(-4, 4));
  const std::vector<float> got = ExpectInvariant(Numerics::kOfficial, c.n, c.Op(10.0f));
  const std::vector<float> want = Reference(Numerics::kOfficial, c.n, c.Op(10.0f));
  // h is at most 100 and w2 at most 6 * 2^-3: fp32 sums of 128 terms are off by at most
  // 128 * 2^-24 * 128 * 75 < 0.08, four experts of them, and each may flip one bf16 step. Nearly
  // all elements are equal, which a wrong code would not leave so.
  size_t different = 0;
  for (size_t i = 0; i < got.size(); ++i) different += got[i] != want[i] ? 1 : 0;
  EXPECT_LT(different, got.size() / 50);
  EXPECT_LT(RelativeError(got, want), 1e-3);
}

// The int8 options: as invariant as all else, and nearer to the unrounded product than the official
// e4m3 inputs are.
TEST_P(CpuOps, Int8ActivationsOfFp4Weights) {
  Random random(21);
  const TestWeight w = MakeWeight(random, DType::kI8, 80, 1024);
  std::vector<float> x = random.Bf16s(int64_t{23} * 1024);
  const RowsOp op = LinearOp(x, 1024, w.view, {}, false);
  const std::vector<float> want = Reference(Numerics::kExact, 23, op);
  const double official = RelativeError(ExpectInvariant(Numerics::kOfficial, 23, op), want);
  const CpuOptions options{.int8_activations = true};
  const double error = RelativeError(ExpectInvariant(Numerics::kOfficial, 23, op, options), want);
  EXPECT_GT(error, 1e-4) << "nothing was rounded";
  EXPECT_LT(error, 0.015);
  EXPECT_LT(error, 1.2 * official);
  // Exact numerics round nothing, whatever the options.
  EXPECT_LT(RelativeError(ExpectInvariant(Numerics::kExact, 23, op, options), want), 1e-5);
}

TEST_P(CpuOps, Int8CopiesOfFp8Weights) {
  Random random(22);
  // Rows that are no whole panel stay as they are.
  for (int rows : {96, 33}) {
    TestWeight w = MakeWeight(random, DType::kF8E4M3, rows, 512);
    // Like trained weights: normal, with one scale per block.
    for (uint8_t& c : w.data) c = FloatToE4m3(random.Normal() * 100.0f);
    std::vector<float> x = random.Bf16s(int64_t{23} * 512);
    const RowsOp op = LinearOp(x, 512, w.view, {}, false);
    const WeightView weights[] = {w.view};
    const std::vector<float> want = Reference(Numerics::kExact, 23, op);
    const std::vector<float> official = ExpectInvariant(Numerics::kOfficial, 23, op);
    const std::vector<float> got =
        ExpectInvariant(Numerics::kOfficial, 23, op, {.int8_dense = true}, weights);
    if (rows == 33) {
      EXPECT_EQ(got, official);
      continue;
    }
    EXPECT_NE(got, official);
    EXPECT_LT(RelativeError(got, want), 0.015);
    EXPECT_EQ(ExpectInvariant(Numerics::kExact, 23, op, {.int8_dense = true}, weights),
              ExpectInvariant(Numerics::kExact, 23, op));
  }
}

TEST_P(CpuOps, MoeAndOutputProjectionTakeInt8Too) {
  Random random(23);
  MoeCase c{256, 128, 256, 10, 4, 23, DType::kI8, DType::kF8E4M3, {}, {}, {}, {}, {}, {}};
  c.Make(random, 119);
  for (TestWeight& w : c.weights) {
    if (w.view.dtype != DType::kF8E4M3) continue;
    for (uint8_t& code : w.data) code = FloatToE4m3(random.Normal() * 100.0f);
  }
  const CpuOptions options{.int8_activations = true, .int8_dense = true};
  const WeightView shared[] = {c.shared.w1, c.shared.w2, c.shared.w3};
  const std::vector<float> want = Reference(Numerics::kExact, c.n, c.Op(10.0f));
  const std::vector<float> official = Reference(Numerics::kOfficial, c.n, c.Op(10.0f));
  const std::vector<float> got =
      ExpectInvariant(Numerics::kOfficial, c.n, c.Op(10.0f), options, shared);
  EXPECT_LT(RelativeError(got, want), RelativeError(official, want));
  EXPECT_NE(got, official);

  constexpr int kHeads = 4, kHeadDim = 128, kGroups = 2, kRank = 48, kRows = 21;
  constexpr int kWidth = kHeads * kHeadDim;
  TestWeight wo_a = MakeWeight(random, DType::kF8E4M3, kGroups * kRank, kWidth / kGroups);
  for (uint8_t& code : wo_a.data) code = FloatToE4m3(random.Normal() * 100.0f);
  std::vector<float> o = random.Bf16s(int64_t{kRows} * kWidth), turns(kRows * 64);
  for (size_t i = 0; i < turns.size(); i += 2) turns[i] = 1.0f;
  const RowsOp op = [&](Backend& backend, int begin, int count) {
    std::vector<float> heads(o.begin() + begin * kWidth, o.begin() + (begin + count) * kWidth);
    std::vector<float> out(static_cast<size_t>(count * wo_a.view.rows));
    ExpectOk(backend.InverseRopeOut({{heads.data(), count, kHeads, kHeadDim},
                                     {turns.data() + begin * 64, count, 32, 2},
                                     wo_a.view,
                                     kGroups,
                                     View(out, count)}));
    return out;
  };
  const WeightView weights[] = {wo_a.view};
  const std::vector<float> projected =
      ExpectInvariant(Numerics::kOfficial, kRows, op, options, weights);
  EXPECT_LT(RelativeError(projected, Reference(Numerics::kOfficial, kRows, op)), 0.015);
}

TEST_P(CpuOps, Route) {
  Random random(17);
  constexpr int kDim = 96, kExperts = 40, kChosen = 6, kRows = 70, kVocab = 30;
  const TestWeight gate = MakeWeight(random, DType::kBF16, kExperts, kDim);
  std::vector<float> x = random.Bf16s(int64_t{kRows} * kDim);
  std::vector<float> bias = random.Normals(kExperts, 0.1f);
  std::vector<TokenId> ids;
  for (int i = 0; i < kRows; ++i) ids.push_back(random.Int(0, kVocab - 1));
  std::vector<int64_t> table;
  for (int i = 0; i < kVocab * kChosen; ++i) table.push_back((i * 7 + i / kChosen) % kExperts);
  for (bool hashed : {false, true}) {
    for (RouteScoring scoring :
         {RouteScoring::kSqrtSoftplus, RouteScoring::kSigmoid, RouteScoring::kSoftmax}) {
      const RowsOp op = [&](Backend& backend, int begin, int count) {
        std::vector<int32_t> experts(static_cast<size_t>(count * kChosen));
        std::vector<float> weights(experts.size());
        RouteArgs args;
        args.x = {x.data() + int64_t{begin} * kDim, count, kDim};
        args.gate = gate.view;
        if (hashed) {
          args.hash_table = {table.data(), kVocab, kChosen};
        } else {
          args.bias = {bias.data(), kExperts};
        }
        args.token_ids =
            std::span(ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
        args.scoring = scoring;
        args.scale = 1.5f;
        args.experts = {experts.data(), count, kChosen};
        args.weights = View(weights, count);
        ExpectOk(backend.Route(args));
        std::vector<float> out;
        for (int i = 0; i < count * kChosen; ++i) {
          out.push_back(static_cast<float>(experts[static_cast<size_t>(i)]));
          out.push_back(weights[static_cast<size_t>(i)]);
        }
        return out;
      };
      const std::vector<float> got = ExpectInvariant(Numerics::kOfficial, kRows, op);
      const std::vector<float> want = Reference(Numerics::kOfficial, kRows, op);
      for (size_t i = 0; i < got.size(); i += 2) {
        ASSERT_EQ(got[i], want[i]) << "expert";
        // Logits are below 4 and off by at most 96 * 2^-24 * 4; that is also the relative error of
        // the weight, twice with the sum it is divided by.
        ASSERT_NEAR(got[i + 1], want[i + 1], 96 * 0x1p-24 * 16 * std::fabs(want[i + 1]));
      }
    }
  }
}

TEST_P(CpuOps, RouteTiesGoToTheSmallerExpertAndBadHashTablesAreAnError) {
  std::vector<float> zeros(64 * 8, 0.0f), bias(8, 0.25f), x(64, 1.0f);
  const WeightView gate{DType::kF32, zeros.data(), nullptr, 8, 64};
  std::vector<int32_t> experts(3);
  std::vector<float> weights(3);
  CpuBackend backend(Numerics::kOfficial, 2);
  ExpectOk(backend.Prepare(Limits()));
  RouteArgs args;
  args.x = {x.data(), 1, 64};
  args.gate = gate;
  args.bias = {bias.data(), 8};
  args.experts = {experts.data(), 1, 3};
  args.weights = {weights.data(), 1, 3};
  ExpectOk(backend.Route(args));
  EXPECT_EQ(experts, (std::vector<int32_t>{0, 1, 2}));
  bias[5] = 0.5f;
  ExpectOk(backend.Route(args));
  EXPECT_EQ(experts, (std::vector<int32_t>{5, 0, 1}));

  const TokenId token = 0;
  for (int64_t bad : {int64_t{8}, int64_t{-1}, int64_t{1} << 40}) {
    const int64_t table[] = {0, bad, 1};
    args.hash_table = {table, 1, 3};
    args.token_ids = {&token, 1};
    EXPECT_EQ(backend.Route(args).code(), StatusCode::kDataLoss);
  }
}

TEST_P(CpuOps, HcPreNormHcPostAndHead) {
  Random random(18);
  for (Numerics numerics : kBothNumerics) {
    for (const auto& [hc, dim, rows] : {std::tuple{4, 256, 37}, {2, 51, 5}, {3, 64, 3}}) {
      const int mixes = (2 + hc) * hc, cols = hc * dim;
      std::vector<float> copies = random.Bf16s(int64_t{rows} * cols);
      std::vector<float> fn = random.Normals(int64_t{mixes} * cols, 0.05f);
      std::vector<float> base = random.Normals(mixes), scale = random.Normals(3);
      std::vector<float> norm = random.Bf16s(dim);
      const bool bf16 = numerics == Numerics::kOfficial;

      const RowsOp pre = [&](Backend& backend, int begin, int count) {
        std::vector<float> x(static_cast<size_t>(count * dim)),
            post(static_cast<size_t>(count * hc));
        std::vector<float> comb(static_cast<size_t>(count * hc * hc));
        HcPreNormArgs args;
        args.hc = {copies.data() + int64_t{begin} * cols, count, hc, dim};
        args.fn = {fn.data(), mixes, cols};
        args.base = {base.data(), mixes};
        args.scale = {scale.data(), 3};
        args.norm_weight = {norm.data(), dim};
        args.norm_eps = args.hc_eps = 1e-6f;
        args.sinkhorn_iters = 20;
        args.x = View(x, count);
        args.post = View(post, count);
        args.comb = {comb.data(), count, hc, hc};
        ExpectOk(backend.HcPreNorm(args));
        std::vector<float> out;
        for (int i = 0; i < count; ++i) {
          out.insert(out.end(), x.begin() + i * dim, x.begin() + (i + 1) * dim);
          out.insert(out.end(), post.begin() + i * hc, post.begin() + (i + 1) * hc);
          out.insert(out.end(), comb.begin() + i * hc * hc, comb.begin() + (i + 1) * hc * hc);
        }
        return out;
      };
      const std::vector<float> got = ExpectInvariant(numerics, rows, pre);
      const std::vector<float> want = Reference(numerics, rows, pre);
      const auto row_size = static_cast<size_t>(dim + hc + hc * hc);
      for (size_t i = 0; i < got.size(); ++i) {
        const double a = got[i], b = want[i];
        if (i % row_size < static_cast<size_t>(dim) && bf16) {
          // y may flip one bf16 step, 2^-8 of it at most; so may the norm's result on top.
          ASSERT_NEAR(a, b, 2 * Bf16Ulp(std::max(std::fabs(a), std::fabs(b)))) << i;
        } else {
          // Mixes are sums of `cols` fp32 products of typical size 0.05: 1024 * 2^-24 * 0.05 each,
          // and all that follows is smooth with slopes below 10.
          ASSERT_NEAR(a, b, 1e-4 * std::max(1.0, std::fabs(b))) << i;
        }
      }

      std::vector<float> out = random.Bf16s(int64_t{rows} * dim);
      std::vector<float> post = random.Normals(int64_t{rows} * hc);
      std::vector<float> comb = random.Normals(int64_t{rows} * hc * hc, 0.5f);
      const RowsOp after = [&](Backend& backend, int begin, int count) {
        std::vector<float> x(copies.begin() + begin * cols,
                             copies.begin() + (begin + count) * cols);
        HcPostArgs args;
        args.out = {out.data() + int64_t{begin} * dim, count, dim};
        args.post = {post.data() + int64_t{begin} * hc, count, hc};
        args.comb = {comb.data() + int64_t{begin} * hc * hc, count, hc, hc};
        args.hc = {x.data(), count, hc, dim};
        ExpectOk(backend.HcPost(args));
        return x;
      };
      // Both sum in double, in the same order.
      EXPECT_EQ(ExpectInvariant(numerics, rows, after), Reference(numerics, rows, after));

      constexpr int kVocab = 45;
      const TestWeight table = MakeWeight(random, DType::kBF16, kVocab, dim);
      const RowsOp head = [&](Backend& backend, int begin, int count) {
        std::vector<float> logits(static_cast<size_t>(count) * kVocab);
        std::vector<int> wanted;
        for (int i = 0; i < count; ++i) wanted.push_back(begin + i);
        HeadArgs args;
        args.hc = {copies.data(), rows, hc, dim};
        args.rows = wanted;
        args.fn = {fn.data(), hc, cols};
        args.base = {base.data(), hc};
        args.scale = {scale.data(), 1};
        args.norm_weight = {norm.data(), dim};
        args.head = table.view;
        args.norm_eps = args.hc_eps = 1e-6f;
        args.logits = View(logits, count);
        ExpectOk(backend.Head(args));
        return logits;
      };
      // In official numerics a few of the inputs may be a bf16 step off; see above.
      EXPECT_LT(
          RelativeError(ExpectInvariant(numerics, rows, head), Reference(numerics, rows, head)),
          bf16 ? 2e-3 : 1e-5);
    }
  }
}

TEST_P(CpuOps, NormEmbeddingRopeTableAndInverseRope) {
  Random random(19);
  for (Numerics numerics : kBothNumerics) {
    constexpr int kRows = 33, kDim = 200;
    std::vector<float> x = random.Bf16s(int64_t{kRows} * kDim), weight = random.Bf16s(kDim);
    const RowsOp norm = [&](Backend& backend, int begin, int count) {
      std::vector<float> out(x.begin() + begin * kDim, x.begin() + (begin + count) * kDim);
      ExpectOk(backend.RmsNorm({View(out, count), {weight.data(), kDim}, 1e-6f, View(out, count)}));
      return out;
    };
    // The mean is taken in double by both; a different order changes it with a chance of 2^-29.
    EXPECT_EQ(ExpectInvariant(numerics, kRows, norm), Reference(numerics, kRows, norm));

    const TestWeight table = MakeWeight(random, DType::kBF16, 50, kDim);
    std::vector<TokenId> ids;
    std::vector<Position> positions;
    for (int i = 0; i < kRows; ++i) {
      ids.push_back(random.Int(0, 49));
      positions.push_back(random.Int(0, 1'000'000));
    }
    const auto part = [](const auto& v, int begin, int count) {
      return std::span(v).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
    };
    const RowsOp embed = [&](Backend& backend, int begin, int count) {
      std::vector<float> hc(static_cast<size_t>(count * 4 * kDim));
      ExpectOk(
          backend.EmbedExpand({part(ids, begin, count), table.view, {hc.data(), count, 4, kDim}}));
      return hc;
    };
    EXPECT_EQ(ExpectInvariant(numerics, kRows, embed), Reference(numerics, kRows, embed));

    std::vector<float> frequencies;
    for (int k = 0; k < 32; ++k)
      frequencies.push_back(std::pow(10000.0f, -static_cast<float>(k) / 32));
    const RowsOp rope = [&](Backend& backend, int begin, int count) {
      std::vector<float> cos_sin(static_cast<size_t>(count * 64));
      ExpectOk(backend.RopeTable({part(positions, begin, count),
                                  {frequencies.data(), 32},
                                  {cos_sin.data(), count, 32, 2}}));
      return cos_sin;
    };
    const std::vector<float> cos_sin = ExpectInvariant(numerics, kRows, rope);
    EXPECT_EQ(cos_sin, Reference(numerics, kRows, rope));

    constexpr int kHeads = 4, kHeadDim = 128, kGroups = 2, kRank = 37;
    const int width = kHeads * kHeadDim;
    std::vector<float> o = random.Bf16s(int64_t{kRows} * width);
    for (const auto& [dtype, quantise] : {std::pair{DType::kF8E4M3, false},
                                          {DType::kBF16, false},
                                          {DType::kF8E4M3, true},
                                          {DType::kI8, true}}) {
      if (quantise && numerics == Numerics::kExact) continue;
      const TestWeight wo_a = MakeWeight(random, dtype, kGroups * kRank, width / kGroups);
      const auto op = [&, quantise = quantise](std::vector<float>& input, const WeightView& w) {
        return [&input, &cos_sin, w, width, quantise](Backend& backend, int begin, int count) {
          std::vector<float> heads(input.begin() + begin * width,
                                   input.begin() + (begin + count) * width);
          std::vector<float> out(static_cast<size_t>(count * w.rows));
          ExpectOk(backend.InverseRopeOut({{heads.data(), count, kHeads, kHeadDim},
                                           {cos_sin.data() + begin * 64, count, 32, 2},
                                           w,
                                           kGroups,
                                           View(out, count),
                                           quantise}));
          out.insert(out.end(), heads.begin(), heads.end());
          return out;
        };
      };
      // The rotated heads are part of the comparison, but stand behind all rows, so compare rows of
      // one shape only.
      const RowsOp run = op(o, wo_a.view);
      const RowsOp product = [&](Backend& backend, int begin, int count) {
        std::vector<float> out = run(backend, begin, count);
        out.resize(static_cast<size_t>(count * wo_a.view.rows));
        return out;
      };
      const std::vector<float> got = ExpectInvariant(numerics, kRows, product);
      CpuBackend backend(numerics, 2);
      ExpectOk(backend.Prepare(Limits()));
      const std::vector<float> both = run(backend, 0, kRows),
                               want = Reference(numerics, kRows, run);
      // Rounded ones are the reference's scratch memory.
      EXPECT_TRUE(quantise ||
                  std::equal(both.begin() + static_cast<int64_t>(got.size()), both.end(),
                             want.begin() + static_cast<int64_t>(got.size())))
          << "rotated heads";
      // As for Linear; |o| of every channel is below 6 after rotation, so magnitudes are bounded by
      // the weights' sums.
      const TestWeight abs_weight = Abs(wo_a);
      std::vector<float> sixes(o.size(), 6.0f);
      const std::vector<float> magnitude =
          Reference(numerics, kRows, [&](Backend& b, int begin, int count) {
            std::vector<float> no_turn(cos_sin.size(), 0.0f);
            for (size_t i = 0; i < no_turn.size(); i += 2) no_turn[i] = 1.0f;
            std::vector<float> heads = sixes, out(static_cast<size_t>(count * wo_a.view.rows));
            ExpectOk(b.InverseRopeOut({{heads.data(), count, kHeads, kHeadDim},
                                       {no_turn.data() + begin * 64, count, 32, 2},
                                       abs_weight.view,
                                       kGroups,
                                       View(out, count)}));
            return out;
          });
      ExpectNear(got,
                 std::vector<float>(want.begin(), want.begin() + static_cast<int64_t>(got.size())),
                 numerics == Numerics::kOfficial,
                 [&](size_t i) { return 257 * 0x1p-24 * static_cast<double>(magnitude[i]); });
    }
  }
}

TEST(CpuBackend, MoreThanWasPreparedIsAnError) {
  Random random(20);
  CpuBackend backend(Numerics::kOfficial, 2);
  BackendLimits limits = Limits();
  limits.max_rows = 4;
  limits.max_cols = 128;
  ExpectOk(backend.Prepare(limits));
  const TestWeight fits = MakeWeight(random, DType::kF8E4M3, 16, 128);
  const TestWeight wide = MakeWeight(random, DType::kF8E4M3, 16, 256);
  std::vector<float> x = random.Bf16s(5 * 256), out(5 * 16);
  const auto run = [&](const WeightView& w, int rows) {
    LinearArgs args;
    args.x = {x.data(), rows, w.cols};
    args.first = {w, {out.data(), rows, 16}};
    return backend.Linear(args).code();
  };
  EXPECT_EQ(run(fits.view, 4), StatusCode::kOk);
  EXPECT_EQ(run(fits.view, 5), StatusCode::kInvalidArgument);
  EXPECT_EQ(run(wide.view, 1), StatusCode::kInvalidArgument);
}

TEST(CpuBackend, ImpossibleLimitsAreAnError) {
  CpuBackend backend(Numerics::kOfficial, 1);
  BackendLimits limits = Limits();
  limits.max_rows = 0;
  EXPECT_EQ(backend.Prepare(limits).code(), StatusCode::kInvalidArgument);
  limits = Limits();
  limits.max_rows = std::numeric_limits<int>::max();
  limits.max_cols = std::numeric_limits<int>::max();
  limits.max_expert_width = std::numeric_limits<int>::max();
  EXPECT_EQ(backend.Prepare(limits).code(), StatusCode::kOutOfMemory);
}

}  // namespace
}  // namespace fathom
