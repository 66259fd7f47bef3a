#include "backend/ops/q_norm_rope_kv_insert.h"

#include <limits>

#include "backend/ops/test_backends.h"
#include "backend/ops/test_pages.h"
#include "backend/ops/test_values.h"

namespace fathom {
namespace {

using namespace testing_values;  // NOLINT(google-build-using-namespace)

constexpr int kDim = 136;  // two groups of 64 without rotation, 8 channels with
constexpr int kRope = 8;
constexpr int kHeads = 3;

// A step's operands; the rows' contents depend on the seed alone.
struct Step {
  Step(std::vector<TestSequence> sequences, bool official, uint32_t seed = 1)
      : pages(std::move(sequences), 12, seed) {
    const int n = pages.plan().num_rows();
    const auto rows = static_cast<size_t>(n);
    q.assign(rows * kHeads * kDim, 0.0f);
    kv.assign(rows * kDim, 0.0f);
    step_kv.assign(kv.size(), std::numeric_limits<float>::quiet_NaN());
    weight.assign(kDim, 1.0f);
    for (size_t i = 0; i < rows; ++i) AppendCosSin({0, 0, 0, 0}, cos_sin);
    args = {.q = {q.data(), n, kHeads, kDim},
            .kv = {kv.data(), n, kDim},
            .kv_norm_weight = {weight.data(), kDim},
            .cos_sin = {cos_sin.data(), n, kRope / 2, 2},
            .norm_eps = 1e-6f,
            .plan = &pages.plan(),
            .swa = pages.Add(CacheKind::kSwaKv, KvFormat(official, kDim, kRope, 4)),
            .step_kv = {step_kv.data(), n, kDim}};
  }
  // Row i's inputs, as a function of `label`.
  void FillRow(size_t i, uint32_t label) {
    Random random(label);
    const auto fill = [&](std::vector<float>& v, size_t size) {
      const std::vector<float> values = random.Bf16s(size, -3.0, 3.0);
      std::copy(values.begin(), values.end(), v.begin() + static_cast<long>(i * size));
    };
    fill(q, kHeads * kDim);
    fill(kv, kDim);
    std::vector<float> rotation;
    for (int k = 0; k < kRope / 2; ++k) AppendCosSin({random.Uniform(-3.0, 3.0)}, rotation);
    std::copy(rotation.begin(), rotation.end(), cos_sin.begin() + static_cast<long>(i * kRope));
  }
  TestPages pages;
  std::vector<float> q, kv, step_kv, weight, cos_sin;
  QNormRopeKvInsertArgs args;
};

Doubles Angles(const std::vector<float>& cos_sin, size_t row) {
  Doubles angles;
  for (size_t k = 0; k < kRope / 2; ++k) {
    const float* pair = &cos_sin[row * kRope + 2 * k];
    angles.push_back(std::atan2(static_cast<double>(pair[1]), static_cast<double>(pair[0])));
  }
  return angles;
}

class QNormRopeKvInsert : public OpTest {};
FATHOM_ON_ALL_BACKENDS(QNormRopeKvInsert);

TEST_P(QNormRopeKvInsert, EveryQueryHeadIsNormalisedByItselfWithoutWeight) {
  Step step({{0, 1}}, official());
  step.weight.assign(kDim, 4.0f);  // must not touch the queries
  step.args.norm_eps = 0.0f;
  for (size_t h = 0; h < kHeads; ++h) {
    std::fill_n(step.q.begin() + static_cast<long>(h * kDim), kDim,
                std::ldexp(-1.0f, 3 * static_cast<int>(h)));
  }
  ASSERT_STATUS_OK(backend().QNormRopeKvInsert(step.args));
  for (float v : step.q) ASSERT_EQ(v, -1.0f);
}

TEST_P(QNormRopeKvInsert, RotatesAdjacentPairsOfTheLastChannels) {
  Step step({{5, 1}}, official());
  step.args.norm_eps = 0.0f;
  // Values of magnitude 1 have a norm of 1.
  std::fill(step.q.begin(), step.q.end(), 1.0f);
  std::fill(step.kv.begin(), step.kv.end(), 1.0f);
  step.cos_sin = {0, 1, 1, 0, -1, 0, 0, -1};  // 90, 0, 180 and -90 degrees
  ASSERT_STATUS_OK(backend().QNormRopeKvInsert(step.args));
  std::vector<float> want(kDim, 1.0f);
  const std::vector<float> rotated = {-1, 1, 1, 1, -1, -1, 1, -1};
  std::copy(rotated.begin(), rotated.end(), want.end() - kRope);
  for (size_t h = 0; h < kHeads; ++h) {
    EXPECT_THAT(std::span(step.q).subspan(h * kDim, kDim), testing::ElementsAreArray(want)) << h;
  }
  EXPECT_EQ(step.pages.Read(CacheKind::kSwaKv, 0, 5), want);
}

TEST_P(QNormRopeKvInsert, QueriesEqualTheOfficialChain) {
  Step step({{0, 4}}, official());
  for (size_t i = 0; i < 4; ++i) step.FillRow(i, 50 + static_cast<uint32_t>(i));
  const std::vector<float> before = step.q;
  ASSERT_STATUS_OK(backend().QNormRopeKvInsert(step.args));
  const auto round = [&](double x) { return official() ? Bf16(x) : x; };
  for (size_t i = 0; i < 4; ++i) {
    for (size_t h = 0; h < kHeads; ++h) {
      Doubles q = ToDoubles(std::span(before).subspan((i * kHeads + h) * kDim, kDim));
      double sum = 0.0;
      for (double v : q) sum += round(v * v);
      const double inverse = round(1.0 / std::sqrt(round(round(sum / kDim) + 1e-6)));
      for (double& v : q) v = round(v * inverse);
      // Rounding step by step is the reference backend's; others may be one step off before RoPE.
      ExpectValues(official(), std::span(step.q).subspan((i * kHeads + h) * kDim, kDim),
                   NaiveRope(q, Angles(step.cos_sin, i)), 1e-6,
                   backend().name() == "reference" ? 0.5 : 2.5);
    }
  }
}

TEST_P(QNormRopeKvInsert, EntryIsTheWeightedNormRotatedInThePagesFormat) {
  Step step({{6, 4}}, official());
  for (size_t i = 0; i < 4; ++i) step.FillRow(i, 70 + static_cast<uint32_t>(i));
  std::ranges::copy(Random(5).Bf16s(kDim, 0.5, 2.0), step.weight.begin());
  ASSERT_STATUS_OK(backend().QNormRopeKvInsert(step.args));
  for (size_t i = 0; i < 4; ++i) {
    Doubles entry = ToDoubles(std::span(step.kv).subspan(i * kDim, kDim));
    entry = MaybeBf16(official(), NaiveRmsNorm(entry, ToDoubles(step.weight), 1e-6));
    entry = NaiveRope(entry, Angles(step.cos_sin, i));
    const std::vector<float> got = step.pages.Read(CacheKind::kSwaKv, 0, 6 + static_cast<int>(i));
    const std::span<const float> nope = std::span(got).first(kDim - kRope);
    Doubles want(entry.begin(), entry.end() - kRope);
    if (official()) want = AsE4m3(want, 64);
    ExpectValues(false, nope, want, 1e-6);
    // One rounding of the norm may differ, one of the rotation follows.
    ExpectValues(official(), std::span(got).last(kRope), Doubles(entry.end() - kRope, entry.end()),
                 2e-6, 0.5);
  }
}

TEST_P(QNormRopeKvInsert, WritesOneEntryPerTokenAndNothingElse) {
  Step step({{3, 5}, {0, 1}, {14, 3}}, official());
  for (size_t i = 0; i < 9; ++i) step.FillRow(i, static_cast<uint32_t>(i));
  ASSERT_STATUS_OK(backend().QNormRopeKvInsert(step.args));
  for (size_t s = 0; s < 3; ++s) {
    const SequenceRows& rows = step.pages.plan().sequences[s];
    for (int p = 0; p < 48; ++p) {
      const bool written = p >= rows.start && p < rows.start + rows.num_rows;
      EXPECT_EQ(step.pages.Untouched(CacheKind::kSwaKv, s, p), !written) << s << " " << p;
    }
  }
  EXPECT_TRUE(step.pages.GapsUntouched());
}

// The step's own queries and those of later steps see the same values.
TEST_P(QNormRopeKvInsert, StepKvHoldsWhatTheStoredEntryGivesBack) {
  for (const EntryEncoding encoding :
       {EntryEncoding::kF32, EntryEncoding::kE4m3Rope, EntryEncoding::kBf16Rope}) {
    Step step({{3, 5}, {0, 1}, {14, 3}}, official());
    for (size_t i = 0; i < 9; ++i) step.FillRow(i, static_cast<uint32_t>(i));
    for (size_t c = 0; c < kDim; ++c) step.weight[c] = std::ldexp(1.0f, static_cast<int>(c / 8));
    step.args.swa = step.pages.Add(CacheKind::kSwaKv, {encoding, kDim, kRope, 4});
    ASSERT_STATUS_OK(backend().QNormRopeKvInsert(step.args));
    for (size_t s = 0; s < 3; ++s) {
      const SequenceRows& rows = step.pages.plan().sequences[s];
      for (int i = 0; i < rows.num_rows; ++i) {
        const std::vector<float> stored = step.pages.Read(CacheKind::kSwaKv, s, rows.start + i);
        EXPECT_THAT(step.args.step_kv.row(rows.first_row + i), testing::ElementsAreArray(stored));
      }
    }
  }
}

TEST_P(QNormRopeKvInsert, StoresOnlyWhereTheTableHasABlock) {
  const std::vector<TestSequence> sequences = {{3, 20}, {0, 2}, {9, 30}};
  Step all(sequences, official()), tail(sequences, official());
  for (size_t i = 0; i < 52; ++i) all.FillRow(i, static_cast<uint32_t>(i));
  for (size_t i = 0; i < 52; ++i) tail.FillRow(i, static_cast<uint32_t>(i));
  tail.pages.KeepBlocks(CacheKind::kSwaKv, 0, {{17, 23}});
  tail.pages.KeepBlocks(CacheKind::kSwaKv, 1, {});
  tail.pages.KeepBlocks(CacheKind::kSwaKv, 2, {{8, 12}, {20, 21}, {36, 39}});
  tail.pages.SetStep(sequences);
  ASSERT_STATUS_OK(backend().QNormRopeKvInsert(all.args));
  ASSERT_STATUS_OK(backend().QNormRopeKvInsert(tail.args));
  EXPECT_EQ(tail.q, all.q);
  EXPECT_EQ(tail.step_kv, all.step_kv);
  int stored = 0;
  for (size_t s = 0; s < 3; ++s) {
    const SequenceRows& rows = tail.pages.plan().sequences[s];
    const BlockTable& table = tail.pages.plan().TablesFor(CacheKind::kSwaKv)[s];
    for (int p = rows.start; p < rows.start + rows.num_rows; ++p) {
      if (!HasBlock(tail.args.swa, table, p)) continue;
      ++stored;
      EXPECT_EQ(tail.pages.Bytes(CacheKind::kSwaKv, s, p), all.pages.Bytes(CacheKind::kSwaKv, s, p))
          << s << " " << p;
    }
    EXPECT_TRUE(tail.pages.LostBlocksUntouched(CacheKind::kSwaKv, s)) << s;
  }
  // Whole blocks of four, but for the positions that no row has.
  EXPECT_EQ(stored, 7 + 0 + 3 + 4 + 3);
  EXPECT_TRUE(tail.pages.GapsUntouched());
}

TEST_P(QNormRopeKvInsert, ASequenceAmongOthersHasTheSameBitsAsAlone) {
  const std::vector<TestSequence> sequences = {{3, 5}, {0, 1}, {14, 3}};
  Step all(sequences, official());
  for (size_t i = 0; i < 9; ++i) all.FillRow(i, static_cast<uint32_t>(i));
  ASSERT_STATUS_OK(backend().QNormRopeKvInsert(all.args));
  for (size_t s = 0; s < 3; ++s) {
    Step one({sequences[s]}, official(), 9);
    const auto first = static_cast<size_t>(all.pages.plan().sequences[s].first_row);
    const auto n = static_cast<size_t>(sequences[s].num_rows);
    for (size_t i = 0; i < n; ++i) one.FillRow(i, static_cast<uint32_t>(first + i));
    ASSERT_STATUS_OK(backend().QNormRopeKvInsert(one.args));
    constexpr size_t kRow = kHeads * kDim;
    EXPECT_TRUE(std::ranges::equal(one.q, std::span(all.q).subspan(first * kRow, n * kRow)));
    for (int p = sequences[s].start; p < sequences[s].start + sequences[s].num_rows; ++p) {
      EXPECT_EQ(one.pages.Bytes(CacheKind::kSwaKv, 0, p), all.pages.Bytes(CacheKind::kSwaKv, s, p));
    }
  }
}

TEST_P(QNormRopeKvInsert, ChecksItsArguments) {
  Step step({{0, 2}, {4, 1}}, official());
  const QNormRopeKvInsertArgs good = step.args;
  ASSERT_STATUS_OK(Check(good));
  const auto expect = [&](const std::string& operand, auto&& spoil) {
    QNormRopeKvInsertArgs bad = good;
    spoil(bad);
    ExpectRejected(backend().QNormRopeKvInsert(bad), operand);
  };
  using Args = QNormRopeKvInsertArgs;
  float* m = step.q.data();
  StepPlan no_tables = step.pages.plan();
  no_tables.tables[static_cast<size_t>(CacheClass::kSwa)] = {};
  expect("plan", [&](Args& a) { a.plan = nullptr; });
  expect("page", [&](Args& a) { a.swa.base = nullptr; });
  expect("q", [&](Args& a) { a.q = {m, 3, kHeads * kDim}; });
  expect("q", [&](Args& a) { a.q = {m, 2, kHeads, kDim}; });
  expect("kv", [&](Args& a) { a.kv = {m, 2, kDim}; });
  expect("step_kv", [&](Args& a) { a.step_kv = {}; });
  expect("step_kv", [&](Args& a) { a.step_kv = {m, 3, kDim - 1}; });
  expect("kv_norm_weight", [&](Args& a) { a.kv_norm_weight = {m, kDim - 1}; });
  expect("cos_sin", [&](Args& a) { a.cos_sin = {m, 2, kRope / 2, 2}; });
  expect("cos_sin", [&](Args& a) { a.cos_sin = {m, 3, kRope}; });
  expect("page", [&](Args& a) { a.swa.format.dim = kDim - 8; });
  expect("page format", [&](Args& a) { a.swa.format.encoding = EntryEncoding::kE4m3Scaled; });
  expect("page format", [&](Args& a) { a.swa.format.entries_per_page = 0; });
  expect("block table", [&](Args& a) { a.plan = &no_tables; });
  const SequenceRows outside[] = {{0, 2, 0}, {2, 2, 4}};
  StepPlan bad_rows = step.pages.plan();
  bad_rows.sequences = outside;
  expect("sequences", [&](Args& a) { a.plan = &bad_rows; });
}

}  // namespace
}  // namespace fathom
