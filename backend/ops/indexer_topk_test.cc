#include "backend/ops/indexer_topk.h"

#include "backend/ops/test_backends.h"
#include "backend/ops/test_pages.h"
#include "backend/ops/test_values.h"

namespace fathom {
namespace {

using namespace testing_values;  // NOLINT(google-build-using-namespace)

constexpr int kDim = 64;
constexpr int kRope = 8;

// A step's operands: no rotation, unit head weights, zero queries, no keys.
struct Step {
  Step(std::vector<TestSequence> sequences, int heads, int topk, bool official, uint32_t seed = 1)
      : pages(std::move(sequences), 16, seed), num_heads(heads) {
    const int n = pages.plan().num_rows();
    const auto rows = static_cast<size_t>(n);
    q.assign(rows * static_cast<size_t>(heads * kDim), 0.0f);
    head_weights.assign(rows * static_cast<size_t>(heads), 1.0f);
    for (size_t i = 0; i < rows; ++i) AppendCosSin({0, 0, 0, 0}, cos_sin);
    entries.assign(rows * static_cast<size_t>(topk), -77);
    num_entries.assign(rows, -77);
    args = {.q = {q.data(), n, heads, kDim},
            .head_weights = {head_weights.data(), n, heads},
            .cos_sin = {cos_sin.data(), n, kRope / 2, 2},
            .plan = &pages.plan(),
            .keys = pages.Add(CacheKind::kC4IndexKeys, IndexKeyFormat(official, kDim, 4)),
            .topk = topk,
            .entries = {entries.data(), n, topk},
            .num_entries = {num_entries.data(), n}};
  }
  void Query(size_t row, int head, const std::vector<float>& values) {
    const size_t begin = (row * static_cast<size_t>(num_heads) + static_cast<size_t>(head)) * kDim;
    std::copy(values.begin(), values.end(), q.begin() + static_cast<long>(begin));
  }
  // Key with one value at channel `at`.
  void Key(size_t sequence, int entry, size_t at, float value) {
    std::vector<float> key(kDim);
    key[at] = value;
    pages.Write(CacheKind::kC4IndexKeys, sequence, entry, key);
  }
  // What was selected for a row; checks order and padding.
  std::vector<int> Selected(int row) {
    const std::span<const int32_t> all = args.entries.row(row);
    const int count = num_entries[static_cast<size_t>(row)];
    std::vector<int> chosen(all.begin(), all.begin() + count);
    EXPECT_TRUE(std::is_sorted(chosen.begin(), chosen.end()));
    EXPECT_EQ(std::adjacent_find(chosen.begin(), chosen.end()), chosen.end());
    EXPECT_TRUE(std::all_of(all.begin() + count, all.end(), [](int e) { return e == -1; }));
    return chosen;
  }
  TestPages pages;
  int num_heads;
  std::vector<float> q, head_weights, cos_sin;
  std::vector<int32_t> entries, num_entries;
  IndexerTopkArgs args;
};

// The query whose Hadamard rotation is 8 times the unit vector `channel`.
std::vector<float> QueryFor(size_t channel) {
  std::vector<float> q(kDim);
  for (size_t b = 0; b < kDim; ++b) q[b] = std::popcount(channel & b) % 2 == 0 ? 1.0f : -1.0f;
  return q;
}

class IndexerTopk : public OpTest {};
FATHOM_ON_ALL_BACKENDS(IndexerTopk);

TEST_P(IndexerTopk, WithFewCandidatesAllAreKeptAndNothingIsRead) {
  // No keys were written and the queries are NaN: neither may matter.
  Step step({{0, 13}}, 2, 3, official());
  std::fill(step.q.begin(), step.q.end(), std::nanf(""));
  ASSERT_STATUS_OK(backend().IndexerTopk(step.args));
  for (int i = 0; i < 13; ++i) {
    std::vector<int> want;
    for (int j = 0; 4 * j + 3 <= i; ++j) want.push_back(j);
    EXPECT_EQ(step.Selected(i), want) << "query " << i;
  }
}

TEST_P(IndexerTopk, ScoresAreHadamardRotatedDotProducts) {
  Step step({{31, 1}}, 1, 3, official());
  step.Query(0, 0, QueryFor(5));
  const float values[] = {0.5f, 3, 0, 1.5f, 6, 1, 4, 2};
  for (int j = 0; j < 8; ++j) step.Key(0, j, 5, values[j]);
  ASSERT_STATUS_OK(backend().IndexerTopk(step.args));
  EXPECT_EQ(step.Selected(0), (std::vector<int>{1, 4, 6}));
}

TEST_P(IndexerTopk, EqualScoresGoToTheSmallerEntry) {
  Step step({{39, 1}}, 1, 4, official());
  step.Query(0, 0, QueryFor(0));
  for (int j = 0; j < 10; ++j) step.Key(0, j, 0, j == 8 ? 2.0f : 1.0f);
  ASSERT_STATUS_OK(backend().IndexerTopk(step.args));
  EXPECT_EQ(step.Selected(0), (std::vector<int>{0, 1, 2, 8}));
}

// relu makes ties of all negative dot products; a negative head weight makes a score below them.
TEST_P(IndexerTopk, NegativeDotProductsAreZeroAndNegativeWeightsCountAgainst) {
  Step step({{39, 1}}, 2, 3, official());
  step.Query(0, 0, QueryFor(0));
  step.Query(0, 1, QueryFor(1));
  step.head_weights = {1.0f, -1.0f};
  for (int j = 0; j < 10; ++j) step.Key(0, j, 0, -1.0f - static_cast<float>(j % 2));
  step.Key(0, 0, 1, 3.0f);  // -24 through the second head
  step.Key(0, 7, 0, 0.5f);
  ASSERT_STATUS_OK(backend().IndexerTopk(step.args));
  EXPECT_EQ(step.Selected(0), (std::vector<int>{1, 2, 7}));
}

// The best entries of the chunk are those of its last tokens; earlier queries may not spend a slot
// on them.
TEST_P(IndexerTopk, EntriesOfLaterTokensOfTheChunkTakeNoSlot) {
  Step step({{0, 40}}, 1, 2, official());
  const float values[] = {1, 0.5f, 1.5f, 1, 2, 3, 4, 4, 6, 6};
  for (int j = 0; j < 10; ++j) step.Key(0, j, 0, values[j]);
  for (size_t i = 0; i < 40; ++i) step.Query(i, 0, QueryFor(0));
  ASSERT_STATUS_OK(backend().IndexerTopk(step.args));
  for (int i = 0; i < 40; ++i) {
    std::vector<int> order;
    for (int j = 0; 4 * j + 3 <= i; ++j) order.push_back(j);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return values[a] > values[b]; });
    order.resize(std::min<size_t>(order.size(), 2));
    std::sort(order.begin(), order.end());
    EXPECT_EQ(step.Selected(i), order) << "query " << i;
  }
}

// Entry 1 has 150 through head 0 (weight 1), entry 0 has 149 through head 1 (weight 1 + 2^-7). The
// product with the common factor, rounded to bf16, turns their order.
TEST_P(IndexerTopk, ScaledHeadWeightsAreRoundedToBf16) {
  Step step({{7, 1}}, 2, 1, official());
  std::vector<float> q(kDim);
  q[0] = 8.0f;
  step.Query(0, 0, q);  // rotated: all ones
  q[0] = 0.0f;
  q[1] = 8.0f;
  step.Query(0, 1, q);  // rotated: 1 at even channels, -1 at odd ones
  step.head_weights = {1.0f, 1.0f + 0x1p-7f};
  std::vector<float> odd(kDim), alternating(kDim);
  for (size_t c = 0; c < 25; ++c) odd[2 * c + 1] = 6.0f;
  for (size_t c = 0; c < 12; ++c) alternating[2 * c] = 6.0f;
  for (size_t c = 0; c < 12; ++c) alternating[2 * c + 1] = -6.0f;
  alternating[24] = 2.0f;
  alternating[25] = -3.0f;
  step.pages.Write(CacheKind::kC4IndexKeys, 0, 0, alternating);
  step.pages.Write(CacheKind::kC4IndexKeys, 0, 1, odd);
  ASSERT_STATUS_OK(backend().IndexerTopk(step.args));
  EXPECT_EQ(step.Selected(0), std::vector<int>{official() ? 1 : 0});
}

void FillRow(Step& step, size_t row, uint32_t label) {
  Random random(label);
  for (int h = 0; h < step.num_heads; ++h) step.Query(row, h, random.Bf16s(kDim, -2.0, 2.0));
  const auto heads = static_cast<size_t>(step.num_heads);
  for (size_t h = 0; h < heads; ++h) {
    step.head_weights[row * heads + h] = static_cast<float>(Bf16(random.Uniform(-0.5, 1.0)));
  }
  std::vector<float> rotation;
  for (int k = 0; k < kRope / 2; ++k) AppendCosSin({random.Uniform(-3.0, 3.0)}, rotation);
  std::copy(rotation.begin(), rotation.end(),
            step.cos_sin.begin() + static_cast<long>(row * kRope));
}

void WriteKeys(Step& step, size_t sequence, int count, uint32_t label) {
  for (int j = 0; j < count; ++j) {
    Random random(10000 * label + static_cast<uint32_t>(j));
    step.pages.Write(CacheKind::kC4IndexKeys, sequence, j, random.Bf16s(kDim, -1.0, 1.0));
  }
}

TEST_P(IndexerTopk, EqualsAFullSortOfScoresInDouble) {
  const int heads = 3, topk = 8, n = 20, start = 150;
  Step step({{start, n}}, heads, topk, official());
  WriteKeys(step, 0, (start + n) / 4, 5);
  for (size_t i = 0; i < n; ++i) FillRow(step, i, 100 + static_cast<uint32_t>(i));
  ASSERT_STATUS_OK(backend().IndexerTopk(step.args));
  for (int i = 0; i < n; ++i) {
    const auto row = static_cast<size_t>(i);
    std::vector<std::pair<double, int>> scored;  // negated score, entry
    for (int j = 0; j < (start + i + 1) / 4; ++j) scored.emplace_back(0.0, j);
    for (size_t h = 0; h < heads; ++h) {
      Doubles q = ToDoubles(std::span(step.q).subspan((row * heads + h) * kDim, kDim));
      Doubles angles;
      for (size_t k = 0; k < kRope / 2; ++k) {
        const float* pair = &step.cos_sin[row * kRope + 2 * k];
        angles.push_back(std::atan2(static_cast<double>(pair[1]), static_cast<double>(pair[0])));
      }
      q = MaybeBf16(official(), NaiveRope(q, angles));
      q = MaybeBf16(official(), NaiveHadamard(q));
      if (official()) q = AsE2m1(q);
      double w = static_cast<double>(step.head_weights[row * heads + h]) / std::sqrt(kDim * heads);
      if (official()) w = Bf16(w);
      for (auto& [score, j] : scored) {
        const std::vector<float> key = step.pages.Read(CacheKind::kC4IndexKeys, 0, j);
        double dot = 0.0;
        for (size_t c = 0; c < kDim; ++c) dot += q[c] * static_cast<double>(key[c]);
        score -= w * std::max(dot, 0.0);
      }
    }
    std::sort(scored.begin(), scored.end());
    ASSERT_GT(scored[topk].first - scored[topk - 1].first, 1e-5) << "near tie: choose another seed";
    std::vector<int> want;
    for (size_t k = 0; k < topk; ++k) want.push_back(scored[k].second);
    std::sort(want.begin(), want.end());
    EXPECT_EQ(step.Selected(i), want) << "row " << i;
  }
}

TEST_P(IndexerTopk, ASequenceAmongOthersSelectsTheSameAsAlone) {
  const std::vector<TestSequence> sequences = {{60, 9}, {2, 3}, {139, 2}, {0, 0}};
  Step all(sequences, 2, 5, official());
  for (size_t s = 0; s < 4; ++s) {
    WriteKeys(all, s, (sequences[s].start + sequences[s].num_rows) / 4,
              static_cast<uint32_t>(s) + 1);
  }
  for (size_t i = 0; i < 14; ++i) FillRow(all, i, static_cast<uint32_t>(i));
  ASSERT_STATUS_OK(backend().IndexerTopk(all.args));
  for (size_t s = 0; s < 3; ++s) {
    Step one({sequences[s]}, 2, 5, official(), 8);
    WriteKeys(one, 0, (sequences[s].start + sequences[s].num_rows) / 4,
              static_cast<uint32_t>(s) + 1);
    const int first = all.pages.plan().sequences[s].first_row;
    for (int i = 0; i < sequences[s].num_rows; ++i) {
      FillRow(one, static_cast<size_t>(i), static_cast<uint32_t>(first + i));
    }
    ASSERT_STATUS_OK(backend().IndexerTopk(one.args));
    for (int i = 0; i < sequences[s].num_rows; ++i) {
      EXPECT_EQ(one.Selected(i), all.Selected(first + i)) << s << " " << i;
    }
  }
}

TEST_P(IndexerTopk, ChecksItsArguments) {
  Step step({{0, 3}}, 2, 4, official());
  const IndexerTopkArgs good = step.args;
  ASSERT_STATUS_OK(Check(good));
  using Args = IndexerTopkArgs;
  const auto expect = [&](const std::string& operand, auto&& spoil) {
    Args bad = good;
    spoil(bad);
    ExpectRejected(backend().IndexerTopk(bad), operand);
  };
  float* m = step.q.data();
  StepPlan no_tables = *good.plan;
  no_tables.tables[static_cast<size_t>(CacheClass::kFull)] = {};
  expect("plan", [&](Args& a) { a.plan = nullptr; });
  expect("pages", [&](Args& a) { a.keys.base = nullptr; });
  expect("q", [&](Args& a) { a.q = {m, 2, 2, kDim}; });
  expect("q", [&](Args& a) { a.q = {m, 3, 2 * kDim}; });
  expect("di", [&](Args& a) { a.q = {m, 3, 2, 48}; });
  expect("page", [&](Args& a) { a.keys.format.dim = 32; });
  expect("page format", [&](Args& a) { a.keys.format.encoding = EntryEncoding::kBf16Rope; });
  expect("head_weights", [&](Args& a) { a.head_weights = {m, 3, 3}; });
  expect("cos_sin", [&](Args& a) { a.cos_sin = {m, 2, 4, 2}; });
  expect("cos_sin", [&](Args& a) { a.cos_sin = {m, 3, 33, 2}; });
  expect("topk", [&](Args& a) { a.topk = 0; });
  expect("entries", [&](Args& a) { a.topk = 5; });
  expect("num_entries", [&](Args& a) { a.num_entries = a.num_entries.First(2); });
  expect("page format", [&](Args& a) { a.keys.format.entries_per_page = 0; });
  expect("block table", [&](Args& a) { a.plan = &no_tables; });
  const SequenceRows outside = {1, 3, 0};
  StepPlan bad_rows = *good.plan;
  bad_rows.sequences = {&outside, 1};
  expect("sequences", [&](Args& a) { a.plan = &bad_rows; });
}

TEST_P(IndexerTopk, EveryCandidateNeedsABlock) {
  // Four keys per block; candidates of position 40 are 0 to 9.
  Step step({{40, 1}}, 1, 2, official());
  for (int j = 0; j < 10; ++j) step.Key(0, j, 0, 1.0f);
  const auto run = [&](const std::vector<TestPages::Entries>& kept) {
    step.pages.KeepBlocks(CacheKind::kC4IndexKeys, 0, kept);
    step.pages.SetStep({{40, 1}});
    return backend().IndexerTopk(step.args);
  };
  ASSERT_STATUS_OK(run({{0, 10}}));
  ExpectRejected(run({{0, 8}}), "index key 8");
  ExpectRejected(run({{0, 4}, {8, 10}}), "index key 4");
  ExpectRejected(run({{4, 10}}), "index key 0");
  ExpectRejected(run({}), "index key 0");
}

}  // namespace
}  // namespace fathom
