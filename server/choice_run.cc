#include "server/choice_run.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "chat/finish_reason.h"

namespace fathom {
namespace {

using Kind = OutputDelta::Kind;

bool Contains(const std::vector<TokenId>& ids, TokenId id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

std::string_view EngineReason(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAborted:
    case FinishReason::kError:
      break;
  }
  return "abort";
}

}  // namespace

ChoiceRun::ChoiceRun(const TextFrontEnd* front_end, const ChoiceOptions* options, PromptEcho prompt)
    : front_end_(front_end), options_(options), prompt_(std::move(prompt)) {}

Status ChoiceRun::Open() {
  FATHOM_ASSIGN_OR_RETURN(output_, front_end_->NewOutput(options_->output));
  return {};
}

void ChoiceRun::Echo(std::string_view text) {
  if (text.empty()) return;
  pending_.push_back({Kind::kContent, std::string(text)});
  num_echoed_ = pending_.size();
}

void ChoiceRun::PushPromptToken(const TokenEvent& event, bool is_first) {
  LogprobEntry entry = EntryFor(event);
  entry.is_first = is_first;
  (options_->echo_logprobs ? logprobs_ : prompt_.logprobs).push_back(std::move(entry));
}

void ChoiceRun::Push(const TokenEvent& event) {
  ++num_tokens_;
  const bool in_reasoning = output_->in_reasoning();
  if (in_reasoning) ++num_reasoning_tokens_;  // with the mark that ends it
  if (options_->include_reasoning || !in_reasoning) {
    if (options_->logprobs) logprobs_.push_back(EntryFor(event));
    if (options_->token_ids) token_ids_.push_back(event.token);
  }
  const bool has_text =
      !Contains(options_->end_tokens, event.token) || options_->output.include_stop_in_output;
  if (!has_text) return;
  output_->Push(event.token, &scratch_);
  TakeDeltas();
}

void ChoiceRun::Finish(FinishReason reason, std::optional<TokenId> stop_token) {
  output_->Finish(reason == FinishReason::kStop ? OutputEnd::kStop : OutputEnd::kCut, &scratch_);
  TakeDeltas();
  end_ = {};
  end_.num_calls = output_->num_calls();
  end_.finish_reason = FinishReasonFor(EngineReason(reason), options_->tool_choice, end_.num_calls,
                                       output_->all_calls_complete());
  if (reason != FinishReason::kStop) return;
  if (output_->matched_stop()) {
    end_.stop_reason = *output_->matched_stop();
  } else if (stop_token && Contains(options_->stop_tokens, *stop_token)) {
    end_.stop_reason = *stop_token;
  }
}

void ChoiceRun::ClearExtras() {
  logprobs_.clear();
  token_ids_.clear();
}

void ChoiceRun::KeepPending() {
  for (const OutputDelta& delta : pending_) choice_.message.Add(delta);
  ClearPending();
}

Choice ChoiceRun::Take() {
  KeepPending();
  choice_.logprobs = std::move(logprobs_);
  choice_.token_ids = std::move(token_ids_);
  choice_.prompt = std::move(prompt_);
  choice_.end = std::move(end_);
  return std::move(choice_);
}

LogprobEntry ChoiceRun::EntryFor(const TokenEvent& event) const {
  auto candidate = [this](TokenId token, float logprob) {
    return LogprobEntry::Candidate{token, std::string(front_end_->TokenBytes(token)), logprob};
  };
  LogprobEntry entry;
  entry.chosen = candidate(event.token, event.logprob);
  for (const TokenLogprob& top : event.top) {
    entry.top.push_back(candidate(top.token, top.logprob));
  }
  return entry;
}

// Neighbours of one kind are joined: several tokens may wait for one chunk.
void ChoiceRun::TakeDeltas() {
  for (OutputDelta& delta : scratch_) {
    if (delta.kind == Kind::kReasoning && !options_->include_reasoning) continue;
    const bool joins = pending_.size() > num_echoed_ && delta.kind != Kind::kToolCall &&
                       pending_.back().kind == delta.kind && pending_.back().call == delta.call;
    if (joins) {
      pending_.back().text += delta.text;
    } else {
      pending_.push_back(std::move(delta));
    }
  }
  scratch_.clear();
}

}  // namespace fathom
