#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "engine/token_mask.h"

namespace fathom {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();
// Below this a temperature means greedy.
constexpr double kGreedyTemperature = 1e-5;

// Finaliser of SplitMix64 (Steele, Lea, Flood 2014): every input bit reaches every output bit.
uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Better first: larger logit, then smaller id.
constexpr auto kBetter = [](const auto& a, const auto& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
};

TokenId ArgMax(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// log(sum(exp(logits))), in double.
double LogSumExp(std::span<const float> logits, float max) {
  double sum = 0.0;
  for (float v : logits) sum += std::exp(static_cast<double>(v) - max);
  return max + std::log(sum);
}

void MaskForbidden(std::span<float> logits, std::span<const uint64_t> allowed) {
  for (size_t word = 0; word < allowed.size(); ++word) {
    const size_t begin = word * 64;
    const size_t end = std::min(begin + 64, logits.size());
    if (allowed[word] == ~uint64_t{0}) continue;
    for (size_t t = begin; t < end; ++t) {
      if ((allowed[word] >> (t - begin) & 1) == 0) logits[t] = kMasked;
    }
  }
}

// Puts the likeliest tokens into `top`; returns the logarithm of the sum that makes logits
// probabilities.
double RankTokens(std::span<const float> logits, int num_logprobs, SampleScratch& scratch,
                  std::vector<TokenLogprob>* top) {
  const double log_sum = LogSumExp(logits, *std::max_element(logits.begin(), logits.end()));
  const auto count = std::min(static_cast<size_t>(num_logprobs), logits.size());
  std::vector<SampleScratch::Candidate>& candidates = scratch.candidates;
  candidates.clear();
  for (size_t i = 0; i < logits.size(); ++i)
    candidates.push_back({static_cast<TokenId>(i), logits[i]});
  std::partial_sort(candidates.begin(), candidates.begin() + static_cast<ptrdiff_t>(count),
                    candidates.end(), kBetter);
  for (size_t i = 0; i < count; ++i) {
    top->push_back({candidates[i].token, static_cast<float>(candidates[i].logit - log_sum)});
  }
  return log_sum;
}

Status OutOfRange(const char* field, double value, const char* range) {
  return InvalidArgument(std::string(field) + ": " + std::to_string(value) + " is not " + range);
}

}  // namespace

Status ValidateSampling(const SamplingParams& p, int vocab_size) {
  const auto between = [](double v, double low, double high) { return v >= low && v <= high; };
  if (!(p.temperature >= 0.0 && std::isfinite(p.temperature))) {
    return OutOfRange("temperature", p.temperature, "a finite number of at least 0");
  }
  if (!(p.top_p > 0.0 && p.top_p <= 1.0)) return OutOfRange("top_p", p.top_p, "in (0, 1]");
  if (p.top_k < 0) return OutOfRange("top_k", p.top_k, "0 (off) or positive");
  if (!between(p.min_p, 0.0, 1.0)) return OutOfRange("min_p", p.min_p, "in [0, 1]");
  if (!between(p.presence_penalty, -2.0, 2.0)) {
    return OutOfRange("presence_penalty", p.presence_penalty, "in [-2, 2]");
  }
  if (!between(p.frequency_penalty, -2.0, 2.0)) {
    return OutOfRange("frequency_penalty", p.frequency_penalty, "in [-2, 2]");
  }
  if (!(p.repetition_penalty > 0.0 && std::isfinite(p.repetition_penalty))) {
    return OutOfRange("repetition_penalty", p.repetition_penalty, "a finite number above 0");
  }
  for (const auto& [token, bias] : p.logit_bias) {
    if (token < 0 || token >= vocab_size) {
      return InvalidArgument("logit_bias: token " + std::to_string(token) +
                             " is not in the vocabulary of " + std::to_string(vocab_size));
    }
    if (!std::isfinite(bias)) return OutOfRange("logit_bias", bias, "finite");
  }
  return OkStatus();
}

double UniformAt(uint64_t seed, int64_t position) {
  const uint64_t bits = Mix(Mix(seed) ^ Mix(static_cast<uint64_t>(position) + 1));
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

TokenEvent LogprobsOf(std::span<const float> logits, TokenId token, int num_logprobs,
                      SampleScratch& scratch) {
  TokenEvent event;
  event.token = token;
  const double log_sum = RankTokens(logits, num_logprobs, scratch, &event.top);
  event.logprob = static_cast<float>(logits[static_cast<size_t>(token)] - log_sum);
  return event;
}

Sampler::Sampler(const SamplingParams& params, uint64_t seed, int vocab_size,
                 std::span<const TokenId> prompt)
    : params_(params), seed_(params.seed ? static_cast<uint64_t>(*params.seed) : seed) {
  const auto vocab = static_cast<size_t>(vocab_size);
  if (params.presence_penalty != 0.0 || params.frequency_penalty != 0.0)
    generated_counts_.resize(vocab);
  if (params.repetition_penalty != 1.0) {
    seen_.resize(vocab);
    for (TokenId token : prompt) seen_[static_cast<size_t>(token)] = true;
  }
}

TokenEvent Sampler::Sample(std::span<float> logits, int64_t position,
                           std::span<const TokenId> masked, TokenConstraint* constraint,
                           int num_logprobs, SampleScratch& scratch) {
  // Raw log-probabilities must be read before the logits are adjusted, for a token not yet chosen.
  double log_sum = 0.0;
  std::vector<float>& raw = scratch.raw;
  std::vector<Candidate>& candidates = scratch.candidates;
  TokenEvent event;
  if (num_logprobs >= 0) {
    raw.assign(logits.begin(), logits.end());
    log_sum = RankTokens(logits, num_logprobs, scratch, &event.top);
  }

  AdjustLogits(logits);
  std::vector<uint64_t>& allowed = scratch.allowed;
  const bool restricted =
      constraint != nullptr && AskConstraint(*constraint, logits.size(), allowed);
  if (restricted) MaskForbidden(logits, allowed);
  if (!restricted || AllowsOtherThan(allowed, masked)) {
    for (const TokenId token : masked) logits[static_cast<size_t>(token)] = kMasked;
  }
  event.token = params_.temperature < kGreedyTemperature ? ArgMax(logits)
                                                         : Draw(logits, position, candidates);
  // Logits that are not numbers do not compare; the constraint holds nevertheless.
  if (restricted && !IsAllowed(allowed, event.token)) event.token = FirstAllowed(allowed);
  if (constraint != nullptr) constraint->Accept(event.token);
  if (num_logprobs >= 0) {
    event.logprob = static_cast<float>(raw[static_cast<size_t>(event.token)] - log_sum);
  }
  if (!generated_counts_.empty()) ++generated_counts_[static_cast<size_t>(event.token)];
  if (!seen_.empty()) seen_[static_cast<size_t>(event.token)] = true;
  return event;
}

void Sampler::AdjustLogits(std::span<float> logits) const {
  for (const auto& [token, bias] : params_.logit_bias) logits[static_cast<size_t>(token)] += bias;
  if (!seen_.empty()) {
    const auto penalty = static_cast<float>(params_.repetition_penalty);
    for (size_t i = 0; i < logits.size(); ++i) {
      if (seen_[i]) logits[i] = logits[i] > 0.0f ? logits[i] / penalty : logits[i] * penalty;
    }
  }
  for (size_t i = 0; i < generated_counts_.size(); ++i) {
    if (generated_counts_[i] == 0) continue;
    logits[i] -= static_cast<float>(params_.frequency_penalty * generated_counts_[i] +
                                    params_.presence_penalty);
  }
}

// Keeps the `count` best candidates.
void Sampler::KeepLargest(std::vector<Candidate>& candidates, size_t count) {
  if (count >= candidates.size()) return;
  std::nth_element(candidates.begin(), candidates.begin() + static_cast<ptrdiff_t>(count),
                   candidates.end(), kBetter);
  candidates.resize(count);
}

// Keeps the smallest set of best candidates that holds top_p of the probability.
void Sampler::KeepNucleus(std::vector<Candidate>& candidates, double max_logit) const {
  const auto weight = [&](const Candidate& c) {
    return std::exp((static_cast<double>(c.logit) - max_logit) / params_.temperature);
  };
  double total = 0.0;
  for (const Candidate& c : candidates) total += weight(c);
  // Candidates below this share together hold less than 1 - top_p, so none of them is in the set:
  // what remains to be sorted is short.
  const double floor = total * (1.0 - params_.top_p) / static_cast<double>(candidates.size());
  std::erase_if(candidates, [&](const Candidate& c) { return weight(c) < floor; });
  std::sort(candidates.begin(), candidates.end(), kBetter);
  double sum = 0.0;
  size_t count = 0;
  while (count < candidates.size() && sum < params_.top_p * total)
    sum += weight(candidates[count++]);
  candidates.resize(std::max<size_t>(count, 1));
}

TokenId Sampler::Draw(std::span<const float> logits, int64_t position,
                      std::vector<Candidate>& candidates) const {
  const TokenId best = ArgMax(logits);
  const double max = logits[static_cast<size_t>(best)];
  // Everything masked, or not a number: there is nothing to draw from; the caller's masks leave at
  // least one token, so this is the model's doing.
  if (!std::isfinite(max)) return best;
  candidates.clear();
  // min_p compares probabilities at the given temperature: p >= min_p * p_max.
  const double min_logit = params_.min_p > 0.0 ? max + params_.temperature * std::log(params_.min_p)
                                               : -std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] >= min_logit && logits[i] > kMasked) {
      candidates.push_back({static_cast<TokenId>(i), logits[i]});
    }
  }
  if (params_.top_k > 0) KeepLargest(candidates, static_cast<size_t>(params_.top_k));
  if (params_.top_p < 1.0) KeepNucleus(candidates, max);
  // The order of the candidates decides which token a random number means: by id, whatever filters
  // ran.
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
  double total = 0.0;
  for (const Candidate& c : candidates) total += std::exp((c.logit - max) / params_.temperature);
  double rest = UniformAt(seed_, position) * total;
  for (const Candidate& c : candidates) {
    rest -= std::exp((c.logit - max) / params_.temperature);
    if (rest < 0.0) return c.token;
  }
  // The sums may differ in the last bit from one loop to the other.
  return candidates.back().token;
}

}  // namespace fathom
