#include "replay/replay_stream.h"

#include <algorithm>
#include <utility>

#include "engine/request_check.h"
#include "engine/token_mask.h"

namespace fathom {
namespace {

// The smallest id that `allowed` has (empty: all of the vocabulary) and `ends` has not.
std::optional<TokenId> FirstOther(std::span<const uint64_t> allowed, std::span<const TokenId> ends,
                                  int vocab_size) {
  for (TokenId token = 0; token < vocab_size; ++token) {
    if (!allowed.empty() && !IsAllowed(allowed, token)) continue;
    if (!std::binary_search(ends.begin(), ends.end(), token)) return token;
  }
  return std::nullopt;
}

}  // namespace

ReplayStream::ReplayStream(const ReplayScript& script, const ReplayAnswer& answer,
                           GenerateRequest request, const EngineInfo& info)
    : answer_(answer),
      info_(info),
      request_(std::move(request)),
      ends_(EndTokensOf(request_, info)),
      num_prompt_tokens_(static_cast<int64_t>(request_.prompt.size())),
      // An engine computes the last prompt token at least, for the first answer token.
      cached_tokens_(static_cast<int>(std::min(answer.cached_tokens, num_prompt_tokens_ - 1))),
      in_reasoning_(!answer.reasoning.empty() && request_.prompt.back() == script.think_token) {
  if (request_.num_prompt_logprobs < 0) {
    request_.prompt = {};
  } else {
    cached_tokens_ = 0;  // such a request reads no cached prefix
  }
}

std::vector<TokenEvent> ReplayStream::TakePromptLogprobs() {
  const std::vector<TokenId> prompt = std::exchange(request_.prompt, {});
  std::vector<TokenEvent> events;
  for (size_t i = 1; i < prompt.size(); ++i) {
    TokenEvent& event = events.emplace_back();
    event.token = prompt[i];
    AddLogprobs(request_.num_prompt_logprobs, &event);
  }
  return events;
}

void ReplayStream::AddLogprobs(int num_logprobs, TokenEvent* event) const {
  if (num_logprobs < 0) return;
  event->logprob = answer_.logprob;
  const int num_top = std::min(num_logprobs, info_.vocab_size);
  for (int n = 0; n < num_top; ++n) {
    event->top.push_back(
        {(event->token + n) % info_.vocab_size, answer_.logprob - static_cast<float>(n)});
  }
}

bool ReplayStream::IsEnd(TokenId token) const {
  return std::binary_search(ends_.begin(), ends_.end(), token);
}

void ReplayStream::Finish(FinishReason reason, std::optional<TokenId> stop_token) {
  finish_.emplace();
  finish_->reason = reason;
  finish_->stop_token = stop_token;
  if (reason == FinishReason::kError) finish_->error = answer_.error;
  if (reason == FinishReason::kAborted) finish_->error = Cancelled("aborted");
  finish_->cached_tokens = cached_tokens_;
}

void ReplayStream::Resume() {
  stalled_ = false;
  resumed_ = true;
}

// What the script says next; none when it ends the answer without a token.
std::optional<TokenId> ReplayStream::Scripted(bool may_end) {
  // Twice around and the end token in between: what is not masked has been seen then.
  const size_t limit = answer_.reasoning.size() + 2 * answer_.tokens.size() + 2;
  for (size_t i = 0; i < limit; ++i) {
    if (in_reasoning_ && next_ == answer_.reasoning.size()) {
      in_reasoning_ = false;
      next_ = 0;
    }
    TokenId token = 0;
    if (in_reasoning_) {
      token = answer_.reasoning[next_++];
    } else if (next_ < answer_.tokens.size()) {
      token = answer_.tokens[next_++];
    } else if (answer_.finish != FinishReason::kStop && !answer_.endless) {
      Finish(answer_.finish);
      return std::nullopt;
    } else {
      // Who goes on behind the end (ignore_eos, min_tokens, endless) hears the answer again.
      next_ = 0;
      if (answer_.endless) continue;
      token = info_.eos_token_ids.front();
    }
    if (may_end || !IsEnd(token)) return token;
  }
  return FirstOther({}, ends_, info_.vocab_size);
}

std::optional<TokenId> ReplayStream::Choose(std::vector<uint64_t>& scratch) {
  const bool may_end = num_generated_ >= request_.min_tokens;
  std::optional<TokenId> token;
  if (!off_script_) {
    token = Scripted(may_end);
    if (!token) return std::nullopt;
  }
  TokenConstraint* const constraint = request_.constraint.get();
  if (constraint == nullptr) return token;
  const bool restricted =
      AskConstraint(*constraint, static_cast<size_t>(info_.vocab_size), scratch);
  if (!off_script_ && restricted && !IsAllowed(scratch, *token)) off_script_ = true;
  if (off_script_) {
    token = constraint->Suggest();
    if (!may_end && IsEnd(*token)) {
      const auto other = FirstOther(scratch, ends_, info_.vocab_size);
      if (other) token = other;
    }
  }
  constraint->Accept(*token);
  return token;
}

std::optional<TokenEvent> ReplayStream::Next(std::vector<uint64_t>& scratch) {
  if (finish_ || stalled_) return std::nullopt;
  if (answer_.fail_after_tokens == num_generated_) {
    Finish(FinishReason::kError);
    return std::nullopt;
  }
  if (!resumed_ && answer_.stall_after_tokens == num_generated_) {
    stalled_ = true;
    return std::nullopt;
  }
  const std::optional<TokenId> token = Choose(scratch);
  if (!token) {
    // Only where every token of the vocabulary ends the request and none may yet.
    if (!finish_) Finish(FinishReason::kLength);
    return std::nullopt;
  }
  TokenEvent event;
  event.token = *token;
  event.cached_tokens = cached_tokens_;
  AddLogprobs(request_.num_logprobs, &event);
  ++num_generated_;
  if (IsEnd(*token)) {
    Finish(FinishReason::kStop, *token);
  } else if (num_generated_ == request_.max_tokens) {
    Finish(FinishReason::kLength);
  }
  return event;
}

}  // namespace fathom
