// What a front end asks of the engine and what it gets back. Token ids only: text, stop strings and
// parsers live in the front end.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "engine/engine_stats.h"
#include "engine/token_constraint.h"

namespace fathom {

// Ranges as in docs/architecture.md, "Sampling"; ValidateSampling checks them.
struct SamplingParams {
  double temperature = 1.0;  // 0: greedy, the other fields but penalties and bias have no effect
  double top_p = 1.0;        // (0, 1]
  int top_k = 0;             // 0: off
  double min_p = 0.0;        // [0, 1]
  double presence_penalty = 0.0;    // [-2, 2], over generated tokens
  double frequency_penalty = 0.0;   // [-2, 2], over generated tokens
  double repetition_penalty = 1.0;  // > 0, over prompt and generated tokens
  std::vector<std::pair<TokenId, float>> logit_bias;
  // A draw is a function of (seed, position) and the logits alone. Absent: the engine picks one.
  std::optional<int64_t> seed;
};

struct GenerateRequest {
  std::string id;               // for logs
  std::vector<TokenId> prompt;  // at least one token
  SamplingParams sampling;
  int64_t max_tokens = 0;               // at least 1; prompt + max_tokens must fit the model length
  int64_t min_tokens = 0;               // end and stop tokens are masked until then, unless the
                                        // constraint leaves nothing else
  std::vector<TokenId> stop_token_ids;  // besides the model's own end tokens
  bool ignore_eos = false;              // the model's own end tokens do not end the request
  int num_logprobs = -1;  // -1: none; 0: of the chosen token; n: and of the n most likely ones
  // As num_logprobs, of the prompt's tokens. Such a request reads no cached prefix, because the
  // logits of what is cached are not; what it computes is kept for others as always.
  int num_prompt_logprobs = -1;
  // What the answer may be; null: anything. Last owned by the engine, which alone uses it once the
  // request is submitted.
  std::shared_ptr<TokenConstraint> constraint;
  // Requests share cached prefixes only with requests of the same salt; empty is one as well.
  std::string cache_salt;
  int priority = 0;    // smaller goes first; other than 0 only with EngineInfo::priority_scheduling
  std::string client;  // requests of one client take turns with those of others; may be empty
};

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0.0f;  // natural log, of the raw distribution (before temperature and penalties)
};

struct TokenEvent {
  TokenId token = 0;              // the end or stop token that finishes a request is delivered too
  float logprob = 0.0f;           // when asked for
  std::vector<TokenLogprob> top;  // descending; ties by smaller id
  // Of the prompt, as in FinishEvent: known when the first token is, and a front end that ends a
  // request itself (stop string) does not wait for its FinishEvent.
  int cached_tokens = 0;
};

enum class FinishReason { kStop, kLength, kAborted, kError };

// When a request got where. A point that it never reached is left at its default.
struct RequestTimings {
  using Clock = std::chrono::steady_clock;
  Clock::time_point arrival;          // Submit
  Clock::time_point first_scheduled;  // its first step began
  Clock::time_point first_token;
  Clock::time_point last_token;
  int num_preemptions = 0;
};

struct FinishEvent {
  FinishReason reason = FinishReason::kStop;
  std::optional<TokenId> stop_token;           // the token that ended it, for kStop
  Status error;                                // for kError
  int cached_tokens = 0;                       // prompt tokens whose cache entries were reused
  PrefixMiss prefix_miss = PrefixMiss::kNone;  // why they are not more
  RequestTimings timings = {};
};

// Receives one request's events, in order, on the engine's thread; must not block. After OnFinish
// nothing more comes.
class RequestSink {
 public:
  virtual ~RequestSink() = default;
  // For num_prompt_logprobs, in order and in pieces of any size, before the first OnToken: each
  // prompt token but the first, given those before it. `cached_tokens` is 0.
  virtual void OnPromptLogprobs(std::span<const TokenEvent> /*tokens*/) {}
  virtual void OnToken(const TokenEvent& event) = 0;
  virtual void OnFinish(const FinishEvent& event) = 0;
};

}  // namespace fathom
