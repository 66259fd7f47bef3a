#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "engine/test_constraints.h"

namespace fathom {
namespace {

constexpr int kVocab = 6;
const std::vector<float> kLogits = {1.0f, 3.0f, 2.0f, 3.0f, -1.0f, 0.0f};

SamplingParams Greedy() {
  SamplingParams params;
  params.temperature = 0.0;
  return params;
}

TokenEvent Sample(Sampler& sampler, std::span<float> logits, int64_t position,
                  std::span<const TokenId> masked = {}, int num_logprobs = -1,
                  TokenConstraint* constraint = nullptr) {
  SampleScratch scratch(static_cast<int>(logits.size()));
  return sampler.Sample(logits, position, masked, constraint, num_logprobs, scratch);
}

TokenEvent SampleOnce(const SamplingParams& params, int64_t position,
                      std::vector<float> logits = kLogits, std::vector<TokenId> masked = {},
                      int num_logprobs = -1) {
  Sampler sampler(params, 1, static_cast<int>(logits.size()), {});
  return Sample(sampler, logits, position, masked, num_logprobs);
}

std::map<TokenId, int> Histogram(const SamplingParams& params, int draws) {
  std::map<TokenId, int> counts;
  for (int i = 0; i < draws; ++i) ++counts[SampleOnce(params, i).token];
  return counts;
}

TEST(Sampler, GreedyTakesTheLargestAndTheSmallerIdOnTies) {
  EXPECT_EQ(SampleOnce(Greedy(), 0).token, 1);
  EXPECT_EQ(SampleOnce(Greedy(), 0, kLogits, {1}).token, 3);
  EXPECT_EQ(SampleOnce(Greedy(), 0, kLogits, {1, 3}).token, 2);
}

TEST(Sampler, DrawsFollowTheSoftmax) {
  SamplingParams params;
  params.seed = 42;
  params.temperature = 1.5;
  const int draws = 40000;
  double total = 0.0;
  for (float v : kLogits) total += std::exp(v / 1.5);
  const auto counts = Histogram(params, draws);
  for (size_t i = 0; i < kLogits.size(); ++i) {
    const double p = std::exp(kLogits[i] / 1.5) / total;
    const double sigma = std::sqrt(draws * p * (1 - p));
    EXPECT_NEAR(counts.at(static_cast<TokenId>(i)), draws * p, 5 * sigma) << i;
  }
}

TEST(Sampler, ADrawIsAFunctionOfSeedAndPosition) {
  SamplingParams params;
  params.seed = 7;
  Sampler one(params, 0, kVocab, {});
  Sampler other(params, 99, kVocab, {});  // the request's own seed wins
  std::vector<TokenId> forward, backward;
  for (int i = 0; i < 50; ++i) {
    std::vector<float> logits = kLogits;
    forward.push_back(Sample(one, logits, i).token);
  }
  for (int i = 49; i >= 0; --i) {
    std::vector<float> logits = kLogits;
    backward.push_back(Sample(other, logits, i).token);
  }
  EXPECT_EQ(forward, std::vector<TokenId>(backward.rbegin(), backward.rend()));
  params.seed = 8;
  std::vector<TokenId> another;
  for (int i = 0; i < 50; ++i) another.push_back(SampleOnce(params, i).token);
  EXPECT_NE(forward, another);
}

TEST(Sampler, FiltersKeepExactlyTheirSets) {
  SamplingParams params;
  params.seed = 3;
  params.top_k = 2;
  EXPECT_EQ(Histogram(params, 500).size(), 2u);  // 1 and 3
  EXPECT_EQ(Histogram(params, 500).count(0), 0u);
  params.top_k = 3;
  EXPECT_EQ(Histogram(params, 3000).size(), 3u);
  EXPECT_EQ(Histogram(params, 3000).count(2), 1u);

  params.top_k = 0;
  // p = .387 .387 (ids 1, 3), .142, .052, .019, .007: two reach 0.77, the third is needed for 0.78.
  params.top_p = 0.77;
  EXPECT_EQ(Histogram(params, 3000).size(), 2u);
  params.top_p = 0.78;
  EXPECT_EQ(Histogram(params, 3000).size(), 3u);
  params.top_p = 0.3;  // the best one alone; of the tie, the smaller id
  EXPECT_EQ(Histogram(params, 200).size(), 1u);
  EXPECT_EQ(Histogram(params, 200).count(1), 1u);

  params.top_p = 1.0;
  params.min_p = std::exp(-1.0) * 1.001;  // token 2 lies a factor e below the best
  EXPECT_EQ(Histogram(params, 3000).size(), 2u);
  params.min_p = std::exp(-1.0) * 0.999;
  EXPECT_EQ(Histogram(params, 3000).size(), 3u);
}

TEST(Sampler, NucleusOfManyEqualsASortedOne) {
  // The short list that KeepNucleus sorts must hold the whole set.
  std::vector<float> logits(1000);
  for (size_t i = 0; i < logits.size(); ++i)
    logits[i] = static_cast<float>((i * 7919) % 1000) / 90.0f;
  for (double top_p : {0.1, 0.5, 0.9, 0.99, 0.9999}) {
    std::vector<size_t> order(logits.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return logits[a] > logits[b]; });
    double total = 0.0, sum = 0.0;
    for (float v : logits) total += std::exp(v);
    size_t kept = 0;
    while (sum < top_p * total) sum += std::exp(logits[order[kept++]]);
    SamplingParams params;
    params.top_p = top_p;
    std::map<TokenId, int> counts;
    for (int i = 0; i < 2000; ++i) {
      params.seed = i;
      ++counts[SampleOnce(params, 5, logits).token];
    }
    EXPECT_LE(counts.size(), kept);
    for (const auto& [token, count] : counts) {
      EXPECT_GE(logits[static_cast<size_t>(token)], logits[order[kept - 1]]) << top_p;
    }
  }
}

TEST(Sampler, PenaltiesCountWhatTheyShould) {
  SamplingParams params = Greedy();
  params.presence_penalty = 1.5;
  Sampler presence(params, 0, kVocab, std::vector<TokenId>{1, 3});
  std::vector<TokenId> tokens;
  for (int i = 0; i < 5; ++i) {
    std::vector<float> logits = kLogits;
    tokens.push_back(Sample(presence, logits, i).token);
  }
  // 1, then 3 (both now 1.5), then 2 (now .5), then the first two again: presence counts once.
  EXPECT_EQ(tokens, (std::vector<TokenId>{1, 3, 2, 1, 1}));

  params = Greedy();
  params.frequency_penalty = 1.5;
  Sampler frequency(params, 0, kVocab, {});
  tokens.clear();
  for (int i = 0; i < 5; ++i) {
    std::vector<float> logits = kLogits;
    tokens.push_back(Sample(frequency, logits, i).token);
  }
  EXPECT_EQ(tokens, (std::vector<TokenId>{1, 3, 2, 1, 3}));

  params = Greedy();
  params.repetition_penalty = 4.0;
  // The prompt counts: 1 and 3 fall to 0.75, 2 to 0.5; a negative logit is multiplied.
  Sampler repetition(params, 0, kVocab, std::vector<TokenId>{1, 2, 3, 4});
  std::vector<float> logits = kLogits;
  EXPECT_EQ(Sample(repetition, logits, 0).token, 0);
  EXPECT_EQ(logits[4], -4.0f);
}

TEST(Sampler, BiasAndLogprobs) {
  SamplingParams params = Greedy();
  params.logit_bias = {{4, 100.0f}};
  const TokenEvent event = SampleOnce(params, 0, kLogits, {}, 3);
  EXPECT_EQ(event.token, 4);
  // Logprobs are of the raw distribution.
  double total = 0.0;
  for (float v : kLogits) total += std::exp(v);
  EXPECT_NEAR(event.logprob, -1.0 - std::log(total), 1e-6);
  ASSERT_EQ(event.top.size(), 3u);
  EXPECT_EQ(event.top[0].token, 1);
  EXPECT_EQ(event.top[1].token, 3);
  EXPECT_EQ(event.top[2].token, 2);
  EXPECT_NEAR(event.top[2].logprob, 2.0 - std::log(total), 1e-6);
  EXPECT_TRUE(SampleOnce(params, 0).top.empty());
}

TEST(Sampler, AConstraintHoldsWhateverTheLogitsSay) {
  ListConstraint constraint({{0, 4, 5}, {2}, {4, 5}, {0, 1, 2, 3, 4, 5}});
  Sampler sampler(Greedy(), 0, kVocab, {});
  std::vector<TokenId> tokens;
  for (int i = 0; i < 4; ++i) {
    std::vector<float> logits = kLogits;
    if (i == 2) logits[4] = logits[5] = NAN;
    const TokenEvent event = Sample(sampler, logits, i, {}, 1, &constraint);
    tokens.push_back(event.token);
    if (i != 2) {
      EXPECT_EQ(event.top.at(0).token, 1) << "log-probabilities know no constraint";
    }
  }
  EXPECT_EQ(tokens, (std::vector<TokenId>{0, 2, 4, 1}));
  EXPECT_EQ(constraint.accepted(), tokens);

  SamplingParams params;
  params.temperature = 2.0;
  params.logit_bias = {{3, 100.0f}};
  std::map<TokenId, int> counts;
  for (int i = 0; i < 500; ++i) {
    ListConstraint three({{0, 4, 5}});
    Sampler drawn(params, 1, kVocab, {});
    std::vector<float> logits = kLogits;
    ++counts[Sample(drawn, logits, i, {}, -1, &three).token];
  }
  EXPECT_EQ(counts.size(), 3u);
  EXPECT_EQ(counts.count(0) + counts.count(4) + counts.count(5), 3u);
}

TEST(Sampler, AConstraintOfManyTokensEndsInsideAWord) {
  // 130 tokens: two words and two bits.
  std::vector<float> logits(130, 0.0f);
  logits[129] = 1.0f;
  ListConstraint constraint({{0, 63, 64, 128}});
  Sampler sampler(Greedy(), 0, 130, {});
  EXPECT_EQ(Sample(sampler, logits, 0, std::vector<TokenId>{0}, -1, &constraint).token, 63);
}

TEST(Sampler, MasksYieldWhereTheConstraintLeavesNothingElse) {
  const std::vector<TokenId> ends = {1, 2};
  ListConstraint constraint({{1, 2}, {1, 2, 5}});
  Sampler sampler(Greedy(), 0, kVocab, {});
  std::vector<float> logits = kLogits;
  EXPECT_EQ(Sample(sampler, logits, 0, ends, -1, &constraint).token, 1);
  logits = kLogits;
  EXPECT_EQ(Sample(sampler, logits, 1, ends, -1, &constraint).token, 5);
}

TEST(Sampler, EveryFieldHasItsRange) {
  const auto bad = [](auto change, const char* field) {
    SamplingParams params;
    change(params);
    const Status status = ValidateSampling(params, kVocab);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << field;
    EXPECT_NE(status.message().find(field), std::string::npos) << status.message();
  };
  EXPECT_TRUE(ValidateSampling({}, kVocab).ok());
  bad([](auto& p) { p.temperature = -0.1; }, "temperature");
  bad([](auto& p) { p.temperature = NAN; }, "temperature");
  bad([](auto& p) { p.temperature = INFINITY; }, "temperature");
  bad([](auto& p) { p.top_p = 0.0; }, "top_p");
  bad([](auto& p) { p.top_p = 1.01; }, "top_p");
  bad([](auto& p) { p.top_p = NAN; }, "top_p");
  bad([](auto& p) { p.top_k = -1; }, "top_k");
  bad([](auto& p) { p.min_p = -0.1; }, "min_p");
  bad([](auto& p) { p.min_p = 1.1; }, "min_p");
  bad([](auto& p) { p.presence_penalty = 2.1; }, "presence_penalty");
  bad([](auto& p) { p.frequency_penalty = -2.1; }, "frequency_penalty");
  bad([](auto& p) { p.repetition_penalty = 0.0; }, "repetition_penalty");
  bad([](auto& p) { p.logit_bias = {{kVocab, 1.0f}}; }, "logit_bias");
  bad([](auto& p) { p.logit_bias = {{0, NAN}}; }, "logit_bias");
}

}  // namespace
}  // namespace fathom
