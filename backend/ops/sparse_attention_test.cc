#include "backend/ops/sparse_attention.h"

#include <limits>

#include "backend/ops/test_backends.h"
#include "backend/ops/test_pages.h"
#include "backend/ops/test_values.h"

namespace fathom {
namespace {

using namespace testing_values;  // NOLINT(google-build-using-namespace)

constexpr int kDim = 72;
constexpr int kRope = 8;
constexpr int kHeads = 2;

// A step's operands: zero queries (all scores 0), sinks of 0 and empty pages.
struct Step {
  Step(std::vector<TestSequence> sequences, int window, int ratio, bool official, uint32_t seed = 1,
       int topk = 0)
      : pages(std::move(sequences), 160, seed) {
    const int n = pages.plan().num_rows();
    const auto rows = static_cast<size_t>(n);
    q.assign(rows * kHeads * kDim, 0.0f);
    out.assign(q.size(), -9.0f);
    step_kv.assign(rows * kDim, std::numeric_limits<float>::quiet_NaN());
    sink.assign(kHeads, 0.0f);
    kind = ratio == 128 ? CacheKind::kC128Kv : CacheKind::kC4Kv;
    const PageFormat format = KvFormat(official, kDim, kRope, 2);
    args = {.q = {q.data(), n, kHeads, kDim},
            .plan = &pages.plan(),
            .step_kv = {step_kv.data(), n, kDim},
            .swa = pages.Add(CacheKind::kSwaKv, format),
            .window = window,
            .compressed = {},
            .compressed_kind = kind,
            .ratio = ratio,
            .entries = {},
            .num_entries = {},
            .sink = {sink.data(), kHeads},
            .scale = 0.25f,
            .out = {out.data(), n, kHeads, kDim}};
    if (ratio != 0) args.compressed = pages.Add(kind, format);
    if (topk > 0) {
      entries.assign(rows * static_cast<size_t>(topk), -1);
      num_entries.assign(rows, 0);
      args.entries = {entries.data(), n, topk};
      args.num_entries = {num_entries.data(), n};
    }
  }
  void Choose(size_t row, const std::vector<int>& chosen) {
    std::copy(chosen.begin(), chosen.end(),
              entries.begin() + static_cast<long>(row) * args.entries.dim(1));
    num_entries[row] = static_cast<int32_t>(chosen.size());
  }
  // Where the operation looks for it: rows of the step beside the pages, others in them. The other
  // place stays NaN.
  void WindowKey(size_t sequence, int position, std::vector<float> key) {
    const SequenceRows& rows = pages.plan().sequences[sequence];
    if (position < rows.start) {
      pages.Write(CacheKind::kSwaKv, sequence, position, key);
    } else {
      RoundKvEntry(args.swa.format, key);
      std::ranges::copy(key, StepRow(rows, position).begin());
    }
  }
  [[nodiscard]] std::vector<float> ReadWindowKey(size_t sequence, int position) {
    const SequenceRows& rows = pages.plan().sequences[sequence];
    if (position < rows.start) return pages.Read(CacheKind::kSwaKv, sequence, position);
    const std::span<float> row = StepRow(rows, position);
    return {row.begin(), row.end()};
  }
  std::span<float> StepRow(const SequenceRows& rows, int position) {
    const auto row = static_cast<size_t>(rows.first_row + position - rows.start);
    return std::span(step_kv).subspan(row * kDim, kDim);
  }
  void WindowKeys(int first, int last, float value) {
    for (int p = first; p <= last; ++p) WindowKey(0, p, std::vector<float>(kDim, value));
  }
  void Compressed(int first, int last, float value) {
    for (int j = first; j <= last; ++j) pages.Write(kind, 0, j, std::vector<float>(kDim, value));
  }
  void ExpectRow(bool official, int row, double want) const {
    SCOPED_TRACE("row " + std::to_string(row));
    ExpectValues(official, args.out.row(row), Doubles(kHeads * kDim, want), 1e-6);
  }
  TestPages pages;
  CacheKind kind = CacheKind::kC4Kv;
  std::vector<float> q, out, sink, step_kv;
  std::vector<int32_t> entries, num_entries;
  SparseAttentionArgs args;
};

class SparseAttention : public OpTest {};
FATHOM_ON_ALL_BACKENDS(SparseAttention);

constexpr float kNone = -std::numeric_limits<float>::infinity();

TEST_P(SparseAttention, OneKeyWithoutSinkIsTheAnswer) {
  Step step({{0, 1}}, 128, 0, official());
  step.sink.assign(kHeads, kNone);
  std::vector<float> key(kDim);
  for (size_t c = 0; c < kDim; ++c) key[c] = static_cast<float>(c % 8) - 3.0f;
  step.WindowKey(0, 0, key);
  std::ranges::copy(Random(1).Bf16s(kHeads * kDim), step.q.begin());
  ASSERT_STATUS_OK(backend().SparseAttention(step.args));
  // The value is the whole key, the rotated channels included.
  for (size_t h = 0; h < kHeads; ++h) {
    EXPECT_THAT(std::span(step.out).subspan(h * kDim, kDim), testing::ElementsAreArray(key));
  }
}

TEST_P(SparseAttention, SinkIsAKeyWithoutValueOfItsHead) {
  Step step({{0, 1}}, 128, 0, official());
  step.WindowKeys(0, 0, 1.0f);
  step.sink = {std::log(3.0f), std::log(7.0f)};
  ASSERT_STATUS_OK(backend().SparseAttention(step.args));
  ExpectValues(official(), std::span(step.out).first(kDim), Doubles(kDim, 1 / 4.), 1e-6);
  ExpectValues(official(), std::span(step.out).last(kDim), Doubles(kDim, 1 / 8.), 1e-6);
}

TEST_P(SparseAttention, AHugeSinkGivesZeroAndNoNan) {
  for (const float sink : {1e4f, std::numeric_limits<float>::infinity()}) {
    Step step({{0, 1}}, 128, 0, official());
    step.WindowKeys(0, 0, 1.0f);
    step.sink.assign(kHeads, sink);
    ASSERT_STATUS_OK(backend().SparseAttention(step.args));
    for (float v : step.out) ASSERT_EQ(v, 0.0f);
  }
}

TEST_P(SparseAttention, LargeScoresDoNotOverflow) {
  Step step({{1, 1}}, 128, 0, official());
  step.WindowKeys(0, 0, 16.0f);
  step.WindowKeys(1, 1, -16.0f);
  std::fill(step.q.begin(), step.q.end(), 32.0f);  // scores +-9216
  ASSERT_STATUS_OK(backend().SparseAttention(step.args));
  step.ExpectRow(official(), 0, 16.0);
}

TEST_P(SparseAttention, ScaleMultipliesTheScores) {
  Step step({{1, 1}}, 128, 0, official());
  step.sink.assign(kHeads, kNone);
  step.WindowKeys(0, 0, 1.0f);
  step.WindowKeys(1, 1, 0.0f);
  step.args.scale = 0.5f;
  for (size_t h = 0; h < kHeads; ++h) step.q[h * kDim] = 2.0f;  // scores 1 and 0
  ASSERT_STATUS_OK(backend().SparseAttention(step.args));
  step.ExpectRow(official(), 0, std::exp(1.0) / (std::exp(1.0) + 1.0));
}

// All keys are 1 and all scores 0: with the sink's 1, n keys give n / (n + 1).
TEST_P(SparseAttention, NumberOfKeysOfTheWorkedExample) {
  Step step({{0, 13}}, 128, 4, official(), 1, 8);
  step.WindowKeys(0, 12, 1.0f);
  step.Compressed(0, 2, 1.0f);
  for (int i = 0; i < 13; ++i) {
    std::vector<int> visible;
    for (int j = 0; j < 3; ++j) {
      if (i >= 4 * j + 3) visible.push_back(j);
    }
    step.Choose(static_cast<size_t>(i), visible);
  }
  ASSERT_STATUS_OK(backend().SparseAttention(step.args));
  const int keys[] = {1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13, 15, 16};
  for (int i = 0; i < 13; ++i) step.ExpectRow(official(), i, keys[i] / (keys[i] + 1.0));
}

TEST_P(SparseAttention, WindowIsTheLastTokensIncludingItself) {
  for (const int window : {1, 4, 128}) {
    for (const int position : {0, 1, 3, 4, 127, 128, 300}) {
      Step step({{position, 1}}, window, 0, official());
      const int first = std::max(0, position - window + 1);
      // Entries outside stay NaN, and the cache has already dropped their blocks.
      step.WindowKeys(first, position, 1.0f);
      step.pages.DropBlocksBefore(CacheKind::kSwaKv, 0, first);
      ASSERT_STATUS_OK(backend().SparseAttention(step.args));
      const double keys = position - first + 1;
      step.ExpectRow(official(), 0, keys / (keys + 1.0));
    }
  }
}

// Compressed keys are 1, window keys 0: m entries among n keys give m / (n + 1).
TEST_P(SparseAttention, Ratio128SeesEveryEntryWhoseLastTokenHasPassed) {
  Step step({{124, 135}}, 128, 128, official());
  step.sink.assign(kHeads, std::log(0.5f));
  step.WindowKeys(0, 258, 0.0f);
  step.Compressed(0, 1, 1.0f);  // both are in the cache from the start
  ASSERT_STATUS_OK(backend().SparseAttention(step.args));
  for (int i = 0; i < 135; ++i) {
    const int position = 124 + i;
    const int entries = position >= 255 ? 2 : (position >= 127 ? 1 : 0);
    const int window = std::min(position + 1, 128);
    step.ExpectRow(official(), i, entries / (entries + window + 0.5));
  }
}

TEST_P(SparseAttention, Ratio4SeesTheChosenEntriesOnly) {
  Step step({{300, 2}}, 128, 4, official(), 1, 4);
  step.sink.assign(kHeads, kNone);
  step.WindowKeys(173, 301, 0.0f);
  step.Compressed(3, 3, 1.0f);  // the others are NaN
  step.Compressed(74, 74, 2.0f);
  step.Choose(0, {3, 74});
  step.Choose(1, {});
  ASSERT_STATUS_OK(backend().SparseAttention(step.args));
  step.ExpectRow(official(), 0, 3.0 / 130.0);
  step.ExpectRow(official(), 1, 0.0);
}

// Contents as a function of sequence label and entry.
void Fill(Step& step, const std::vector<TestSequence>& sequences,
          const std::vector<uint32_t>& labels, int ratio) {
  size_t row = 0;
  step.sink = {0.3f, -1.5f};
  for (size_t s = 0; s < sequences.size(); ++s) {
    const int end = sequences[s].start + sequences[s].num_rows;
    const auto values = [&](int what, int i) {
      Random random(100000 * labels[s] + 10000 * static_cast<uint32_t>(what) +
                    static_cast<uint32_t>(i));
      return random.Bf16s(what == 2 ? kHeads * kDim : kDim, -2.0, 2.0);
    };
    for (int p = 0; p < end; ++p) step.WindowKey(s, p, values(0, p));
    for (int j = 0; ratio > 0 && j < end / ratio; ++j)
      step.pages.Write(step.kind, s, j, values(1, j));
    for (int p = sequences[s].start; p < end; ++p, ++row) {
      const std::vector<float> q = values(2, p);
      std::copy(q.begin(), q.end(), step.q.begin() + static_cast<long>(row * kHeads * kDim));
      if (ratio == 4) {
        std::vector<int> chosen;  // some of the visible ones
        for (int j = p % 3; j < (p + 1) / 4 && chosen.size() < 9; j += 2) chosen.push_back(j);
        step.Choose(row, chosen);
      }
    }
  }
}

TEST_P(SparseAttention, EqualsTheFormulaInDouble) {
  for (const int ratio : {0, 4, 128}) {
    SCOPED_TRACE(ratio);
    const std::vector<TestSequence> sequences = {{120, 20}};
    Step step(sequences, 16, ratio, official(), 1, ratio == 4 ? 9 : 0);
    Fill(step, sequences, {1}, ratio);
    ASSERT_STATUS_OK(backend().SparseAttention(step.args));
    for (size_t i = 0; i < 20; ++i) {
      const int position = 120 + static_cast<int>(i);
      std::vector<std::vector<float>> keys;
      for (int p = 0; p <= position; ++p) {
        if (position - p < 16) keys.push_back(step.ReadWindowKey(0, p));
      }
      for (int j = 0; ratio > 0 && ratio * j + ratio - 1 <= position; ++j) {
        const auto chosen =
            std::span(step.entries).subspan(ratio == 4 ? 9 * i : 0, ratio == 4 ? 9 : 0);
        if (ratio == 4 && std::ranges::find(chosen, j) == chosen.end()) continue;
        keys.push_back(step.pages.Read(step.kind, 0, j));
      }
      for (size_t h = 0; h < kHeads; ++h) {
        double den = std::exp(static_cast<double>(step.sink[h]));
        Doubles sum(kDim);
        for (const std::vector<float>& key : keys) {
          double z = 0.0;
          for (size_t c = 0; c < kDim; ++c) {
            z += static_cast<double>(step.q[(i * kHeads + h) * kDim + c]) *
                 static_cast<double>(key[c]);
          }
          const double weight = std::exp(0.25 * z);
          den += weight;
          for (size_t c = 0; c < kDim; ++c) sum[c] += weight * static_cast<double>(key[c]);
        }
        for (double& v : sum) v /= den;
        ExpectValues(official(), std::span(step.out).subspan((i * kHeads + h) * kDim, kDim), sum,
                     1e-5);
      }
    }
  }
}

TEST_P(SparseAttention, ASequenceAmongOthersHasTheSameBitsAsAlone) {
  for (const int ratio : {0, 4, 128}) {
    const std::vector<TestSequence> sequences = {{126, 4}, {0, 6}, {255, 2}};
    const std::vector<uint32_t> labels = {4, 5, 6};
    const int topk = ratio == 4 ? 9 : 0;
    Step all(sequences, 128, ratio, official(), 1, topk);
    Fill(all, sequences, labels, ratio);
    ASSERT_STATUS_OK(backend().SparseAttention(all.args));
    size_t first = 0;
    for (size_t s = 0; s < 3; ++s) {
      Step one({sequences[s]}, 128, ratio, official(), 6, topk);
      Fill(one, {sequences[s]}, {labels[s]}, ratio);
      ASSERT_STATUS_OK(backend().SparseAttention(one.args));
      EXPECT_TRUE(std::ranges::equal(one.out, std::span(all.out).subspan(first, one.out.size())))
          << "ratio " << ratio << ", sequence " << s;
      first += one.out.size();
    }
  }
}

TEST_P(SparseAttention, ChecksItsArguments) {
  Step step({{0, 3}}, 128, 4, official(), 1, 2);
  const SparseAttentionArgs good = step.args;
  ASSERT_STATUS_OK(Check(good));
  using Args = SparseAttentionArgs;
  const auto expect = [&](const std::string& operand, auto&& spoil) {
    Args bad = good;
    spoil(bad);
    ExpectRejected(backend().SparseAttention(bad), operand);
  };
  float* m = step.q.data();
  StepPlan no_swa = *good.plan;
  no_swa.tables[static_cast<size_t>(CacheClass::kSwa)] = {};
  StepPlan no_full = *good.plan;
  no_full.tables[static_cast<size_t>(CacheClass::kFull)] = {};
  expect("plan", [&](Args& a) { a.plan = nullptr; });
  expect("pages", [&](Args& a) { a.swa.base = nullptr; });
  expect("window", [&](Args& a) { a.window = 0; });
  expect("q", [&](Args& a) { a.q = {m, 2, kHeads, kDim}; });
  expect("q", [&](Args& a) { a.q = {m, 3, kHeads * kDim}; });
  expect("step_kv", [&](Args& a) { a.step_kv = {}; });
  expect("step_kv", [&](Args& a) { a.step_kv = {m, 2, kDim}; });
  expect("step_kv", [&](Args& a) { a.step_kv = {m, 3, kDim - 8}; });
  expect("page", [&](Args& a) { a.swa.format.dim = 64; });
  expect("sink", [&](Args& a) { a.sink = {m, kHeads + 1}; });
  expect("out", [&](Args& a) { a.out = {m, 3, kHeads, kDim - 1}; });
  expect("ratio", [&](Args& a) { a.ratio = 0; });
  expect("ratio", [&](Args& a) { a.ratio = -4; });
  expect("compressed", [&](Args& a) { a.compressed.base = nullptr; });
  expect("compressed", [&](Args& a) { a.compressed.format.dim = 64; });
  expect("page format", [&](Args& a) { a.swa.format.encoding = EntryEncoding::kE2m1; });
  expect("page format", [&](Args& a) { a.swa.format.entries_per_page = 0; });
  expect("compressed", [&](Args& a) { a.compressed.format.entries_per_page = 0; });
  expect("compressed", [&](Args& a) { a.compressed.format.encoding = EntryEncoding::kBf16; });
  expect("entries", [&](Args& a) { a.entries = a.entries.First(2); });
  expect("num_entries", [&](Args& a) { a.num_entries = a.num_entries.First(2); });
  expect("block table", [&](Args& a) { a.plan = &no_swa; });
  expect("block table", [&](Args& a) { a.plan = &no_full; });
  for (const SequenceRows& rows :
       {SequenceRows{0, 4, 0}, {1, 3, 0}, {-1, 3, 0}, {0, -1, 0}, {0, 3, -1}, {0, 3, INT32_MAX}}) {
    StepPlan bad = *good.plan;
    bad.sequences = {&rows, 1};
    expect("sequences", [&](Args& a) { a.plan = &bad; });
  }
}

TEST_P(SparseAttention, EntriesToReadNeedABlockAndRowsOfTheStepDoNot) {
  // Two entries per block: the windows of positions 20 and 21 begin at 13 and reach into the step.
  Step step({{20, 2}}, 8, 4, official(), 1, 2);
  step.WindowKeys(13, 21, 1.0f);
  step.Compressed(0, 4, 1.0f);
  const auto run = [&](const std::vector<TestPages::Entries>& window,
                       const std::vector<TestPages::Entries>& compressed) {
    step.pages.KeepBlocks(CacheKind::kSwaKv, 0, window);
    step.pages.KeepBlocks(step.kind, 0, compressed);
    step.pages.SetStep({{20, 2}});
    return backend().SparseAttention(step.args);
  };
  ASSERT_STATUS_OK(run({{13, 20}}, {{0, 5}}));
  for (float v : step.out) ASSERT_NEAR(v, 8.0 / 9.0, 4e-3);  // bf16: 2^-9 of the value
  ExpectRejected(run({{14, 20}}, {{0, 5}}), "window entry 13");
  ExpectRejected(run({{12, 16}, {18, 22}}, {{0, 5}}), "window entry 16");
  ExpectRejected(run({}, {{0, 5}}), "window entry 13");
  ExpectRejected(run({{13, 20}}, {{0, 4}}), "entry 4");
  ExpectRejected(run({{13, 20}}, {{2, 5}}), "entry 0");
}

}  // namespace
}  // namespace fathom
