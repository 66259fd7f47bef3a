// What a front end asks of the engine and what it gets back. Token ids only: text, stop strings and
// parsers live in the front end.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/types.h"

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
  int64_t min_tokens = 0;               // end and stop tokens are masked until then
  std::vector<TokenId> stop_token_ids;  // besides the model's own end tokens
  bool ignore_eos = false;              // the model's own end tokens do not end the request
  int num_logprobs = -1;  // -1: none; 0: of the chosen token; n: and of the n most likely ones
};

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0.0f;  // natural log, of the raw distribution (before temperature and penalties)
};

struct TokenEvent {
  TokenId token = 0;              // the end or stop token that finishes a request is delivered too
  float logprob = 0.0f;           // when asked for
  std::vector<TokenLogprob> top;  // descending; ties by smaller id
};

enum class FinishReason { kStop, kLength, kAborted, kError };

struct FinishEvent {
  FinishReason reason = FinishReason::kStop;
  std::optional<TokenId> stop_token;  // the token that ended it, for kStop
  Status error;                       // for kError
  int cached_tokens = 0;              // prompt tokens whose cache entries were reused
};

// Receives one request's events, in order, on the engine's thread; must not block. After OnFinish
// nothing more comes.
class RequestSink {
 public:
  virtual ~RequestSink() = default;
  virtual void OnToken(const TokenEvent& event) = 0;
  virtual void OnFinish(const FinishEvent& event) = 0;
};

}  // namespace fathom
