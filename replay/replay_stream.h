// ReplayStream: one request's answer, a token at a time.
//
// Turns what a script says into what an engine that obeys its request would have given: end and
// stop tokens, min_tokens, ignore_eos, max_tokens, the constraint. No clock. Single-threaded.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/engine.h"
#include "engine/request.h"
#include "replay/replay_script.h"

namespace fathom {

class ReplayStream {
 public:
  // `answer` and `info` must outlive the stream.
  ReplayStream(const ReplayScript& script, const ReplayAnswer& answer, GenerateRequest request,
               const EngineInfo& info);

  // What a request with num_prompt_logprobs gets before its first token; once.
  std::vector<TokenEvent> TakePromptLogprobs();
  // The next token. None when the answer has ended or stalls. `scratch` is working memory that
  // streams may share.
  std::optional<TokenEvent> Next(std::vector<uint64_t>& scratch);
  // How it ended, once it has: with the last token or instead of one.
  [[nodiscard]] const std::optional<FinishEvent>& finish() const { return finish_; }
  // Silent until it is resumed.
  [[nodiscard]] bool is_stalled() const { return stalled_; }
  void Resume();

  [[nodiscard]] int64_t num_generated() const { return num_generated_; }
  [[nodiscard]] int64_t num_prompt_tokens() const { return num_prompt_tokens_; }
  [[nodiscard]] int cached_tokens() const { return cached_tokens_; }
  [[nodiscard]] const ReplayAnswer& answer() const { return answer_; }

 private:
  [[nodiscard]] bool IsEnd(TokenId token) const;
  void AddLogprobs(int num_logprobs, TokenEvent* event) const;
  std::optional<TokenId> Scripted(bool may_end);
  std::optional<TokenId> Choose(std::vector<uint64_t>& scratch);
  void Finish(FinishReason reason, std::optional<TokenId> stop_token = {});

  const ReplayAnswer& answer_;
  const EngineInfo& info_;
  GenerateRequest request_;  // its prompt only until its log-probabilities are taken
  std::vector<TokenId> ends_;
  int64_t num_prompt_tokens_;
  int cached_tokens_;
  bool in_reasoning_;
  size_t next_ = 0;          // of the reasoning, then of the answer's tokens
  bool off_script_ = false;  // the constraint forbade what the script wanted
  bool stalled_ = false;
  bool resumed_ = false;
  int64_t num_generated_ = 0;
  std::optional<FinishEvent> finish_;
};

}  // namespace fathom
