#include "backend/ops/compress_insert.h"

#include "backend/ops/test_backends.h"
#include "backend/ops/test_pages.h"
#include "backend/ops/test_values.h"

namespace fathom {
namespace {

using namespace testing_values;  // NOLINT(google-build-using-namespace)

constexpr int kRope = 8;

// What one compressor of a layer looks like, and the tokens of one or more sequences.
struct Shape {
  int ratio = 4;
  bool index_side = false;
  [[nodiscard]] int width() const { return index_side ? 64 : 72; }
  [[nodiscard]] int coff_width() const { return ratio == 4 ? 2 * width() : width(); }
  [[nodiscard]] CacheKind state() const {
    return ratio == 128 ? CacheKind::kC128State
                        : (index_side ? CacheKind::kC4IndexState : CacheKind::kC4State);
  }
  [[nodiscard]] CacheKind out() const {
    return ratio == 128 ? CacheKind::kC128Kv
                        : (index_side ? CacheKind::kC4IndexKeys : CacheKind::kC4Kv);
  }
};

// The rotation angles at a position.
Doubles Angles(int position) {
  Doubles angles;
  for (int k = 0; k < kRope / 2; ++k) angles.push_back(position * std::pow(0.3, k));
  return angles;
}

// A compressor at work: feeds tokens step by step; K and S of a token depend on its sequence and
// position alone.
class Compressor {
 public:
  Compressor(Backend& backend, bool official, Shape shape, size_t sequences, uint32_t seed = 1)
      : backend_(backend),
        shape_(shape),
        pages_(std::vector<TestSequence>(sequences), shape.ratio == 128 ? 48 : 16, seed) {
    Random random(99);
    const auto width = static_cast<size_t>(shape.width());
    const auto coff_width = static_cast<size_t>(shape.coff_width());
    norm_weight_ = random.Bf16s(width, 0.5, 1.5);
    ape_ = random.Floats(static_cast<size_t>(shape.ratio) * coff_width, -2.0, 2.0);
    state_ = pages_.Add(shape.state(), {EntryEncoding::kF32, 2 * shape.coff_width(), 0, 8});
    out_ = pages_.Add(shape.out(), shape.index_side ? IndexKeyFormat(official, shape.width(), 4)
                                                    : KvFormat(official, shape.width(), kRope, 4));
  }

  // K and S of a token, without ape. Odd sequence labels have other contents.
  [[nodiscard]] std::vector<float> Token(uint32_t label, int position) const {
    Random random(1000 * label + static_cast<uint32_t>(position) + 1);
    return random.Floats(2 * static_cast<size_t>(shape_.coff_width()), -2.0, 2.0);
  }
  [[nodiscard]] float ape(int row, int channel) const {
    return ape_[static_cast<size_t>(row * shape_.coff_width() + channel)];
  }

  // `labels` names the sequences' contents.
  Status Step(const std::vector<TestSequence>& sequences, const std::vector<uint32_t>& labels) {
    pages_.SetStep(sequences);
    std::vector<float> k, s, rotation;
    int entries = 0;
    for (size_t i = 0; i < sequences.size(); ++i) {
      const TestSequence& seq = sequences[i];
      for (int p = seq.start; p < seq.start + seq.num_rows; ++p) {
        const std::vector<float> token = Token(labels[i], p);
        const auto half = static_cast<long>(token.size() / 2);
        k.insert(k.end(), token.begin(), token.begin() + half);
        s.insert(s.end(), token.begin() + half, token.end());
        if ((p + 1) % shape_.ratio == 0) {
          AppendCosSin(Angles(p + 1 - shape_.ratio), rotation);
          ++entries;
        }
      }
    }
    const int n = pages_.plan().num_rows();
    const int coff_width = shape_.coff_width();
    args_ = {.kv_rows = {k.data(), n, coff_width},
             .score_rows = {s.data(), n, coff_width},
             .ape = {ape_.data(), shape_.ratio, coff_width},
             .norm_weight = {norm_weight_.data(), shape_.width()},
             .anchor_cos_sin = {rotation.data(), entries, kRope / 2, 2},
             .norm_eps = kEps,
             .ratio = shape_.ratio,
             .index_side = shape_.index_side,
             .plan = &pages_.plan(),
             .state = state_,
             .out = out_,
             .state_kind = shape_.state(),
             .out_kind = shape_.out()};
    return backend_.CompressInsert(args_);
  }

  // Entry j by the formulas, before the storage format; the norm sees bf16 where `bf16` is set.
  [[nodiscard]] Doubles Entry(bool bf16, uint32_t label, int j) const {
    const int r = shape_.ratio, w = shape_.width(), cw = shape_.coff_width();
    Doubles pooled(static_cast<size_t>(w));
    for (int c = 0; c < w; ++c) {
      double weights = 0.0, sum = 0.0;
      for (int t = r == 4 ? 4 * j - 4 : r * j; t < r * (j + 1); ++t) {
        if (t < 0) continue;                                   // score -inf
        const int channel = r == 4 && t >= 4 * j ? w + c : c;  // own window: second half
        const std::vector<float> token = Token(label, t);
        const double score = static_cast<double>(token[static_cast<size_t>(cw + channel)]) +
                             static_cast<double>(ape(t % r, channel));
        weights += std::exp(score);
        sum += std::exp(score) * static_cast<double>(token[static_cast<size_t>(channel)]);
      }
      pooled[static_cast<size_t>(c)] = sum / weights;
    }
    Doubles entry = NaiveRmsNorm(MaybeBf16(bf16, pooled), ToDoubles(norm_weight_), kEps);
    entry = MaybeBf16(bf16, NaiveRope(MaybeBf16(bf16, entry), Angles(r * j)));
    return shape_.index_side ? MaybeBf16(bf16, NaiveHadamard(entry)) : entry;
  }

  TestPages& pages() { return pages_; }
  CompressInsertArgs& args() { return args_; }
  std::vector<float>& norm_weight() { return norm_weight_; }

  // Large, so that a pooled sum off by a factor does not vanish in the norm.
  static constexpr float kEps = 0.5f;

 private:
  Backend& backend_;
  Shape shape_;
  TestPages pages_;
  std::vector<float> norm_weight_, ape_;
  PageView state_, out_;
  CompressInsertArgs args_;
};

class CompressInsert : public OpTest {
 protected:
  // Stored entry j against the formulas.
  void ExpectEntry(Compressor& compressor, const Shape& shape, size_t sequence, uint32_t label,
                   int j) {
    SCOPED_TRACE("entry " + std::to_string(j));
    const std::vector<float> got = compressor.pages().Read(shape.out(), sequence, j);
    const Doubles entry = compressor.Entry(official(), label, j);
    if (!official()) {
      ExpectValues(false, got, entry, 1e-5);
      return;
    }
    // An fp32 sum on the other side of a bf16 boundary moves a value by a few bf16 steps and can
    // flip the code of the few channels that stand near the middle of two.
    const Doubles want = shape.index_side ? AsE2m1(entry) : [&] {
      Doubles nope(entry.begin(), entry.end() - kRope);
      nope = AsE4m3(nope, 64);
      nope.insert(nope.end(), entry.end() - kRope, entry.end());
      return nope;
    }();
    int other_codes = 0;
    for (size_t c = 0; c < want.size(); ++c) {
      const bool rotated = !shape.index_side && c >= want.size() - kRope;
      const double bf16_steps = 2.0 * Bf16Ulp(want[c]);
      if (std::fabs(got[c] - want[c]) > (rotated ? bf16_steps : 0.0)) ++other_codes;
    }
    EXPECT_LE(other_codes, 2);
    EXPECT_LT(RelativeL2(got, want), 0.05);
  }
};
FATHOM_ON_ALL_BACKENDS(CompressInsert);

constexpr Shape kShapes[] = {{4, false}, {4, true}, {128, false}};

// State rows that can be read once tokens [0, end) were computed.
TestPages::Entries LiveRows(const Shape& shape, int end) {
  return {FirstRowOfEntry(end / shape.ratio, shape.ratio), end};
}

// The worked example of the specification: 13 tokens, three entries, a fourth one begun.
TEST_P(CompressInsert, ThirteenTokensOfRatio4GiveThreeEntries) {
  for (const Shape& shape : {kShapes[0], kShapes[1]}) {
    Compressor compressor(backend(), official(), shape, 1);
    ASSERT_STATUS_OK(compressor.Step({{0, 13}}, {7}));
    for (int j = 0; j < 3; ++j) ExpectEntry(compressor, shape, 0, 7, j);
    for (int j = 3; j < 16; ++j) EXPECT_TRUE(compressor.pages().Untouched(shape.out(), 0, j)) << j;
    EXPECT_TRUE(compressor.pages().GapsUntouched());
  }
}

TEST_P(CompressInsert, AnEntryIsThereOnceItsLastTokenIs) {
  for (const Shape& shape : kShapes) {
    Compressor compressor(backend(), official(), shape, 1);
    const int last = shape.ratio - 1;
    ASSERT_STATUS_OK(compressor.Step({{0, last}}, {1}));
    EXPECT_TRUE(compressor.pages().Untouched(shape.out(), 0, 0));
    ASSERT_STATUS_OK(compressor.Step({{last, 1}}, {1}));
    ExpectEntry(compressor, shape, 0, 1, 0);
    EXPECT_TRUE(compressor.pages().Untouched(shape.out(), 0, 1));
  }
}

// Entry 0 of ratio 4 has four items. With a fifth that counts as score 0, a token's own low scores
// would no longer decide.
TEST_P(CompressInsert, EntryZeroHasNoItemsBeforeTheSequence) {
  const Shape shape{4, false};
  Compressor compressor(backend(), official(), shape, 1);
  ASSERT_STATUS_OK(compressor.Step({{0, 3}}, {1}));
  // Bury what the first three tokens say, then pool by hand: scores -50, K = 1.
  const auto w = static_cast<size_t>(shape.width());
  for (int t = 0; t < 3; ++t) {
    std::vector<float> row(4 * w, -50.0f);
    std::fill_n(row.begin(), 2 * w, 1.0f);
    compressor.pages().Write(shape.state(), 0, t, row);
  }
  std::vector<float> k(2 * w, 1.0f), s(2 * w);
  for (int c = 0; c < shape.coff_width(); ++c)
    s[static_cast<size_t>(c)] = -50.0f - compressor.ape(3, c);
  CompressInsertArgs args = compressor.args();
  compressor.pages().SetStep({{3, 1}});
  std::vector<float> rotation;
  AppendCosSin(Angles(0), rotation);
  args.kv_rows = {k.data(), 1, shape.coff_width()};
  args.score_rows = {s.data(), 1, shape.coff_width()};
  args.anchor_cos_sin = {rotation.data(), 1, kRope / 2, 2};
  std::fill(compressor.norm_weight().begin(), compressor.norm_weight().end(), 1.0f);
  args.norm_eps = 3.0f;  // all pooled values are 1: the norm halves them
  ASSERT_STATUS_OK(backend().CompressInsert(args));
  for (float v : compressor.pages().Read(shape.out(), 0, 0)) EXPECT_EQ(v, 0.5f);
}

TEST_P(CompressInsert, Ratio128PoolsItsOwn128Tokens) {
  const Shape shape{128, false};
  Compressor compressor(backend(), official(), shape, 1);
  ASSERT_STATUS_OK(compressor.Step({{0, 300}}, {3}));
  ExpectEntry(compressor, shape, 0, 3, 0);
  ExpectEntry(compressor, shape, 0, 3, 1);
  EXPECT_TRUE(compressor.pages().Untouched(shape.out(), 0, 2));
}

TEST_P(CompressInsert, StateRowHoldsKAndScoreWithTheApeOfTheAbsolutePosition) {
  for (const Shape& shape : kShapes) {
    Compressor compressor(backend(), official(), shape, 1);
    ASSERT_STATUS_OK(compressor.Step({{0, 6}}, {1}));
    ASSERT_STATUS_OK(compressor.Step({{6, 5}}, {1}));  // begins inside a window
    for (int t = 0; t < 11; ++t) {
      std::vector<float> want = compressor.Token(1, t);
      for (int c = 0; c < shape.coff_width(); ++c) {
        want[static_cast<size_t>(shape.coff_width() + c)] += compressor.ape(t % shape.ratio, c);
      }
      EXPECT_EQ(compressor.pages().Read(shape.state(), 0, t), want) << "token " << t;
    }
    EXPECT_TRUE(compressor.pages().Untouched(shape.state(), 0, 11));
  }
}

TEST_P(CompressInsert, AnyCutIntoStepsGivesTheSameBytes) {
  for (const Shape& shape : kShapes) {
    const int total = shape.ratio == 4 ? 23 : 260;
    Compressor whole(backend(), official(), shape, 1);
    ASSERT_STATUS_OK(whole.Step({{0, total}}, {2}));
    for (int chunk : {1, 2, 3, 4, 5, 7, 100}) {
      Compressor cut(backend(), official(), shape, 1, 5);
      for (int start = 0; start < total; start += chunk) {
        ASSERT_STATUS_OK(cut.Step({{start, std::min(chunk, total - start)}}, {2}));
      }
      for (int j = 0; j < total / shape.ratio; ++j) {
        EXPECT_EQ(cut.pages().Bytes(shape.out(), 0, j), whole.pages().Bytes(shape.out(), 0, j))
            << "chunks of " << chunk << ", entry " << j;
      }
    }
  }
}

// Sequences that end no window, one and two in the same step, in pages scattered among each other.
TEST_P(CompressInsert, ASequenceAmongOthersHasTheSameBytesAsAlone) {
  for (const Shape& shape : kShapes) {
    const int r = shape.ratio;
    const std::vector<TestSequence> first = {{0, r - 2}, {0, r}, {0, 2 * r - 1}};
    const std::vector<TestSequence> second = {{r - 2, 5}, {r, 2}, {2 * r - 1, r == 4 ? 6 : 1}};
    const std::vector<uint32_t> labels = {11, 12, 13};
    Compressor all(backend(), official(), shape, 3);
    ASSERT_STATUS_OK(all.Step(first, labels));
    ASSERT_STATUS_OK(all.Step(second, labels));
    for (size_t s = 0; s < 3; ++s) {
      Compressor one(backend(), official(), shape, 1, 4);
      ASSERT_STATUS_OK(one.Step({first[s]}, {labels[s]}));
      ASSERT_STATUS_OK(one.Step({second[s]}, {labels[s]}));
      const int tokens = second[s].start + second[s].num_rows;
      for (int j = 0; j < tokens / r; ++j) {
        EXPECT_EQ(all.pages().Bytes(shape.out(), s, j), one.pages().Bytes(shape.out(), 0, j));
      }
      EXPECT_TRUE(all.pages().Untouched(shape.out(), s, tokens / r));
      ExpectEntry(all, shape, s, labels[s], tokens / r - 1);
    }
    EXPECT_TRUE(all.pages().GapsUntouched());
  }
}

// Sequences at different places of a window advance together: with every block kept, and with
// blocks for the live rows before and after each step alone. A table has three parts then: rows
// before the step, a hole, rows at its end.
TEST_P(CompressInsert, BlocksOfTheLiveTailAreEnough) {
  for (const Shape& shape : kShapes) {
    const int r = shape.ratio, longest = r == 4 ? 60 : 380;
    const std::vector<uint32_t> labels = {21, 22, 23};
    // Rows per step and sequence: less and more than a window, none at all, single ones.
    std::vector<std::vector<int>> steps = {{r - 1, 2 * r, 1}, {1, 0, r}, {1, 3, r + 3}};
    for (int i = 0; i < 5; ++i) steps.push_back({1, 2, i == 0 ? r / 2 : 3});
    Compressor all(backend(), official(), shape, 3), tail(backend(), official(), shape, 3, 8);
    std::vector<int> lengths(3, 0);
    for (const std::vector<int>& rows : steps) {
      std::vector<TestSequence> step;
      for (size_t s = 0; s < 3; ++s) {
        step.push_back({lengths[s], rows[s]});
        lengths[s] += rows[s];
        ASSERT_LT(lengths[s], longest);
        tail.pages().KeepBlocks(shape.state(), s,
                                {LiveRows(shape, step[s].start), LiveRows(shape, lengths[s])});
      }
      ASSERT_STATUS_OK(all.Step(step, labels));
      ASSERT_STATUS_OK(tail.Step(step, labels));
      for (size_t s = 0; s < 3; ++s) {
        EXPECT_TRUE(tail.pages().LostBlocksUntouched(shape.state(), s));
        const TestPages::Entries live = LiveRows(shape, lengths[s]);
        for (int64_t t = live.begin; t < live.end; ++t) {
          ASSERT_EQ(tail.pages().Bytes(shape.state(), s, t), all.pages().Bytes(shape.state(), s, t))
              << "ratio " << r << ", sequence " << s << ", row " << t;
        }
      }
    }
    for (size_t s = 0; s < 3; ++s) {
      for (int j = 0; j < lengths[s] / r; ++j) {
        ASSERT_EQ(tail.pages().Bytes(shape.out(), s, j), all.pages().Bytes(shape.out(), s, j))
            << "ratio " << r << ", sequence " << s << ", entry " << j;
      }
      EXPECT_TRUE(tail.pages().Untouched(shape.out(), s, lengths[s] / r));
      ExpectEntry(tail, shape, s, labels[s], lengths[s] / r - 1);
    }
    EXPECT_TRUE(tail.pages().GapsUntouched());
  }
}

TEST_P(CompressInsert, EarlierRowsAndEntriesNeedABlockAndRowsOfTheStepDoNot) {
  for (const Shape& shape : kShapes) {
    const int r = shape.ratio;
    Compressor compressor(backend(), official(), shape, 1);
    TestPages& pages = compressor.pages();
    ASSERT_STATUS_OK(compressor.Step({{0, r + 2}}, {1}));
    const auto step = [&](const TestPages::Entries& state, const TestPages::Entries& out, int n) {
      pages.KeepBlocks(shape.state(), 0, {state});
      pages.KeepBlocks(shape.out(), 0, {out});
      return compressor.Step({{r + 2, n}}, {1});
    };
    // State pages have 8 rows, pages of entries 4. Entry 1 needs rows from 0 (r = 4) or 128 on.
    const int64_t first = r == 4 ? 0 : 128;
    ExpectRejected(step({r + 8, r + 24}, {0, 4}, r), "compressor row " + std::to_string(first));
    ExpectRejected(step({}, {0, 4}, r), "compressor row " + std::to_string(first));
    ExpectRejected(step({first, r + 2}, {}, r), "block for entry 1");
    ExpectRejected(step({first, r + 2}, {4, 8}, r), "block for entry 1");
    // No window ends: nothing is read.
    ASSERT_STATUS_OK(step({}, {}, 1));
    EXPECT_TRUE(pages.LostBlocksUntouched(shape.state(), 0));
    EXPECT_TRUE(pages.LostBlocksUntouched(shape.out(), 0));
  }
}

// A rejected draft's position is computed again later.
TEST_P(CompressInsert, APositionWrittenAgainReplacesWhatWasThere) {
  const Shape shape{4, false};
  Compressor clean(backend(), official(), shape, 1);
  ASSERT_STATUS_OK(clean.Step({{0, 8}}, {1}));
  Compressor again(backend(), official(), shape, 1);
  ASSERT_STATUS_OK(again.Step({{0, 6}}, {1}));
  ASSERT_STATUS_OK(again.Step({{6, 2}}, {77}));
  EXPECT_NE(again.pages().Bytes(shape.out(), 0, 1), clean.pages().Bytes(shape.out(), 0, 1));
  ASSERT_STATUS_OK(again.Step({{6, 2}}, {1}));
  EXPECT_EQ(again.pages().Bytes(shape.out(), 0, 1), clean.pages().Bytes(shape.out(), 0, 1));
}

// Equal K make the pooled sum their value, whatever the scores: just over half a bf16 step above 1.
TEST_P(CompressInsert, PooledSumIsRoundedToBf16BeforeTheNorm) {
  const Shape shape{4, false};
  Compressor compressor(backend(), official(), shape, 1);
  ASSERT_STATUS_OK(compressor.Step({{0, 3}}, {1}));
  compressor.pages().SetStep({{0, 4}});
  const auto rows = static_cast<size_t>(4 * shape.coff_width());
  std::vector<float> k(rows, 1.0f + 0x1p-8f + 0x1p-10f), s(rows);
  std::vector<float> rotation;
  AppendCosSin(Angles(0), rotation);
  CompressInsertArgs args = compressor.args();
  args.kv_rows = {k.data(), 4, shape.coff_width()};
  args.score_rows = {s.data(), 4, shape.coff_width()};
  args.anchor_cos_sin = {rotation.data(), 1, kRope / 2, 2};
  args.norm_eps = 0x1p20f;  // the norm divides by 1024
  std::fill(compressor.norm_weight().begin(), compressor.norm_weight().end(), 1.75f);
  ASSERT_STATUS_OK(backend().CompressInsert(args));
  // 1.75 * (1 + 2^-7) is nearest to 226 / 128, 1.75 * (1 + 2^-8 + 2^-10) to 225 / 128.
  const float got = compressor.pages().Read(shape.out(), 0, 0).back();
  EXPECT_NEAR(got * 0x1p17f, official() ? 226.0 : 128 * 1.75 * (1 + 0x1p-8 + 0x1p-10), 1e-3);
}

TEST(EntriesEnding, AreThoseWhoseLastTokenIsInTheStep) {
  for (int ratio : {4, 128}) {
    for (int start = 0; start < 3 * ratio; ++start) {
      for (int n = 0; n < 2 * ratio + 3; ++n) {
        std::vector<int> ending;
        for (int p = start; p < start + n; ++p) {
          if (p % ratio == ratio - 1) ending.push_back(p / ratio);
        }
        const EndingEntries got = EntriesEnding({0, n, start}, ratio);
        ASSERT_EQ(got.count, static_cast<int>(ending.size())) << start << " " << n;
        if (!ending.empty()) {
          ASSERT_EQ(got.first, ending[0]) << start << " " << n;
        }
      }
    }
  }
}

TEST_P(CompressInsert, ChecksItsArguments) {
  const Shape shape{4, false};
  Compressor compressor(backend(), official(), shape, 2);
  ASSERT_STATUS_OK(compressor.Step({{0, 5}, {0, 3}}, {1, 2}));
  std::vector<float> memory(4096);
  float* m = memory.data();
  CompressInsertArgs good = compressor.args();
  good.kv_rows = good.score_rows = {m, 8, 144};
  good.anchor_cos_sin = {m, 1, 4, 2};
  ASSERT_STATUS_OK(Check(good));
  using Args = CompressInsertArgs;
  const auto expect = [&](const std::string& operand, auto&& spoil) {
    Args bad = good;
    spoil(bad);
    ExpectRejected(backend().CompressInsert(bad), operand);
  };
  StepPlan no_tables = *good.plan;
  no_tables.tables[static_cast<size_t>(CacheClass::kFull)] = {};
  expect("ratio", [&](Args& a) { a.ratio = 8; });
  expect("ratio", [&](Args& a) { a.ratio = 0; });
  expect("plan", [&](Args& a) { a.plan = nullptr; });
  expect("pages", [&](Args& a) { a.state.base = nullptr; });
  expect("pages", [&](Args& a) { a.out.base = nullptr; });
  expect("row", [&](Args& a) { a.kv_rows = {m, 7, 144}; });
  expect("kv_rows", [&](Args& a) { a.kv_rows = {m, 8, 72}; });
  expect("score_rows", [&](Args& a) { a.score_rows = {m, 8, 72}; });
  expect("ape", [&](Args& a) { a.ape = {m, 5, 144}; });
  expect("anchor_cos_sin", [&](Args& a) { a.anchor_cos_sin = {m, 2, 4, 2}; });
  expect("anchor_cos_sin", [&](Args& a) { a.anchor_cos_sin = {m, 1, 40, 2}; });
  expect("page", [&](Args& a) { a.state.format.dim = 144; });
  expect("page", [&](Args& a) { a.out.format.dim = 64; });
  expect("fp32", [&](Args& a) { a.state.format.encoding = EntryEncoding::kBf16; });
  expect("page format", [&](Args& a) { a.out.format.encoding = EntryEncoding::kE4m3Scaled; });
  expect("page format", [&](Args& a) {
    a.out.format = {EntryEncoding::kBf16Rope, a.out.format.dim, 16, 4};  // no groups of 64
  });
  expect("page formats", [&](Args& a) { a.state.format.entries_per_page = 0; });
  expect("page formats", [&](Args& a) { a.out.format.entries_per_page = 0; });
  expect("block table", [&](Args& a) { a.plan = &no_tables; });
  const SequenceRows outside[] = {{0, 5, 0}, {5, 3, INT32_MAX - 2}};
  StepPlan bad_rows = *good.plan;
  bad_rows.sequences = outside;
  expect("sequences", [&](Args& a) { a.plan = &bad_rows; });
}

}  // namespace
}  // namespace fathom
