// ReplayScript: what a replay file says (docs/replay.md): answers, and which request gets which.
//
// Plain data, immutable once parsed. What a file's answers say in text is token ids here.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "engine/request.h"
#include "tokenizer/tokenizer.h"

namespace fathom {

// Which requests an answer is for, by the text of their prompt, control tokens included.
struct ReplayCondition {
  std::vector<std::string> contains;  // all of them
  std::vector<std::string> lacks;     // none of them
  std::string ends_with;              // empty: anything

  [[nodiscard]] bool Holds(std::string_view prompt) const;
};

// Why a request is refused before it is queued.
enum class ReplaySubmitError { kQueueFull, kShuttingDown, kTooLong, kInternal };

struct ReplayAnswer {
  using Duration = std::chrono::steady_clock::duration;

  std::string name;                     // "answers[2]" or "line 3", for messages
  std::optional<ReplayCondition> when;  // absent: in order of arrival
  int64_t times = 0;                    // how many requests get it; 0: no limit

  std::vector<TokenId> reasoning;  // with </think>; only in front of prompts that ask for it
  std::vector<TokenId> tokens;
  bool endless = false;  // `tokens` again and again
  // Behind the last token: an end token of the model (kStop), nothing (kLength), or an abort.
  FinishReason finish = FinishReason::kStop;

  Duration first_token_delay{0};  // from when the request begins to run
  Duration token_delay{0};        // between steps
  int tokens_per_step = 1;

  std::optional<int64_t> fail_after_tokens;
  std::optional<int64_t> stall_after_tokens;
  std::optional<Duration> stall;  // absent: for ever
  std::optional<ReplaySubmitError> submit_error;
  Status error;  // of fail_after_tokens and of submit_error kInternal

  int64_t cached_tokens = 0;  // of the prompt; at most all but its last
  float logprob = -0.1f;      // of each token
};

// When the answers without condition are used up.
enum class ReplayRepeat { kLast, kCycle, kRefuse };

struct ReplayScript {
  std::vector<ReplayAnswer> answers;
  ReplayRepeat repeat = ReplayRepeat::kLast;
  TokenId think_token = -1;  // prompts that end with it ask for reasoning; -1: none do
  // Whether any answer has a condition, so that prompts must be decoded.
  [[nodiscard]] bool has_conditions() const;
};

// `source` is the file's name, for messages; with the ending .jsonl each line is an answer. Pieces
// of text that are to be one token and are none in the vocabulary are added to the tokenizer
// (AddOutputTokens), so whoever decodes answers must use it as it is afterwards. kInvalidArgument
// names entry and field.
Result<ReplayScript> ParseReplayScript(std::string_view text, std::string_view source,
                                       Tokenizer& tokenizer);

}  // namespace fathom
