// The operations of CpuBackend that read and write cache pages: against the reference, for several
// sequences at once and alone, in one step and in many, with other numbers of threads.
#include <gtest/gtest.h>

#include <memory>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/test_support.h"
#include "backend/cpu/test_targets.h"
#include "backend/reference/reference_backend.h"

namespace fathom {
namespace {

using test::Random;
using test::TestPages;
using test::TestPlan;
using test::View;

constexpr Numerics kBothNumerics[] = {Numerics::kOfficial, Numerics::kExact};
constexpr int kDim = 128, kRope = 64;

class CpuCacheOps : public test::PerTarget {};
FATHOM_FOR_TARGETS(CpuCacheOps, test::FastTargets());

void ExpectOk(const Status& status) { ASSERT_TRUE(status.ok()) << status.ToString(); }

std::unique_ptr<Backend> MakeCpu(Numerics numerics, int threads) {
  BackendLimits limits;
  limits.max_rows = 200;
  limits.max_cols = 1024;
  limits.max_heads = 20;
  limits.max_head_dim = kDim;
  limits.max_positions = 8192;
  auto backend = std::make_unique<CpuBackend>(numerics, threads);
  ExpectOk(backend->Prepare(limits));
  return backend;
}

PageFormat KvFormat(Numerics numerics, int entries_per_page) {
  return numerics == Numerics::kOfficial
             ? PageFormat{EntryEncoding::kE4m3Rope, kDim, kRope, entries_per_page}
             : PageFormat{EntryEncoding::kF32, kDim, 0, entries_per_page};
}

PageFormat KeyFormat(Numerics numerics, int dim) {
  return numerics == Numerics::kOfficial ? PageFormat{EntryEncoding::kE2m1, dim, 0, 64}
                                         : PageFormat{EntryEncoding::kF32, dim, 0, 64};
}

// Rows of a step: (start, rows) of each sequence.
using Parts = std::vector<std::pair<Position, int>>;

int NumRows(const Parts& parts) {
  int rows = 0;
  for (const auto& part : parts) rows += part.second;
  return rows;
}

// The same rows in steps of at most `size` tokens of one sequence; `sequence` and `first_row` say
// where they belong.
struct SmallStep {
  size_t sequence = 0;
  int first_row = 0;
  Position start = 0;
  int rows = 0;
};
std::vector<SmallStep> Split(const Parts& parts, int size) {
  std::vector<SmallStep> steps;
  int row = 0;
  for (size_t s = 0; s < parts.size(); ++s) {
    for (int done = 0; done < parts[s].second; done += size) {
      const int rows = std::min(size, parts[s].second - done);
      steps.push_back({s, row + done, parts[s].first + done, rows});
    }
    row += parts[s].second;
  }
  return steps;
}

TEST_P(CpuCacheOps, QNormRopeKvInsert) {
  Random random(31);
  constexpr int kHeads = 3;
  const Parts parts = {{0, 9}, {130, 1}, {60, 20}};
  const int rows = NumRows(parts);
  for (Numerics numerics : kBothNumerics) {
    const std::vector<float> q = random.Bf16s(int64_t{rows} * kHeads * kDim);
    const std::vector<float> kv = random.Bf16s(int64_t{rows} * kDim, 3.0f);
    const std::vector<float> weight = random.Bf16s(kDim);
    const std::vector<float> cos_sin = random.Normals(int64_t{rows} * kRope);
    TestPages pages(random, KvFormat(numerics, 64), 3, 256);
    const auto run = [&](Backend& backend, int step_size) {
      std::fill(pages.memory().begin(), pages.memory().end(), std::byte{0x5A});
      std::vector<float> heads = q, step_kv(kv.size(), -7.0f);
      const auto step = [&](const TestPlan& plan, int first) {
        const int n = plan.plan.num_rows();
        QNormRopeKvInsertArgs args;
        args.q = {heads.data() + int64_t{first} * kHeads * kDim, n, kHeads, kDim};
        args.kv = {kv.data() + int64_t{first} * kDim, n, kDim};
        args.kv_norm_weight = {weight.data(), kDim};
        args.cos_sin = {cos_sin.data() + int64_t{first} * kRope, n, kRope / 2, 2};
        args.norm_eps = 1e-6f;
        args.plan = &plan.plan;
        args.swa = pages.view();
        args.step_kv = {step_kv.data() + int64_t{first} * kDim, n, kDim};
        ExpectOk(backend.QNormRopeKvInsert(args));
      };
      if (step_size == 0) {
        TestPlan plan(parts);
        plan.SetTables(CacheKind::kSwaKv, pages.tables());
        step(plan, 0);
      } else {
        for (const SmallStep& s : Split(parts, step_size)) {
          TestPlan plan({{s.start, s.rows}});
          plan.SetTables(CacheKind::kSwaKv, pages.tables().subspan(s.sequence, 1));
          step(plan, s.first_row);
        }
      }
      return std::tuple(heads, step_kv, pages.memory());
    };
    // Norm statistics are double sums in both and everything else is the same fp32 arithmetic, so
    // queries, KV and stored bytes are equal, those that no operation writes included.
    ReferenceBackend reference(numerics);
    const auto want = run(reference, 0);
    for (int threads : {1, 2, 3}) {
      const auto cpu = MakeCpu(numerics, threads);
      for (int step_size : {0, 1, 4}) EXPECT_EQ(run(*cpu, step_size), want) << step_size;
    }
  }
}

TEST_P(CpuCacheOps, CompressInsert) {
  Random random(32);
  struct Case {
    int ratio;
    bool index_side;
    Parts parts;
  };
  const Case cases[] = {{4, false, {{0, 23}, {7, 1}, {40, 12}}},
                        {4, true, {{0, 9}, {3, 10}}},
                        {128, false, {{0, 130}, {127, 1}, {128, 5}}},
                        {128, false, {{250, 10}}}};
  for (Numerics numerics : kBothNumerics) {
    for (const Case& c : cases) {
      const int coff = c.ratio == 4 ? 2 : 1, wide = coff * kDim, rows = NumRows(c.parts);
      const std::vector<float> kv = random.Normals(int64_t{rows} * wide);
      const std::vector<float> score = random.Normals(int64_t{rows} * wide, 2.0f);
      const std::vector<float> ape = random.Normals(int64_t{c.ratio} * wide);
      const std::vector<float> weight = random.Bf16s(kDim);
      const auto num = static_cast<int>(c.parts.size());
      TestPages state(random, {EntryEncoding::kF32, 2 * wide, 0, 8}, num, 300);
      state.Fill(random, 300);
      const std::vector<std::byte> state_before = state.memory();
      TestPages out(random, c.index_side ? KeyFormat(numerics, kDim) : KvFormat(numerics, 64), num,
                    128);
      const CacheKind state_kind = c.ratio == 4 ? CacheKind::kC4State : CacheKind::kC128State;
      // Anchors by (sequence, entry), so that small steps use the same ones.
      std::vector<float> turns = random.Normals(int64_t{num} * 128 * kRope);

      const auto run = [&](Backend& backend, int step_size) {
        state.memory() = state_before;
        std::fill(out.memory().begin(), out.memory().end(), std::byte{0x5A});
        const auto step = [&](const TestPlan& plan, int first, size_t first_sequence) {
          const int n = plan.plan.num_rows();
          std::vector<float> anchors;
          int entries = 0;
          for (size_t s = 0; s < plan.sequences.size(); ++s) {
            const EndingEntries ending = EntriesEnding(plan.sequences[s], c.ratio);
            entries += ending.count;
            for (int j = ending.first; j < ending.first + ending.count; ++j) {
              const auto at = static_cast<int64_t>((first_sequence + s) * 128) + j;
              anchors.insert(anchors.end(), turns.begin() + at * kRope,
                             turns.begin() + (at + 1) * kRope);
            }
          }
          CompressInsertArgs args;
          args.kv_rows = {kv.data() + int64_t{first} * wide, n, wide};
          args.score_rows = {score.data() + int64_t{first} * wide, n, wide};
          args.ape = {ape.data(), c.ratio, wide};
          args.norm_weight = {weight.data(), kDim};
          args.anchor_cos_sin = {anchors.data(), entries, kRope / 2, 2};
          args.norm_eps = 1e-6f;
          args.ratio = c.ratio;
          args.index_side = c.index_side;
          args.plan = &plan.plan;
          args.state = state.view();
          args.out = out.view();
          args.state_kind = state_kind;
          args.out_kind = CacheKind::kC4Kv;
          ExpectOk(backend.CompressInsert(args));
        };
        if (step_size == 0) {
          TestPlan plan(c.parts);
          plan.SetTables(state_kind, state.tables());
          plan.SetTables(CacheKind::kC4Kv, out.tables());
          step(plan, 0, 0);
        } else {
          for (const SmallStep& s : Split(c.parts, step_size)) {
            TestPlan plan({{s.start, s.rows}});
            plan.SetTables(state_kind, state.tables().subspan(s.sequence, 1));
            plan.SetTables(CacheKind::kC4Kv, out.tables().subspan(s.sequence, 1));
            step(plan, s.first_row, s.sequence);
          }
        }
        return std::pair(state.memory(), out.memory());
      };
      // Pooling uses the same scalar exponentials in the same order; see compress_insert.cc.
      ReferenceBackend reference(numerics);
      const auto want = run(reference, 0);
      for (int threads : {1, 2, 3}) {
        const auto cpu = MakeCpu(numerics, threads);
        for (int step_size : {0, 1, 3}) {
          EXPECT_TRUE(run(*cpu, step_size) == want)
              << "ratio " << c.ratio << ", steps of " << step_size << ", " << threads << " threads";
        }
      }
    }
  }
}

TEST_P(CpuCacheOps, IndexerTopk) {
  Random random(33);
  constexpr int kEntries = 400;
  for (Numerics numerics : kBothNumerics) {
    for (const auto& [heads, dim, topk] : {std::tuple{4, 128, 64}, {19, 64, 100}, {2, 32, 1}}) {
      // Candidates around topk, around tiles of 64 and around tasks of 256 keys.
      const Parts parts = {{std::max(0, 4 * topk - 9), 40}, {0, 7}, {1020, 30}, {1590, 9}};
      const int rows = NumRows(parts);
      const std::vector<float> q = random.Bf16s(int64_t{rows} * heads * dim);
      // Small and partly negative weights; relu makes zeros, so equal scores occur.
      std::vector<float> weights = random.Bf16s(int64_t{rows} * heads);
      const std::vector<float> cos_sin = random.Normals(int64_t{rows} * 32);
      TestPages pages(random, KeyFormat(numerics, dim), 4, kEntries);
      pages.Fill(random, kEntries);
      // Equal keys: ties for every query, which go to the smaller index.
      for (int j = 0; j < kEntries; j += 3) {
        std::vector<float> key(static_cast<size_t>(dim));
        LoadEntry(pages.view().format, Locate(pages.view(), pages.tables()[2], j), key);
        StoreEntry(pages.view().format, Locate(pages.view(), pages.tables()[2], j + 1), key);
      }
      const auto run = [&](Backend& backend, int step_size) {
        std::vector<int32_t> entries(static_cast<size_t>(rows * topk), -7);
        std::vector<int32_t> counts(static_cast<size_t>(rows), -7);
        const auto step = [&](const TestPlan& plan, int first) {
          const int n = plan.plan.num_rows();
          IndexerTopkArgs args;
          args.q = {q.data() + int64_t{first} * heads * dim, n, heads, dim};
          args.head_weights = {weights.data() + int64_t{first} * heads, n, heads};
          args.cos_sin = {cos_sin.data() + int64_t{first} * 32, n, 16, 2};
          args.plan = &plan.plan;
          args.keys = pages.view();
          args.topk = topk;
          args.entries = {entries.data() + int64_t{first} * topk, n, topk};
          args.num_entries = {counts.data() + first, n};
          ExpectOk(backend.IndexerTopk(args));
        };
        if (step_size == 0) {
          TestPlan plan(parts);
          plan.SetTables(CacheKind::kC4IndexKeys, pages.tables());
          step(plan, 0);
        } else {
          for (const SmallStep& s : Split(parts, step_size)) {
            TestPlan plan({{s.start, s.rows}});
            plan.SetTables(CacheKind::kC4IndexKeys, pages.tables().subspan(s.sequence, 1));
            step(plan, s.first_row);
          }
        }
        return std::pair(entries, counts);
      };
      // Official: products of e2m1 values are exact and so are their sums here; weights and the sum
      // over heads are the same fp32 arithmetic. Exact: a different set would need two scores
      // closer than 2^-20 of their size, which these inputs don't have.
      ReferenceBackend reference(numerics);
      const auto want = run(reference, 0);
      for (int threads : {1, 2, 3}) {
        const auto cpu = MakeCpu(numerics, threads);
        for (int step_size : {0, 1, 5}) {
          EXPECT_TRUE(run(*cpu, step_size) == want) << heads << " heads, steps of " << step_size;
        }
      }
    }
  }
}

TEST_P(CpuCacheOps, SparseAttention) {
  Random random(34);
  struct Case {
    int heads, window, ratio, topk;  // topk 0: all visible entries
    Parts parts;
  };
  const Case cases[] = {{4, 128, 0, 0, {{0, 20}, {300, 3}, {126, 5}}},
                        {3, 16, 4, 0, {{0, 35}, {290, 12}}},
                        {20, 128, 4, 70, {{270, 18}, {0, 5}, {511, 1}}},
                        {6, 250, 128, 0, {{250, 20}, {1000, 18}}},
                        {5, 1, 4, 8, {{0, 50}}},
                        {18, 191, 128, 0, {{900, 3}}}};
  constexpr int kLength = 1100;
  for (Numerics numerics : kBothNumerics) {
    for (const Case& c : cases) {
      const int rows = NumRows(c.parts), size = c.heads * kDim;
      const auto num = static_cast<int>(c.parts.size());
      const std::vector<float> q = random.Bf16s(int64_t{rows} * size, 0.6f);
      const std::vector<float> sink = random.Normals(c.heads, 2.0f);
      TestPages swa(random, KvFormat(numerics, 64), num, kLength);
      swa.Fill(random, kLength);
      // Rows of a step have the values that their entries hold.
      std::vector<float> step_kv(static_cast<size_t>(rows) * kDim);
      for (const SmallStep& s : Split(c.parts, 1)) {
        LoadEntry(swa.view().format, Locate(swa.view(), swa.tables()[s.sequence], s.start),
                  std::span(step_kv).subspan(static_cast<size_t>(s.first_row) * kDim, kDim));
      }
      TestPages compressed(random, KvFormat(numerics, 64), num, kLength / 4);
      compressed.Fill(random, kLength / 4);
      // What an indexer would choose: all visible entries, or some of them in ascending order.
      std::vector<int32_t> entries(static_cast<size_t>(rows * std::max(c.topk, 1)), -1);
      std::vector<int32_t> counts(static_cast<size_t>(rows));
      for (const SmallStep& s : Split(c.parts, 1)) {
        const int visible = c.topk == 0 ? 0 : VisibleEntries(s.start, c.ratio);
        std::vector<int32_t> chosen;
        for (int j = 0; j < visible; ++j) {
          const int left = c.topk - static_cast<int>(chosen.size());
          if (left > 0 && random.Int(0, visible - j - 1) < left) chosen.push_back(j);
        }
        std::copy(chosen.begin(), chosen.end(), entries.begin() + int64_t{s.first_row} * c.topk);
        counts[static_cast<size_t>(s.first_row)] = static_cast<int32_t>(chosen.size());
      }

      const auto run = [&](Backend& backend, int step_size) {
        std::vector<float> out(static_cast<size_t>(rows * size), -7.0f);
        const auto step = [&](const TestPlan& plan, int first) {
          const int n = plan.plan.num_rows();
          SparseAttentionArgs args;
          args.q = {q.data() + int64_t{first} * size, n, c.heads, kDim};
          args.plan = &plan.plan;
          args.step_kv = {step_kv.data() + int64_t{first} * kDim, n, kDim};
          args.swa = swa.view();
          args.window = c.window;
          if (c.ratio != 0) args.compressed = compressed.view();
          args.compressed_kind = CacheKind::kC4Kv;
          args.ratio = c.ratio;
          if (c.topk != 0) {
            args.entries = {entries.data() + int64_t{first} * c.topk, n, c.topk};
            args.num_entries = {counts.data() + first, n};
          }
          args.sink = {sink.data(), c.heads};
          args.scale = 0.088388346f;
          args.out = {out.data() + int64_t{first} * size, n, c.heads, kDim};
          ExpectOk(backend.SparseAttention(args));
        };
        if (step_size == 0) {
          TestPlan plan(c.parts);
          plan.SetTables(CacheKind::kSwaKv, swa.tables());
          plan.SetTables(CacheKind::kC4Kv, compressed.tables());
          step(plan, 0);
        } else {
          for (const SmallStep& s : Split(c.parts, step_size)) {
            TestPlan plan({{s.start, s.rows}});
            plan.SetTables(CacheKind::kSwaKv, swa.tables().subspan(s.sequence, 1));
            plan.SetTables(CacheKind::kC4Kv, compressed.tables().subspan(s.sequence, 1));
            step(plan, s.first_row);
          }
        }
        return out;
      };
      const std::vector<float> got = run(*MakeCpu(numerics, 1), 0);
      for (int threads : {1, 2, 3}) {
        const auto cpu = MakeCpu(numerics, threads);
        for (int step_size : threads == 3 ? std::vector{0} : std::vector{0, 1, 16}) {
          EXPECT_EQ(run(*cpu, step_size), got)
              << "window " << c.window << ", ratio " << c.ratio << ", steps of " << step_size;
        }
      }
      // Scores z are sums of 128 products, |z| below 10: off by at most 128 * 2^-24 * 10 * 8 (the
      // sum of magnitudes is that much larger) = 6e-4 in the worst case, which is the relative
      // error of a probability. Values are below 6 and probabilities sum to at most 1. The typical
      // error is two orders smaller, which the relative error checks.
      ReferenceBackend reference(numerics);
      const std::vector<float> want = run(reference, 0);
      double difference = 0.0, norm = 0.0;
      for (size_t i = 0; i < got.size(); ++i) {
        const double a = got[i], b = want[i];
        const double ulp = numerics == Numerics::kOfficial ? 0x1p-7 * std::fabs(b) + 1e-6 : 0.0;
        ASSERT_NEAR(a, b, 1e-4 + ulp) << "element " << i;
        difference += (a - b) * (a - b);
        norm += b * b;
      }
      EXPECT_LT(std::sqrt(difference / norm), numerics == Numerics::kOfficial ? 3e-4 : 2e-6);
    }
  }
}

TEST(CpuCacheLimits, PositionsBeyondThePreparedLengthAreAnError) {
  Random random(35);
  TestPages pages(random, KeyFormat(Numerics::kOfficial, 32), 1, 4);
  TestPlan plan({{100'000, 1}});
  plan.SetTables(CacheKind::kC4IndexKeys, pages.tables());
  std::vector<float> q(64), weights(2), cos_sin(32);
  std::vector<int32_t> entries(8), count(1);
  IndexerTopkArgs args;
  args.q = {q.data(), 1, 2, 32};
  args.head_weights = {weights.data(), 1, 2};
  args.cos_sin = {cos_sin.data(), 1, 16, 2};
  args.plan = &plan.plan;
  args.keys = pages.view();
  args.topk = 8;
  args.entries = {entries.data(), 1, 8};
  args.num_entries = {count.data(), 1};
  EXPECT_EQ(MakeCpu(Numerics::kOfficial, 1)->IndexerTopk(args).code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fathom
