#include "backend/choose_token.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace fathom {
namespace {

constexpr float kNoChoice = -std::numeric_limits<float>::infinity();

constexpr auto kById = [](const TokenCandidate& a, const TokenCandidate& b) {
  return a.token < b.token;
};

void Adjust(const SampleRow& row, std::span<float> logits) {
  for (const TokenAdjustment& a : row.adjustments) {
    float& logit = logits[static_cast<size_t>(a.token)];
    logit += a.bias;
    logit = logit > 0.0f ? logit / a.repetition : logit * a.repetition;
    logit -= a.penalty;
  }
  for (size_t word = 0; word < row.allowed.size(); ++word) {
    if (row.allowed[word] == ~uint64_t{0}) continue;
    const size_t end = std::min(word * 64 + 64, logits.size());
    for (size_t t = word * 64; t < end; ++t) {
      if ((row.allowed[word] >> (t % 64) & 1) == 0) logits[t] = kNoChoice;
    }
  }
  for (const TokenId token : row.masked) logits[static_cast<size_t>(token)] = kNoChoice;
}

// The smallest, 0 where all are.
TokenId FirstAllowed(std::span<const uint64_t> allowed) {
  for (size_t word = 0; word < allowed.size(); ++word) {
    if (allowed[word] == 0) continue;
    return static_cast<TokenId>(word * 64 + static_cast<size_t>(std::countr_zero(allowed[word])));
  }
  return 0;
}

// The largest logit; order 0 without any.
TokenCandidate Best(std::span<const float> logits) {
  TokenCandidate best;
  for (size_t t = 0; t < logits.size(); ++t) {
    const uint32_t order = LogitOrder(logits[t]);
    if (order > best.order) best = {static_cast<TokenId>(t), order};
  }
  return best;
}

uint64_t MassOf(std::span<const TokenCandidate> candidates) {
  uint64_t mass = 0;
  for (const TokenCandidate& c : candidates) mass += c.mass;
  return mass;
}

// Keeps the shortest list of best candidates that has the nucleus' share of their mass.
void KeepNucleus(const DrawRule& rule, float max, int mass_bits,
                 std::vector<TokenCandidate>& candidates) {
  uint64_t wanted = NucleusMass(rule.nucleus, MassOf(candidates));
  // The list ends in [begin, end).
  auto begin = candidates.begin();
  auto end = candidates.end();
  // Candidates below an even share of what may be left out have less than that together, so they
  // are not needed. Logarithm and share are rounded: the sum says whether it is so.
  const double rest = std::ldexp(static_cast<double>(~rule.nucleus), -64);
  const double share =
      rest * static_cast<double>(MassOf(candidates)) / static_cast<double>(candidates.size());
  const uint32_t lowest =
      LowestOrder(max, std::min(0.0, (std::log2(share) - mass_bits) / rule.scale));
  const auto part = std::partition(begin, end, [=](const auto& c) { return c.order >= lowest; });
  if (MassOf({begin, part}) >= wanted) end = part;
  while (end - begin > 1) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, kBetterToken);
    const uint64_t mass = MassOf({begin, middle});
    if (mass >= wanted) {
      end = middle;
    } else {
      wanted -= mass;
      begin = middle;
    }
  }
  candidates.erase(end, candidates.end());
}

}  // namespace

DrawRule RuleOf(const SampleRow& row) {
  DrawRule rule;
  if (row.temperature < kGreedyTemperature) return rule;
  rule.scale = kLog2E / row.temperature;
  // Not the C library's logarithm, which is not the same everywhere.
  rule.min_distance =
      row.min_p > 0.0
          ? row.temperature * NaturalLog(std::max(row.min_p, std::numeric_limits<double>::min()))
          : -std::numeric_limits<double>::infinity();
  // At least 1, which is a nucleus of one token.
  if (row.top_p < 1.0) {
    rule.nucleus = std::max<uint64_t>(1, static_cast<uint64_t>(std::ldexp(row.top_p, 64)));
  }
  rule.random = row.random;
  rule.top_k = row.top_k;
  return rule;
}

TokenId ChooseToken(const SampleRow& row, std::span<float> logits,
                    std::vector<TokenCandidate>& scratch) {
  Adjust(row, logits);
  const TokenCandidate best = Best(logits);
  if (best.order == 0) return FirstAllowed(row.allowed);
  const DrawRule rule = RuleOf(row);
  const float max = LogitOfOrder(best.order);
  if (rule.scale == 0.0 || !std::isfinite(max)) return best.token;

  std::vector<TokenCandidate>& candidates = scratch;
  candidates.clear();
  const int mass_bits = MassBits(static_cast<int64_t>(logits.size()));
  // min_p compares probabilities at the given temperature: p >= min_p * p_max.
  const uint32_t lowest = LowestOrder(max, rule.min_distance);
  for (size_t t = 0; t < logits.size(); ++t) {
    const uint32_t order = LogitOrder(logits[t]);
    if (order >= lowest) candidates.push_back({static_cast<TokenId>(t), order});
  }
  bool sorted = true;
  if (rule.top_k > 0 && rule.top_k < static_cast<int64_t>(candidates.size())) {
    std::nth_element(candidates.begin(), candidates.begin() + rule.top_k, candidates.end(),
                     kBetterToken);
    candidates.resize(static_cast<size_t>(rule.top_k));
    sorted = false;
  }
  for (TokenCandidate& c : candidates) {
    const double distance = static_cast<double>(LogitOfOrder(c.order)) - static_cast<double>(max);
    c.mass = TokenMass(distance, rule.scale, mass_bits);
  }
  if (rule.nucleus != 0) {
    KeepNucleus(rule, max, mass_bits, candidates);
    sorted = false;
  }
  // The order of the candidates decides which token a random number means: by id, whatever filters
  // ran.
  if (!sorted) std::sort(candidates.begin(), candidates.end(), kById);
  uint64_t rest = MulHigh(rule.random, MassOf(candidates));
  for (const TokenCandidate& c : candidates) {
    if (rest < c.mass) return c.token;
    rest -= c.mass;
  }
  return best.token;  // not reached: the numbers drawn are below the sum
}

LogitSum SumLogits(std::span<const float> logits) {
  LogitSum sum;
  sum.mass_bits = MassBits(static_cast<int64_t>(logits.size()));
  const TokenCandidate best = Best(logits);
  if (best.order == 0) return sum;
  sum.max = LogitOfOrder(best.order);
  if (!std::isfinite(sum.max)) return sum;
  for (const float logit : logits) {
    const double distance = static_cast<double>(logit) - static_cast<double>(sum.max);
    sum.mass += TokenMass(distance, kLog2E, sum.mass_bits);
  }
  return sum;
}

}  // namespace fathom
