#include "backend/ops/inverse_rope_out.h"

#include "backend/ops/test_backends.h"
#include "backend/ops/test_values.h"

namespace fathom {
namespace {

using namespace testing_values;  // NOLINT(google-build-using-namespace)

constexpr int kHeads = 4;
constexpr int kDim = 64;
constexpr int kRope = 8;
constexpr int kGroups = 2;
constexpr int kRank = 3;
constexpr size_t kRow = kHeads * kDim;

// One call over n rows, without rotation and with zeros everywhere.
struct Call {
  explicit Call(int n, DType dtype = DType::kF8E4M3, int rank = kRank)
      : o(static_cast<size_t>(n) * kRow),
        out(static_cast<size_t>(n * kGroups * rank), -9.0f),
        wo_a(dtype, kGroups * rank, kHeads / kGroups * kDim) {
    for (int i = 0; i < n; ++i) AppendCosSin({0, 0, 0, 0}, cos_sin);
    args = {.o = {o.data(), n, kHeads, kDim},
            .cos_sin = {cos_sin.data(), n, kRope / 2, 2},
            .wo_a = wo_a.view(),
            .groups = kGroups,
            .out = {out.data(), n, kGroups * rank}};
  }
  std::vector<float> o, cos_sin, out;
  TestWeight wo_a;
  InverseRopeOutArgs args;
};

class InverseRopeOut : public OpTest {};
FATHOM_ON_ALL_BACKENDS(InverseRopeOut);

// Row r of a group shows channel r of its heads. With 16 rows and more to a group, and with fewer:
// backends have other ways for these.
TEST_P(InverseRopeOut, RotatesTheLastChannelsOfEveryHeadBack) {
  for (const int rank : {3, kHeads / kGroups * kDim}) {
    Doubles seen(kRow);
    for (int first = 0; first < kHeads / kGroups * kDim; first += rank) {
      Call call(1, DType::kF8E4M3, rank);
      call.cos_sin = {0, 1, 1, 0, -1, 0, 0, -1};  // 90, 0, 180 and -90 degrees
      for (size_t i = 0; i < kRow; ++i) call.o[i] = static_cast<float>(i % kDim);
      const int count = std::min(rank, kHeads / kGroups * kDim - first);
      for (int r = 0; r < count; ++r) {
        for (int g = 0; g < kGroups; ++g) call.wo_a.Set(g * rank + r, first + r, 1.0);
      }
      ASSERT_STATUS_OK(backend().InverseRopeOut(call.args));
      for (int r = 0; r < count; ++r) {
        for (int g = 0; g < kGroups; ++g) {
          seen[static_cast<size_t>(g * kHeads / kGroups * kDim + first + r)] =
              static_cast<double>(call.out[static_cast<size_t>(g * rank + r)]);
        }
      }
    }
    for (size_t h = 0; h < kHeads; ++h) {
      for (size_t c = 0; c < kDim - kRope; ++c) {
        ASSERT_EQ(seen[h * kDim + c], static_cast<double>(c)) << "not rotated";
      }
      EXPECT_THAT(std::span(seen).subspan(h * kDim + kDim - kRope, kRope),
                  testing::ElementsAre(57, -56, 58, 59, -60, -61, -63, 62));
    }
  }
}

// Row g * rank + r of wo_a sees the heads of group g only, flattened head by head.
TEST_P(InverseRopeOut, RowsOfWoABelongToGroupsOfHeads) {
  Call call(1);
  for (size_t i = 0; i < kRow; ++i) call.o[i] = static_cast<float>(i);
  call.wo_a.Set(0, 0, 1.0);    // group 0, head 0
  call.wo_a.Set(2, 64, 1.0);   // group 0, head 1
  call.wo_a.Set(3, 1, 1.0);    // group 1, head 2
  call.wo_a.Set(5, 127, 0.5);  // group 1, head 3
  ASSERT_STATUS_OK(backend().InverseRopeOut(call.args));
  EXPECT_THAT(call.out, testing::ElementsAre(0, 0, 64, 129, 0, 127.5));
}

TEST_P(InverseRopeOut, Fp8WeightsMeetUnquantisedActivations) {
  Call call(1);
  const float value = 1.0f + 0x1p-7f;  // bf16 holds it, e4m3 does not
  call.o[0] = value;
  call.wo_a.Set(0, 0, 1.0);
  ASSERT_STATUS_OK(backend().InverseRopeOut(call.args));
  EXPECT_EQ(call.out[0], value);
}

// Groups of 128 along the columns of wo_a, which may hold several heads; rotated channels are
// rounded once more, on their way to e4m3.
TEST_P(InverseRopeOut, InputsAreE4m3WhereAsked) {
  Call call(1);
  call.args.quantise_input = true;
  call.cos_sin = {0, 1, 1, 0, -1, 0, 0, -1};
  call.o[0] = 1.0f + 0x1p-7f;    // bf16 holds it, e4m3 does not
  call.o[1] = 448.0f;            // makes the scale of group 0 one
  call.o[kDim + 1] = 0x1p-15f;   // of its second head, so below the grid
  call.o[2 * kDim] = 0x1p-15f;   // of another group
  call.o[4 * kDim - 8] = 65.0f;  // rotated away to the channel behind it
  call.wo_a.Set(0, 0, 1.0);
  call.wo_a.Set(1, kDim + 1, 1.0);
  call.wo_a.Set(3, 0, 1.0);
  call.wo_a.Set(5, 2 * kDim - 7, 1.0);
  if (!official()) return ExpectRejected(backend().InverseRopeOut(call.args), "quantise_input");
  ASSERT_STATUS_OK(backend().InverseRopeOut(call.args));
  EXPECT_EQ(call.out[0], 1.0f);
  EXPECT_EQ(call.out[1], 0.0f);
  // 65 / 448 rounds up to a scale of 2^-2: the grid is a quarter below 2^-6, and 64, 72 about 65.
  EXPECT_EQ(call.out[3], 0.0f);
  EXPECT_EQ(call.out[5], -64.0f);
}

void Randomise(Call& call, int n, uint32_t seed) {
  Random random(seed);
  const std::vector<float> o = random.Bf16s(static_cast<size_t>(n) * kRow, -2.0, 2.0);
  std::copy(o.begin(), o.end(), call.o.begin());
  std::vector<float> rotation;
  for (int i = 0; i < n * kRope / 2; ++i) AppendCosSin({random.Uniform(-3.0, 3.0)}, rotation);
  std::copy(rotation.begin(), rotation.end(), call.cos_sin.begin());
}

struct Way {
  DType dtype;
  int rank;
  bool quantise;
};
constexpr Way kWays[] = {{DType::kF8E4M3, 3, false},  {DType::kBF16, 3, false},
                         {DType::kF8E4M3, 16, false}, {DType::kF8E4M3, 3, true},
                         {DType::kF8E4M3, 16, true},  {DType::kI8, 3, true},
                         {DType::kI8, 16, true}};

TEST_P(InverseRopeOut, EqualsTheFormulaInDouble) {
  for (const auto& [dtype, rank, quantise] : kWays) {
    if (quantise && !official()) continue;
    SCOPED_TRACE(rank);
    Call call(3, dtype, rank);
    Random random(4);
    call.wo_a = TestWeight::Random(random, dtype, kGroups * rank, kHeads / kGroups * kDim);
    call.args.wo_a = call.wo_a.view();
    call.args.quantise_input = quantise;
    Randomise(call, 3, 5);
    const std::vector<float> before = call.o;
    ASSERT_STATUS_OK(backend().InverseRopeOut(call.args));
    for (size_t i = 0; i < 3; ++i) {
      Doubles rotated;
      for (size_t h = 0; h < kHeads; ++h) {
        Doubles angles;
        for (size_t k = 0; k < kRope / 2; ++k) {
          const float* pair = &call.cos_sin[i * kRope + 2 * k];
          angles.push_back(-std::atan2(static_cast<double>(pair[1]), static_cast<double>(pair[0])));
        }
        const Doubles head = MaybeBf16(
            official(),
            NaiveRope(ToDoubles(std::span(before).subspan(i * kRow + h * kDim, kDim)), angles));
        rotated.insert(rotated.end(), head.begin(), head.end());
      }
      if (quantise) rotated = AsE4m3(rotated, 128);
      Doubles want;
      for (size_t row = 0; row < static_cast<size_t>(kGroups * rank); ++row) {
        double sum = 0.0;
        for (size_t c = 0; c < kRow / kGroups; ++c) {
          sum += call.wo_a.At(static_cast<int>(row), static_cast<int>(c)) *
                 rotated[row / static_cast<size_t>(rank) * (kRow / kGroups) + c];
        }
        want.push_back(sum);
      }
      ExpectValues(official(), std::span(call.out).subspan(i * want.size(), want.size()), want,
                   5e-6);
    }
  }
}

TEST_P(InverseRopeOut, ARowAmongOthersHasTheSameBitsAsAlone) {
  for (const bool quantise : {false, true}) {
    if (quantise && !official()) continue;
    for (const int rank : {kRank, 16}) {
      Random random(4);
      const TestWeight wo_a =
          TestWeight::Random(random, DType::kF8E4M3, kGroups * rank, kHeads / kGroups * kDim);
      constexpr int kRows = 11;
      const auto call = [&] {
        Call made(kRows, DType::kF8E4M3, rank);
        Randomise(made, kRows, 6);
        made.args.wo_a = wo_a.view();
        made.args.quantise_input = quantise;
        return made;
      };
      Call all = call();
      ASSERT_STATUS_OK(backend().InverseRopeOut(all.args));
      for (int64_t i = 0; i < kRows; ++i) {
        Call one = call();
        one.args.o = one.args.o.Slice(i, 1);
        one.args.cos_sin = one.args.cos_sin.Slice(i, 1);
        one.args.out = one.args.out.First(1);
        ASSERT_STATUS_OK(backend().InverseRopeOut(one.args));
        EXPECT_TRUE(std::ranges::equal(one.args.out.elements(), all.args.out.row(i)));
      }
    }
  }
}

TEST_P(InverseRopeOut, ChecksItsArguments) {
  Call call(2);
  const InverseRopeOutArgs good = call.args;
  ASSERT_STATUS_OK(Check(good));
  using Args = InverseRopeOutArgs;
  const auto expect = [&](const std::string& operand, auto&& spoil) {
    Args bad = good;
    spoil(bad);
    ExpectRejected(backend().InverseRopeOut(bad), operand);
  };
  float* m = call.o.data();
  expect("groups", [&](Args& a) { a.groups = 3; });
  expect("groups", [&](Args& a) { a.groups = 0; });
  expect("heads", [&](Args& a) { a.o = {m, 2, kHeads * kDim}; });
  expect("wo_a", [&](Args& a) { a.wo_a.cols = 256; });
  expect("wo_a", [&](Args& a) { a.out = {m, 2, 7}; });
  expect("wo_a", [&](Args& a) { a.wo_a.scale = nullptr; });
  expect("cos_sin", [&](Args& a) { a.cos_sin = {m, 1, 4, 2}; });
  expect("cos_sin", [&](Args& a) { a.cos_sin = {m, 2, 33, 2}; });
  expect("out", [&](Args& a) { a.out = {m, 1, 6}; });
  TestWeight bf16(DType::kBF16, kGroups * kRank, kHeads / kGroups * kDim);
  expect("quantise_input", [&](Args& a) {
    a.wo_a = bf16.view();
    a.quantise_input = true;
  });
  expect("outputs", [&](Args& a) {
    a.wo_a.rows = 5;
    a.out = {m, 2, 5};
  });
}

}  // namespace
}  // namespace fathom
