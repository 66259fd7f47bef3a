#include "backend/ops/sample.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "backend/ops/test_backends.h"
#include "backend/ops/test_values.h"
#include "backend/token_mass.h"

namespace fathom {
namespace {

using namespace testing_values;  // NOLINT(google-build-using-namespace)

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A row and what it borrows.
struct Row {
  std::vector<float> logits;
  SampleRow settings;
  std::vector<TokenAdjustment> adjustments;
  std::vector<uint64_t> allowed;
  std::vector<TokenId> masked;

  explicit Row(std::vector<float> values) : logits(std::move(values)) {}
  void Allow(const std::vector<TokenId>& tokens) {
    allowed.assign((logits.size() + 63) / 64, 0);
    for (const TokenId t : tokens) allowed[static_cast<size_t>(t) / 64] |= uint64_t{1} << t % 64;
  }
  [[nodiscard]] SampleRow View() const {
    SampleRow row = settings;
    row.adjustments = adjustments;
    row.allowed = allowed;
    row.masked = masked;
    return row;
  }
};

struct Chosen {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
};

Chosen Sample(Backend& backend, const std::vector<Row>& rows) {
  std::vector<float> logits;
  std::vector<SampleRow> settings;
  for (const Row& row : rows) {
    logits.insert(logits.end(), row.logits.begin(), row.logits.end());
    settings.push_back(row.View());
  }
  Chosen chosen{std::vector<TokenId>(rows.size(), -9), std::vector<float>(rows.size(), -9.0f)};
  const auto m = static_cast<int64_t>(rows.size());
  const auto vocab = static_cast<int64_t>(rows.empty() ? 1 : rows[0].logits.size());
  std::vector<int> indices(rows.size());
  std::iota(indices.begin(), indices.end(), 0);
  const Status status = backend.Sample({{logits.data(), m, vocab},
                                        indices,
                                        settings,
                                        {chosen.tokens.data(), m},
                                        {chosen.logprobs.data(), m}});
  EXPECT_TRUE(status.ok()) << status.ToString();
  return chosen;
}

// The contract by sorting everything. Masses are TokenMass's, as the contract says.
TokenId Expected(const Row& row) {
  const SampleRow& s = row.settings;
  std::vector<float> logits = row.logits;
  for (const TokenAdjustment& a : row.adjustments) {
    float& l = logits[static_cast<size_t>(a.token)];
    l = l + a.bias;
    l = l > 0 ? l / a.repetition : l * a.repetition;
    l = l - a.penalty;
  }
  std::vector<TokenId> order;
  for (size_t t = 0; t < logits.size(); ++t) {
    const bool allowed = row.allowed.empty() || (row.allowed[t / 64] >> (t % 64) & 1) != 0;
    const auto token = static_cast<TokenId>(t);
    if (!allowed || std::ranges::count(row.masked, token) > 0) continue;
    if (std::isnan(logits[t]) || logits[t] == -kInfinity) continue;
    order.push_back(token);
  }
  const auto logit = [&](TokenId t) { return static_cast<double>(logits[static_cast<size_t>(t)]); };
  if (order.empty()) {
    TokenId first = 0;
    while (!row.allowed.empty() &&
           (row.allowed[static_cast<size_t>(first) / 64] >> (first % 64) & 1) == 0) {
      ++first;
    }
    return first;
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](TokenId a, TokenId b) { return logit(a) > logit(b); });
  const double max = logit(order[0]);
  if (s.temperature < 1e-5 || std::isinf(max)) return order[0];
  if (s.min_p > 0) {
    std::erase_if(order,
                  [&](TokenId t) { return logit(t) < max + s.temperature * std::log(s.min_p); });
  }
  if (s.top_k > 0 && static_cast<size_t>(s.top_k) < order.size()) {
    order.resize(static_cast<size_t>(s.top_k));
  }
  using Wide = unsigned __int128;
  const auto mass = [&](TokenId t) {
    return TokenMass(logit(t) - max, kLog2E / s.temperature,
                     MassBits(static_cast<int64_t>(logits.size())));
  };
  const auto total = [&] {
    Wide sum = 0;
    for (const TokenId t : order) sum += mass(t);
    return sum;
  };
  if (s.top_p < 1) {
    const Wide wanted = static_cast<Wide>(std::ldexp(s.top_p, 64)) * total();
    Wide sum = mass(order[0]);
    size_t kept = 1;
    while (sum << 64 < wanted) sum += mass(order[kept++]);
    order.resize(kept);
  }
  std::sort(order.begin(), order.end());
  Wide rest = Wide{s.random} * total() >> 64;
  size_t i = 0;
  for (; rest >= mass(order[i]); ++i) rest -= mass(order[i]);
  return order[i];
}

void ExpectChosen(Backend& backend, const std::vector<Row>& rows) {
  const Chosen chosen = Sample(backend, rows);
  for (size_t m = 0; m < rows.size(); ++m) {
    const SampleRow& s = rows[m].settings;
    ASSERT_EQ(chosen.tokens[m], Expected(rows[m]))
        << "row " << m << " of " << rows[m].logits.size() << ": temperature " << s.temperature
        << ", top_k " << s.top_k << ", top_p " << s.top_p << ", min_p " << s.min_p;
    if (!s.logprob) {
      ASSERT_EQ(chosen.logprobs[m], 0.0f);
      continue;
    }
    long double max = -INFINITY, sum = 0;
    for (const float l : rows[m].logits) max = l > max ? static_cast<long double>(l) : max;
    for (const float l : rows[m].logits) {
      if (!std::isnan(l)) sum += std::exp(static_cast<long double>(l) - max);
    }
    const auto raw = static_cast<double>(rows[m].logits[static_cast<size_t>(chosen.tokens[m])]);
    const double want = raw - static_cast<double>(max + std::log(sum));
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(chosen.logprobs[m])) << m;
    } else if (std::isinf(want)) {
      ASSERT_EQ(static_cast<double>(chosen.logprobs[m]), want) << m;
    } else {
      // Rounded to fp32; masses are right to 2^-41 and their units of 2^-46.
      ASSERT_NEAR(static_cast<double>(chosen.logprobs[m]), want, std::fabs(want) * 0x1p-24 + 1e-10)
          << m;
    }
  }
}

uint64_t RandomBits(Random& random) {
  uint64_t bits = 0;
  for (int i = 0; i < 8; ++i) {
    bits = bits << 8 | static_cast<uint64_t>(random.Uniform(0.0, 255.99));
  }
  return bits;
}

enum class Kind { kUniform, kPeaked, kTied, kEqual, kHoles };
std::vector<float> Logits(Random& random, Kind kind, size_t vocab) {
  std::vector<float> logits = random.Floats(vocab, -6.0, 6.0);
  for (float& l : logits) {
    if (kind == Kind::kPeaked) l = l * std::fabs(l);
    if (kind == Kind::kTied) l = std::round(l);
    if (kind == Kind::kEqual) l = -2.5f;
  }
  if (kind == Kind::kHoles) {
    for (size_t t = 0; t < vocab; t += 3) logits[t] = t % 2 == 0 ? NAN : -kInfinity;
  }
  return logits;
}
constexpr Kind kKinds[] = {Kind::kUniform, Kind::kPeaked, Kind::kTied, Kind::kEqual, Kind::kHoles};

class SampleOp : public OpTest {
 protected:
  void SetUp() override {
    OpTest::SetUp();
    if (IsSkipped()) return;
    if (backend().samples()) return;
    float logit = 0.0f;
    TokenId token = 0;
    float logprob = 0.0f;
    const int index = 0;
    const SampleRow row;
    const Status status =
        backend().Sample({{&logit, 1, 1}, {&index, 1}, {&row, 1}, {&token, 1}, {&logprob, 1}});
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
    GTEST_SKIP() << "not one of this backend's operations";
  }
};
FATHOM_ON_ALL_BACKENDS(SampleOp);

TEST_P(SampleOp, GreedyTakesTheLargestAndTheSmallerIdOnTies) {
  std::vector<Row> rows;
  for (int i = 0; i < 6; ++i) {
    rows.emplace_back(std::vector<float>{1.0f, 3.0f, 2.0f, 3.0f, -1.0f, -0.0f, 0.0f});
    rows.back().settings.temperature = i % 2 == 0 ? 0.0 : 9e-6;
    rows.back().settings.random = ~uint64_t{0};
  }
  rows[1].masked = {1};
  rows[2].masked = {3, 1, 3};
  rows[3].Allow({4, 5, 6});
  rows[4].adjustments = {{2, 1.5f}, {4, 100.0f, 1.0f, 95.5f}};
  rows[5].adjustments = {{1, 0.0f, 4.0f}, {2, 0.0f, 1.0f, 0.5f}, {3, 0.0f, 1.0f, 1.5f}};
  EXPECT_THAT(Sample(backend(), rows).tokens, testing::ElementsAre(1, 3, 2, 5, 2, 2));
}

TEST_P(SampleOp, LogProbabilitiesAreOfTheRawLogitsWhereWanted) {
  std::vector<Row> rows(3, Row({0.0f, std::log(2.0f), std::log(5.0f)}));
  for (Row& row : rows) {
    row.settings.temperature = 0.0;
    row.settings.logprob = true;
  }
  rows[1].adjustments = {{0, 100.0f}};
  rows[1].masked = {2};
  rows[2].settings.logprob = false;
  const Chosen chosen = Sample(backend(), rows);
  EXPECT_THAT(chosen.tokens, testing::ElementsAre(2, 0, 2));
  EXPECT_FLOAT_EQ(chosen.logprobs[0], std::log(5.0f / 8.0f));
  EXPECT_FLOAT_EQ(chosen.logprobs[1], std::log(1.0f / 8.0f));
  EXPECT_EQ(chosen.logprobs[2], 0.0f);
}

// With equal logits the draw is vocab * random / 2^64.
TEST_P(SampleOp, DrawsGoThroughTheTokensInTheOrderOfIds) {
  std::vector<Row> rows;
  for (size_t vocab : {1u, 2u, 37u, 64u}) {
    rows.clear();
    for (size_t i = 0; i < 8; ++i) {
      rows.emplace_back(std::vector<float>(vocab, 0.25f));
      rows.back().settings.random = i == 7 ? ~uint64_t{0} : uint64_t{i} << 61;
    }
    const Chosen chosen = Sample(backend(), rows);
    for (size_t i = 0; i < 7; ++i) {
      EXPECT_EQ(chosen.tokens[i], static_cast<TokenId>(i * vocab / 8)) << vocab;
    }
    EXPECT_EQ(chosen.tokens[7], static_cast<TokenId>(vocab) - 1);
  }
}

TEST_P(SampleOp, EveryCombinationOfSettingsEqualsASortedSearch) {
  Random random(11);
  for (const size_t vocab : {1u, 7u, 130u, 2500u}) {
    std::vector<Row> rows;
    for (const Kind kind : kKinds) {
      for (const double temperature : {0.0, 2e-5, 0.3, 1.0, 40.0}) {
        for (const int top_k : {0, 1, 3, 100, 1'000'000}) {
          for (const double top_p : {1e-12, 0.3, 0.95, 1.0}) {
            // Small vocabularies take turns at the other settings.
            const size_t turn = rows.size() % 4;
            rows.emplace_back(Logits(random, kind, vocab));
            SampleRow& s = rows.back().settings;
            s.temperature = temperature;
            s.top_k = top_k;
            s.top_p = top_p;
            s.min_p = turn == 1 ? 0.02 : turn == 3 ? 1.0 : 0.0;
            s.random = RandomBits(random);
            s.logprob = turn == 2;
          }
        }
      }
    }
    // Every so many: steps that have no divisor in common with the lists' lengths.
    std::vector<Row> some;
    const size_t step = vocab > 1000 ? 11 : vocab == 7 ? 3 : 7;
    for (size_t i = 0; i < rows.size(); i += step) some.push_back(std::move(rows[i]));
    ExpectChosen(backend(), some);
  }
}

TEST_P(SampleOp, AdjustmentsThenAllowedThenMasked) {
  Random random(5);
  std::vector<Row> rows;
  for (const size_t vocab : {70u}) {
    for (int i = 0; i < 60; ++i) {
      rows.emplace_back(Logits(random, kKinds[i % 5], vocab));
      Row& row = rows.back();
      SampleRow& s = row.settings;
      s.temperature = i % 3 == 0 ? 0.0 : 0.8;
      s.top_p = i % 4 == 1 ? 0.7 : 1.0;
      s.top_k = i % 4 == 2 ? 5 : 0;
      s.random = RandomBits(random);
      s.logprob = true;
      for (TokenId t = i % 2; t < static_cast<TokenId>(vocab); t += 1 + i % 9) {
        row.adjustments.push_back(
            {t, i % 5 == 0 ? 100.0f : -1.25f, i % 7 < 3 ? 1.0f : 1.3f, i % 3 == 1 ? 0.9f : -0.3f});
      }
      if (i % 2 == 1) {
        std::vector<TokenId> allowed = {static_cast<TokenId>(i), 69};
        if (i % 4 == 3) allowed.resize(1);
        for (TokenId t = 0; i % 6 == 1 && t < 64; ++t) allowed.push_back(t);
        row.Allow(allowed);
      }
      if (i % 5 < 2) row.masked = {3, static_cast<TokenId>(i), 11};
    }
  }
  ExpectChosen(backend(), rows);
}

TEST_P(SampleOp, WithoutAChoiceTheSmallestAllowedIsTaken) {
  std::vector<Row> rows;
  for (const double temperature : {0.0, 1.0}) {
    for (const float nothing : {-kInfinity, static_cast<float>(NAN)}) {
      for (int i = 0; i < 4; ++i) {
        rows.emplace_back(std::vector<float>(67, nothing));
        Row& row = rows.back();
        row.settings.temperature = temperature;
        row.settings.random = ~uint64_t{0};
        row.settings.logprob = true;
        if (i == 1) row.masked = {0};
        if (i >= 2) row.Allow({65, 66});
        if (i == 3) {
          // Its logits say something, but of others.
          row.logits[2] = 1.0f;
          row.masked = {65};
        }
      }
    }
  }
  ExpectChosen(backend(), rows);
}

TEST_P(SampleOp, AnInfiniteLogitIsTaken) {
  std::vector<Row> rows;
  for (const double temperature : {0.0, 1.0}) {
    rows.emplace_back(std::vector<float>{NAN, 1.0f, kInfinity, 3e38f, kInfinity});
    rows.back().settings.temperature = temperature;
    rows.back().settings.top_p = 0.5;
    rows.back().settings.random = ~uint64_t{0};
  }
  EXPECT_THAT(Sample(backend(), rows).tokens, testing::ElementsAre(2, 2));
}

// The ends of fp32 and of temperatures.
TEST_P(SampleOp, ExtremeValuesDoNotOverflow) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  std::vector<Row> rows;
  for (const double temperature : {1e-5, 1.0, 1e38, std::numeric_limits<double>::max()}) {
    for (const double min_p : {0.0, 1e-300, 0.5}) {
      for (const double top_p : {1.0, 0.6}) {
        rows.emplace_back(
            std::vector<float>{-kLargest, kLargest, 1e-45f, -1e-45f, 0.9f * kLargest, -kInfinity});
        SampleRow& s = rows.back().settings;
        s = {.temperature = temperature, .top_p = top_p, .min_p = min_p};
        s.random = 0xC000000000000000u;
      }
    }
  }
  ExpectChosen(backend(), rows);
}

TEST_P(SampleOp, ARowDoesNotDependOnItsNeighbours) {
  Random random(3);
  std::vector<Row> rows;
  for (int i = 0; i < 9; ++i) {
    rows.emplace_back(Logits(random, kKinds[i % 5], 515));
    rows.back().settings = {.temperature = 0.9, .top_p = 0.8, .logprob = true};
    rows.back().settings.random = RandomBits(random);
    if (i % 3 == 0) rows.back().Allow({1, 5, 7, 300, 514});
  }
  const Chosen together = Sample(backend(), rows);
  for (size_t m = 0; m < rows.size(); ++m) {
    const Chosen alone = Sample(backend(), {rows[m]});
    EXPECT_EQ(alone.tokens[0], together.tokens[m]);
    EXPECT_EQ(std::bit_cast<uint32_t>(alone.logprobs[0]),
              std::bit_cast<uint32_t>(together.logprobs[m]));
  }
}

TEST_P(SampleOp, OnlyTheRowsThatAreNamed) {
  std::vector<float> logits = {1, 2, 3, 9, 8, 7, 0, 5, 1, 4, 4, 4};
  const std::vector<float> before = logits;
  const std::vector<int> indices = {0, 2};
  const TokenId masked = 2;
  std::vector<SampleRow> rows(2);
  for (SampleRow& row : rows) row.temperature = 0.0;
  rows[0].masked = {&masked, 1};
  Chosen chosen{{-9, -9, -9}, {-9.0f, -9.0f, -9.0f}};
  ASSERT_STATUS_OK(backend().Sample({{logits.data(), 4, 3},
                                     indices,
                                     rows,
                                     {chosen.tokens.data(), 2},
                                     {chosen.logprobs.data(), 2}}));
  EXPECT_THAT(chosen.tokens, testing::ElementsAre(1, 1, -9));
  EXPECT_EQ(chosen.logprobs[2], -9.0f);
  for (size_t i : {3u, 4u, 5u, 9u, 10u, 11u}) EXPECT_EQ(logits[i], before[i]);
}

TEST_P(SampleOp, NoRowsIsNoWork) {
  float none = 0.0f;
  TokenId token = 0;
  ASSERT_STATUS_OK(backend().Sample({{&none, 0, 1}, {}, {}, {&token, 0}, {&none, 0}}));
}

TEST_P(SampleOp, ChecksItsArguments) {
  std::vector<float> logits(2 * 70), logprobs(2);
  std::vector<TokenId> tokens(2);
  std::vector<SampleRow> rows(2);
  std::vector<int> indices = {0, 1};
  const SampleArgs good = {
      {logits.data(), 2, 70}, indices, rows, {tokens.data(), 2}, {logprobs.data(), 2}};
  ASSERT_STATUS_OK(Check(good));
  const auto expect = [&](const std::string& operand, auto&& spoil) {
    SampleArgs bad = good;
    spoil(bad);
    ExpectRejected(backend().Sample(bad), operand);
  };
  expect("logits", [&](SampleArgs& a) { a.logits = {nullptr, 2, 70}; });
  expect("indices", [&](SampleArgs& a) { a.logits = {logits.data(), 1, 70}; });
  expect("indices", [&](SampleArgs& a) { a.indices = a.indices.first(1); });
  expect("logits", [&](SampleArgs& a) { a.logits = {logits.data(), 2, 0}; });
  expect("tokens", [&](SampleArgs& a) { a.tokens = {tokens.data(), 1}; });
  expect("logprobs", [&](SampleArgs& a) { a.logprobs = {nullptr, 2}; });
  for (const std::vector<int>& bad :
       std::vector<std::vector<int>>{{1, 0}, {1, 1}, {-1, 0}, {0, 2}}) {
    indices = bad;
    ExpectRejected(backend().Sample(good), "indices");
  }
  indices = {0, 1};
  const auto refused = [&](const std::string& field, const SampleRow& row) {
    rows[1] = row;
    ExpectRejected(backend().Sample(good), field);
  };
  refused("temperature", {.temperature = -1.0});
  refused("temperature", {.temperature = NAN});
  refused("temperature", {.temperature = INFINITY});
  refused("top_p", {.top_p = 0.0});
  refused("top_p", {.top_p = 1.5});
  refused("top_p", {.top_p = NAN});
  refused("min_p", {.min_p = -0.5});
  refused("min_p", {.min_p = NAN});
  refused("top_k", {.top_k = -1});
  for (const std::vector<TokenAdjustment>& bad :
       std::vector<std::vector<TokenAdjustment>>{{{-1}}, {{70}}, {{3}, {3}}, {{3}, {2}}}) {
    refused("adjustments", {.adjustments = bad});
  }
  for (const TokenId bad : {-1, 70}) {
    const std::vector<TokenId> masked = {1, bad};
    refused("masked", {.masked = masked});
  }
  for (const std::vector<uint64_t>& bad :
       std::vector<std::vector<uint64_t>>{{1}, {1, 2, 3}, {0, 0}, {1, 64}}) {
    refused("allowed", {.allowed = bad});
  }
}

}  // namespace
}  // namespace fathom
