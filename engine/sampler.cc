#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "engine/token_mask.h"

namespace fathom {
namespace {

// Finaliser of SplitMix64 (Steele, Lea, Flood 2014): every input bit reaches every output bit.
uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// The likeliest tokens, best first; logits that are not numbers come last.
void RankTokens(std::span<const float> logits, const LogitSum& sum, int num_logprobs,
                SampleScratch& scratch, std::vector<TokenLogprob>* top) {
  const auto count = std::min(static_cast<size_t>(num_logprobs), logits.size());
  std::vector<TokenCandidate>& candidates = scratch.candidates;
  candidates.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    candidates.push_back({static_cast<TokenId>(i), LogitOrder(logits[i])});
  }
  std::partial_sort(candidates.begin(), candidates.begin() + static_cast<ptrdiff_t>(count),
                    candidates.end(), kBetterToken);
  for (size_t i = 0; i < count; ++i) {
    const TokenId token = candidates[i].token;
    top->push_back({token, sum.LogProbability(logits[static_cast<size_t>(token)])});
  }
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

uint64_t RandomAt(uint64_t seed, int64_t position) {
  return Mix(Mix(seed) ^ Mix(static_cast<uint64_t>(position) + 1));
}

TokenEvent LogprobsOf(std::span<const float> logits, TokenId token, int num_logprobs,
                      SampleScratch& scratch) {
  TokenEvent event;
  event.token = token;
  const LogitSum sum = SumLogits(logits);
  RankTokens(logits, sum, num_logprobs, scratch, &event.top);
  event.logprob = sum.LogProbability(logits[static_cast<size_t>(token)]);
  return event;
}

Sampler::Sampler(const SamplingParams& params, uint64_t seed, int vocab_size,
                 std::span<const TokenId> prompt)
    : params_(params), seed_(params.seed ? static_cast<uint64_t>(*params.seed) : seed) {
  std::vector<TokenId> tokens;
  for (const auto& [token, bias] : params.logit_bias) tokens.push_back(token);
  if (repeats()) tokens.insert(tokens.end(), prompt.begin(), prompt.end());
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  if (repeats() || counts()) {
    // All that may come, so that a token allocates nothing.
    adjustments_.reserve(static_cast<size_t>(vocab_size));
    generated_.reserve(static_cast<size_t>(vocab_size));
  }
  for (const TokenId token : tokens) adjustments_.push_back({token});
  generated_.resize(adjustments_.size());
  for (const auto& [token, bias] : params.logit_bias)
    adjustments_[AdjustmentOf(token)].bias += bias;
  if (!repeats()) return;
  for (const TokenId token : prompt) {
    adjustments_[AdjustmentOf(token)].repetition = static_cast<float>(params.repetition_penalty);
  }
}

size_t Sampler::AdjustmentOf(TokenId token) {
  const auto at =
      std::lower_bound(adjustments_.begin(), adjustments_.end(), token,
                       [](const TokenAdjustment& a, TokenId wanted) { return a.token < wanted; });
  const auto index = at - adjustments_.begin();
  if (at == adjustments_.end() || at->token != token) {
    adjustments_.insert(at, {token});
    generated_.insert(generated_.begin() + index, 0);
  }
  return static_cast<size_t>(index);
}

SampleRow Sampler::RowAt(int64_t position, std::span<const TokenId> masked,
                         TokenConstraint* constraint, size_t vocab_size,
                         std::vector<uint64_t>& allowed) const {
  SampleRow row;
  row.temperature = params_.temperature;
  row.top_p = params_.top_p;
  row.min_p = params_.min_p;
  row.top_k = params_.top_k;
  row.random = RandomAt(seed_, position);
  row.adjustments = adjustments_;
  if (constraint != nullptr && AskConstraint(*constraint, vocab_size, allowed)) {
    row.allowed = allowed;
  }
  if (row.allowed.empty() || AllowsOtherThan(row.allowed, masked)) row.masked = masked;
  return row;
}

void Sampler::Accept(TokenId token, TokenConstraint* constraint) {
  if (constraint != nullptr) constraint->Accept(token);
  if (!repeats() && !counts()) return;
  const size_t index = AdjustmentOf(token);
  TokenAdjustment& adjustment = adjustments_[index];
  if (repeats()) adjustment.repetition = static_cast<float>(params_.repetition_penalty);
  if (!counts()) return;
  ++generated_[index];
  adjustment.penalty =
      static_cast<float>(params_.frequency_penalty * generated_[index] + params_.presence_penalty);
}

TokenEvent Sampler::Sample(std::span<float> logits, int64_t position,
                           std::span<const TokenId> masked, TokenConstraint* constraint,
                           int num_logprobs, SampleScratch& scratch) {
  // Log-probabilities are those of the logits before they are adjusted, of a token not yet chosen.
  TokenEvent event;
  LogitSum sum;
  if (num_logprobs >= 0) {
    scratch.raw.assign(logits.begin(), logits.end());
    sum = SumLogits(logits);
    RankTokens(logits, sum, num_logprobs, scratch, &event.top);
  }
  const SampleRow row = RowAt(position, masked, constraint, logits.size(), scratch.allowed);
  event.token = ChooseToken(row, logits, scratch.candidates);
  Accept(event.token, constraint);
  if (num_logprobs >= 0) {
    event.logprob = sum.LogProbability(scratch.raw[static_cast<size_t>(event.token)]);
  }
  return event;
}

}  // namespace fathom
