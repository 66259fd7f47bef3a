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
  explicit Call(int n, DType dtype = DType::kF8E4M3)
      : o(static_cast<size_t>(n) * kRow),
        out(static_cast<size_t>(n) * kGroups * kRank, -9.0f),
        wo_a(dtype, kGroups * kRank, kHeads / kGroups * kDim) {
    for (int i = 0; i < n; ++i) AppendCosSin({0, 0, 0, 0}, cos_sin);
    args = {.o = {o.data(), n, kHeads, kDim},
            .cos_sin = {cos_sin.data(), n, kRope / 2, 2},
            .wo_a = wo_a.view(),
            .groups = kGroups,
            .out = {out.data(), n, kGroups * kRank}};
  }
  std::vector<float> o, cos_sin, out;
  TestWeight wo_a;
  InverseRopeOutArgs args;
};

class InverseRopeOut : public OpTest {};
FATHOM_ON_ALL_BACKENDS(InverseRopeOut);

TEST_P(InverseRopeOut, RotatesTheLastChannelsOfEveryHeadBack) {
  Call call(1);
  call.cos_sin = {0, 1, 1, 0, -1, 0, 0, -1};  // 90, 0, 180 and -90 degrees
  for (size_t i = 0; i < kRow; ++i) call.o[i] = static_cast<float>(i % kDim);
  ASSERT_STATUS_OK(backend().InverseRopeOut(call.args));
  for (size_t h = 0; h < kHeads; ++h) {
    for (size_t c = 0; c < kDim - kRope; ++c) {
      ASSERT_EQ(call.o[h * kDim + c], static_cast<float>(c)) << "not rotated";
    }
    EXPECT_THAT(std::span(call.o).subspan(h * kDim + kDim - kRope, kRope),
                testing::ElementsAre(57, -56, 58, 59, -60, -61, -63, 62));
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

void Randomise(Call& call, int n, uint32_t seed) {
  Random random(seed);
  const std::vector<float> o = random.Bf16s(static_cast<size_t>(n) * kRow, -2.0, 2.0);
  std::copy(o.begin(), o.end(), call.o.begin());
  std::vector<float> rotation;
  for (int i = 0; i < n * kRope / 2; ++i) AppendCosSin({random.Uniform(-3.0, 3.0)}, rotation);
  std::copy(rotation.begin(), rotation.end(), call.cos_sin.begin());
}

TEST_P(InverseRopeOut, EqualsTheFormulaInDouble) {
  for (const DType dtype : {DType::kF8E4M3, DType::kBF16}) {
    Call call(3, dtype);
    Random random(4);
    call.wo_a = TestWeight::Random(random, dtype, kGroups * kRank, kHeads / kGroups * kDim);
    call.args.wo_a = call.wo_a.view();
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
      ExpectValues(official(), std::span(call.o).subspan(i * kRow, kRow), rotated, 1e-6);
      Doubles want;
      for (size_t row = 0; row < kGroups * kRank; ++row) {
        double sum = 0.0;
        for (size_t c = 0; c < kRow / kGroups; ++c) {
          sum += call.wo_a.At(static_cast<int>(row), static_cast<int>(c)) *
                 rotated[row / kRank * (kRow / kGroups) + c];
        }
        want.push_back(sum);
      }
      ExpectValues(official(), std::span(call.out).subspan(i * want.size(), want.size()), want,
                   5e-6);
    }
  }
}

TEST_P(InverseRopeOut, ARowAmongOthersHasTheSameBitsAsAlone) {
  Random random(4);
  const TestWeight wo_a =
      TestWeight::Random(random, DType::kF8E4M3, kGroups * kRank, kHeads / kGroups * kDim);
  Call all(5);
  Randomise(all, 5, 6);
  all.args.wo_a = wo_a.view();
  ASSERT_STATUS_OK(backend().InverseRopeOut(all.args));
  for (int64_t i = 0; i < 5; ++i) {
    Call one(5);
    Randomise(one, 5, 6);
    one.args.wo_a = wo_a.view();
    one.args.o = one.args.o.Slice(i, 1);
    one.args.cos_sin = one.args.cos_sin.Slice(i, 1);
    one.args.out = one.args.out.First(1);
    ASSERT_STATUS_OK(backend().InverseRopeOut(one.args));
    EXPECT_TRUE(std::ranges::equal(one.args.out.elements(), all.args.out.row(i)));
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
  expect("outputs", [&](Args& a) {
    a.wo_a.rows = 5;
    a.out = {m, 2, 5};
  });
}

}  // namespace
}  // namespace fathom
