// What several benchmarks need: made-up prompts, a sink that counts, a model opened.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "engine/engine_core.h"
#include "engine/request.h"

namespace fathom::bench {

// Tokens that never repeat themselves for long and differ for each `stream`.
// `vocab_size` is above 32.
std::vector<TokenId> SyntheticTokens(int64_t stream, int64_t count, int vocab_size);

// Keeps a request's tokens and how it ended.
class CollectingSink final : public RequestSink {
 public:
  // Room for `max_tokens`, so that tokens allocate nothing.
  explicit CollectingSink(int64_t max_tokens) { tokens_.reserve(static_cast<size_t>(max_tokens)); }
  void OnToken(const TokenEvent& event) override { tokens_.push_back(event.token); }
  void OnFinish(const FinishEvent& event) override { finish_ = event; }

  [[nodiscard]] const std::vector<TokenId>& tokens() const { return tokens_; }
  [[nodiscard]] const FinishEvent& finish() const { return finish_; }

 private:
  std::vector<TokenId> tokens_;
  FinishEvent finish_;
};

// A greedy request of exactly `max_tokens` tokens.
GenerateRequest GreedyRequest(std::vector<TokenId> prompt, int64_t max_tokens);

inline double MillisecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

// What this thread has computed so far, in microseconds: other programs hardly change it. A system
// call of a few tenths of one.
double ThreadCpuMicroseconds();

}  // namespace fathom::bench
