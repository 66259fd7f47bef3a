// Index scores: against the contract's formula in plain loops, bit for bit, on every level.
#include "backend/cpu/index_scorer.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "backend/cpu/kernels.h"
#include "backend/cpu/test_support.h"
#include "backend/cpu/test_targets.h"
#include "backend/reference/scalar_math.h"

namespace fathom {
namespace {

using test::Random;
using test::TestPages;

class CpuIndexScorer : public test::PerTarget {};
FATHOM_FOR_TARGETS(CpuIndexScorer, test::AllTargets());

constexpr int kQueries = 3;

struct Inputs {
  int heads = 0, dim = 0;
  std::vector<float> q, head_weights, cos_sin;
  std::span<const float> query(int r) const { return Row(q, r); }
  std::span<const float> weights(int r) const { return Row(head_weights, r); }
  std::span<const float> turns(int r) const { return Row(cos_sin, r); }

 private:
  static std::span<const float> Row(const std::vector<float>& v, int r) {
    const size_t size = v.size() / kQueries;
    return std::span(v).subspan(static_cast<size_t>(r) * size, size);
  }
};

// Channels of very different sizes, so that groups have very different scales and sums of them
// round.
Inputs MakeInputs(Random& random, int heads, int dim) {
  Inputs in{heads, dim, random.Bf16s(int64_t{kQueries} * heads * dim),
            random.Bf16s(int64_t{kQueries} * heads), random.Normals(int64_t{kQueries} * 16)};
  return in;
}

// Stored as they are (no Hadamard between here and the page).
void FillKeys(Random& random, const TestPages& pages, int num) {
  const auto dim = static_cast<size_t>(pages.view().format.dim);
  for (int j = 0; j < num; ++j) {
    std::vector<float> key = random.Normals(static_cast<int64_t>(dim));
    for (size_t c = 0; c < dim; ++c) {
      key[c] = std::ldexp(key[c], static_cast<int>(c / 32 * 5 % 13) - 6);
    }
    StoreEntry(pages.view().format, Locate(pages.view(), pages.tables()[0], j), key);
  }
}

std::vector<float> Scores(Numerics numerics, const Inputs& in, const TestPages& pages,
                          Position start, int first, int last, int from, int to) {
  const auto values = static_cast<size_t>(in.heads * in.dim);
  const auto heads = static_cast<size_t>(in.heads);
  std::vector<float> rotated(kQueries * values), weights(kQueries * heads);
  std::vector<float> slots(kQueries * values);
  std::vector<const void*> rows(kQueries * heads);
  const auto dim = static_cast<size_t>(in.dim);
  std::vector<float> entries(cpu::kTile * dim), transposed(entries.size());
  std::vector<uint8_t> codes(2 * cpu::kMaxLanes * dim);
  std::vector<float> code_scales(codes.size() / 32), dots((heads + 1) * 2 * cpu::kMaxLanes);

  const cpu::IndexScorer scorer(numerics, pages.view(), in.heads, in.dim,
                                {rotated.data(), weights.data(), slots.data(), rows.data()});
  for (int r = first; r < last; ++r) {
    scorer.SetQuery(r, in.query(r), in.turns(r), in.weights(r));
  }
  constexpr int kStride = 200;
  std::vector<float> scores(kQueries * kStride, -77.0f);
  scorer.Score(pages.tables()[0], from, to, start, first, last,
               {entries.data(), transposed.data(), codes.data(), code_scales.data(), dots.data()},
               scores.data(), kStride);
  return scores;
}

// The contract.
std::vector<float> Want(Numerics numerics, const Inputs& in, const TestPages& pages, Position start,
                        int first, int last, int from, int to) {
  const auto dim = static_cast<size_t>(in.dim);
  std::vector<float> scores(kQueries * 200, -77.0f);
  for (int r = first; r < last; ++r) {
    std::vector<float> q(in.query(r).begin(), in.query(r).end());
    std::vector<float> weights;
    const double factor =
        1.0 / std::sqrt(static_cast<double>(dim)) / std::sqrt(static_cast<double>(in.heads));
    for (int h = 0; h < in.heads; ++h) {
      const std::span<float> head = std::span(q).subspan(static_cast<size_t>(h) * dim, dim);
      reference::RopeRow(numerics, head, in.turns(r), 1.0f);
      reference::HadamardRow(numerics, head);
      if (numerics == Numerics::kOfficial) SimulateE2m1(head, 32);
      const float w = reference::Bf16(numerics, in.weights(r)[static_cast<size_t>(h)]);
      weights.push_back(reference::Bf16(numerics, static_cast<float>(w * factor)));
    }
    for (int j = from; j < std::min(to, VisibleEntries(start + r, 4)); ++j) {
      std::vector<float> key(dim);
      LoadEntry(pages.view().format, Locate(pages.view(), pages.tables()[0], j), key);
      float score = 0.0f;
      for (size_t h = 0; h < weights.size(); ++h) {
        float dot = 0.0f;
        for (size_t g = 0; g < dim; g += 32) {
          dot +=
              reference::Dot(std::span(q).subspan(h * dim + g, 32), std::span(key).subspan(g, 32));
        }
        score += weights[h] * std::max(dot, 0.0f);
      }
      scores[static_cast<size_t>(r * 200 + j)] = score;
    }
  }
  return scores;
}

TEST_P(CpuIndexScorer, OfficialScoresAreTheContractsBitsForEveryEncoding) {
  Random random(41);
  for (const auto& [heads, dim] : {std::pair{1, 128}, {19, 128}, {3, 256}, {5, 64}}) {
    const Inputs in = MakeInputs(random, heads, dim);
    for (EntryEncoding encoding :
         {EntryEncoding::kE2m1, EntryEncoding::kBf16, EntryEncoding::kE4m3Scaled}) {
      // Pages of which panels fill the half, and others that cut them anywhere.
      for (int per_page : {64, 7, 19}) {
        TestPages pages(random, {encoding, dim, 0, per_page}, 1, 200);
        FillKeys(random, pages, 200);
        // Positions at which the three queries see all 200 keys, and others where they don't.
        for (Position start : {799, 401}) {
          for (const auto& [from, to] : {std::pair{0, 200}, {33, 100}}) {
            const auto got = Scores(Numerics::kOfficial, in, pages, start, 0, kQueries, from, to);
            const auto want = Want(Numerics::kOfficial, in, pages, start, 0, kQueries, from, to);
            ASSERT_EQ(got, want) << heads << " x " << dim << ", pages of " << per_page
                                 << ", encoding " << static_cast<int>(encoding);
          }
        }
        ASSERT_EQ(Scores(Numerics::kOfficial, in, pages, 799, 1, 2, 0, 200),
                  Want(Numerics::kOfficial, in, pages, 799, 1, 2, 0, 200))
            << "a query alone";
      }
    }
  }
}

TEST_P(CpuIndexScorer, ExactScoresAreCloseAndDoNotDependOnTheTile) {
  Random random(42);
  for (const auto& [heads, dim] : {std::pair{1, 32}, {7, 128}}) {
    const Inputs in = MakeInputs(random, heads, dim);
    TestPages pages(random, {EntryEncoding::kF32, dim, 0, 64}, 1, 200);
    pages.Fill(random, 200);
    const auto got = Scores(Numerics::kExact, in, pages, 799, 0, kQueries, 0, 200);
    const auto want = Want(Numerics::kExact, in, pages, 799, 0, kQueries, 0, 200);
    for (size_t i = 0; i < got.size(); ++i) {
      // Sums of `dim` products below 20, times weights below 4 / sqrt(heads * dim), `heads` of
      // them.
      ASSERT_NEAR(got[i], want[i], 128 * 0x1p-24 * 20 * 4) << i;
    }
    for (int r = 0; r < kQueries; ++r) {
      for (int from = 0; from < 200; from += 37) {
        const int to = std::min(200, from + 37);
        const auto part = Scores(Numerics::kExact, in, pages, 799, r, r + 1, from, to);
        for (int j = from; j < to; ++j) {
          const auto at = static_cast<size_t>(r * 200 + j);
          ASSERT_EQ(part[at], got[at]) << j;
        }
      }
    }
  }
}

TEST_P(CpuIndexScorer, QueryBytesAreTheOfficialValues) {
  Random random(43);
  std::vector<float> x = random.Bf16s(32 * 12);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = std::ldexp(x[i], static_cast<int>(i / 32 * 23) - 130);
  std::fill_n(x.begin() + 32, 32, -0.0f);
  std::vector<float> want = x;
  SimulateE2m1(want, 32);
  std::vector<float> memory(x.size());
  const cpu::ByteSlot slot = cpu::SlotAt(memory.data(), static_cast<int64_t>(x.size()));
  cpu::Fp4Row(x, slot);
  static constexpr size_t kOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};
  for (size_t g = 0; g < 12; ++g) {
    int sum = 0;
    for (size_t i = 32 * g; i < 32 * (g + 1); ++i) {
      ASSERT_EQ(static_cast<float>(slot.first[i]) * slot.scale[g], want[i / 8 * 8 + kOrder[i % 8]])
          << i;
      sum += slot.first[i];
    }
    EXPECT_EQ(slot.bias[g], -cpu::kFp4Offset * sum);
  }
  x[40] = std::numeric_limits<float>::infinity();
  x[70] = std::numeric_limits<float>::quiet_NaN();
  cpu::Fp4Row(x, slot);
  EXPECT_TRUE(std::isnan(slot.scale[1]) && std::isnan(slot.scale[2]) && !std::isnan(slot.scale[3]));
}

}  // namespace
}  // namespace fathom
