#include "cli/run_request.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

namespace fathom::cli {
namespace {

using Clock = std::chrono::steady_clock;

// Hands events from the engine's thread to the one that prints.
class Mailbox final : public RequestSink {
 public:
  void OnToken(const TokenEvent& event) override {
    std::lock_guard lock(mutex_);
    tokens_.push_back(event);
    wake_.notify_one();
  }
  void OnFinish(const FinishEvent& event) override {
    std::lock_guard lock(mutex_);
    finish_ = event;
    wake_.notify_one();
  }
  // Waits a moment for something new; true when the request has finished and nothing is left.
  bool Take(std::vector<TokenEvent>& tokens, FinishEvent& finish) {
    // The time-out lets the caller look at its interrupt flag, which a signal handler sets.
    constexpr auto kLook = std::chrono::milliseconds(50);
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, kLook, [this] { return !tokens_.empty() || finish_; });
    tokens = std::exchange(tokens_, {});
    if (!finish_) return false;
    finish = *finish_;
    return true;
  }

 private:
  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::vector<TokenEvent> tokens_;
  std::optional<FinishEvent> finish_;
};

double Seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

double Rate(size_t tokens, double seconds) {
  return seconds > 0.0 ? static_cast<double>(tokens) / seconds : 0.0;
}

}  // namespace

const char* RequestOutcome::FinishName() const {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAborted:
    case FinishReason::kError:
      return "abort";
  }
  return "abort";
}

std::string RequestOutcome::Timing() const {
  // The first token comes out of the prefill; decode steps make the others.
  const size_t decoded = tokens.empty() ? 0 : tokens.size() - 1;
  return fmt::format(
      "prompt: {} tokens in {:.3f} s, {:.0f} tokens/s; answer: {} tokens, {:.0f} tokens/s",
      prompt_tokens, prefill_seconds, Rate(prompt_tokens, prefill_seconds), tokens.size(),
      Rate(decoded, decode_seconds));
}

Result<RequestOutcome> RunRequest(Engine& engine, const TextFrontEnd& front_end,
                                  GenerateRequest request, const OutputOptions& output,
                                  const std::function<void(const OutputDelta&)>& on_delta,
                                  const std::atomic<bool>& interrupt) {
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<OutputStream> stream, front_end.NewOutput(output));
  RequestOutcome outcome;
  outcome.prompt_tokens = request.prompt.size();
  // End tokens are masked before min_tokens, so one that comes ends the request; it has no text.
  std::vector<TokenId> ends = request.stop_token_ids;
  if (!request.ignore_eos) {
    const std::vector<TokenId>& eos = engine.info().eos_token_ids;
    ends.insert(ends.end(), eos.begin(), eos.end());
  }
  const auto mailbox = std::make_shared<Mailbox>();
  const Clock::time_point start = Clock::now();
  FATHOM_ASSIGN_OR_RETURN(const RequestId id, engine.Submit(std::move(request), mailbox));

  Clock::time_point first = start, last = start;
  std::vector<TokenEvent> tokens;
  std::vector<OutputDelta> deltas;
  const auto emit = [&] {
    for (const OutputDelta& delta : deltas) {
      (delta.kind == OutputDelta::Kind::kReasoning ? outcome.reasoning : outcome.content) +=
          delta.text;
      on_delta(delta);
    }
    deltas.clear();
  };
  FinishEvent finish;
  bool asked_to_stop = false;
  for (bool done = false; !done;) {
    done = mailbox->Take(tokens, finish);
    for (TokenEvent& event : tokens) {
      last = Clock::now();
      if (outcome.tokens.empty()) first = last;
      // Tokens that the engine ran ahead after a stop string are not part of the answer.
      if (stream->matched_stop()) break;
      if (std::find(ends.begin(), ends.end(), event.token) == ends.end()) {
        stream->Push(event.token, &deltas);
      }
      outcome.tokens.push_back(std::move(event));
      emit();
    }
    if (!asked_to_stop && !done && (stream->matched_stop() || interrupt.load())) {
      engine.Abort(id);
      asked_to_stop = true;
    }
  }
  stream->Finish(&deltas);
  emit();
  if (finish.reason == FinishReason::kError) return finish.error;
  outcome.reason = stream->matched_stop() ? FinishReason::kStop : finish.reason;
  outcome.stop_string = stream->matched_stop();
  outcome.prefill_seconds = Seconds(start, first);
  outcome.decode_seconds = Seconds(first, last);
  return outcome;
}

}  // namespace fathom::cli
