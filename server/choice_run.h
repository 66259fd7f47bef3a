// ChoiceRun: one choice of an answer, from the tokens of one engine request to deltas of text.
//
// No HTTP and no engine in here: a Generation feeds it and sends what it makes. Single-threaded.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "chat/chat_request.h"
#include "engine/engine.h"
#include "server/answer_format.h"
#include "server/metrics.h"
#include "server/text_front_end.h"

namespace fathom {

// How the tokens of a request are read; the same for all its choices.
struct ChoiceOptions {
  OutputOptions output;
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::vector<TokenId> end_tokens;   // that end the request and have no text of their own
  std::vector<TokenId> stop_tokens;  // those of them that the client asked for
  bool include_reasoning = true;
  bool logprobs = false;
  bool echo_logprobs = false;  // those of the prompt come first among the choice's
  bool token_ids = false;
};

class ChoiceRun {
 public:
  ChoiceRun(const TextFrontEnd* front_end, const ChoiceOptions* options, PromptEcho prompt);
  // kInvalidArgument for stop strings that cannot be looked for.
  Status Open();

  // Text in front of what is generated.
  void Echo(std::string_view text);
  // The prompt's tokens, in order; the first one has no log-probability.
  void PushPromptToken(const TokenEvent& event, bool is_first);
  // The next token. Nothing may follow once is_complete() holds.
  void Push(const TokenEvent& event);
  // Whether the answer ended although the engine goes on.
  [[nodiscard]] bool is_complete() const { return output_->is_complete(); }
  // The end, for whatever reason; makes the last deltas and `end()`.
  void Finish(FinishReason reason, std::optional<TokenId> stop_token);

  // Deltas since the last ClearPending, without those that the client does not want to see.
  [[nodiscard]] const std::vector<OutputDelta>& pending() const { return pending_; }
  // What came with tokens since the last ClearPending.
  [[nodiscard]] const std::vector<LogprobEntry>& logprobs() const { return logprobs_; }
  [[nodiscard]] const std::vector<TokenId>& token_ids() const { return token_ids_; }
  void ClearExtras();
  // Keeps pending deltas for the whole answer.
  void KeepPending();
  void ClearPending() {
    pending_.clear();
    num_echoed_ = 0;
  }

  [[nodiscard]] const ChoiceEnd& end() const { return end_; }
  // Null for plain text.
  [[nodiscard]] const OutputParser* parser() const { return output_->parser(); }
  [[nodiscard]] const PromptEcho& prompt() const { return prompt_; }
  [[nodiscard]] int64_t num_reasoning_tokens() const { return num_reasoning_tokens_; }
  [[nodiscard]] int64_t num_tokens() const { return num_tokens_; }
  // The choice of a whole answer; leaves the run empty.
  Choice Take();

 private:
  [[nodiscard]] LogprobEntry EntryFor(const TokenEvent& event) const;
  void TakeDeltas();  // from scratch_ to pending_

  const TextFrontEnd* const front_end_;
  const ChoiceOptions* const options_;
  std::unique_ptr<OutputStream> output_;
  PromptEcho prompt_;
  std::vector<OutputDelta> scratch_, pending_;
  size_t num_echoed_ = 0;  // of pending_: a prompt's text stays a piece of its own
  std::vector<LogprobEntry> logprobs_;
  std::vector<TokenId> token_ids_;
  Choice choice_;
  ChoiceEnd end_;
  int64_t num_tokens_ = 0;
  int64_t num_reasoning_tokens_ = 0;
};

}  // namespace fathom
