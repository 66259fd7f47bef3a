#include "server/generation.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace fathom {
namespace {

const RequestError kShuttingDown{503, "the server is shutting down", {}, {}};

}  // namespace

// Takes events on the engine's thread and hands them over in batches. The engine is its last owner
// once the generation has moved on.
//
// The metrics of a request are observed once two things are known: how it ended for its client,
// which the generation decides, and the times in the engine's FinishEvent, which may come later.
class Generation::Sink final : public RequestSink, public std::enable_shared_from_this<Sink> {
 public:
  explicit Sink(std::shared_ptr<Generation> generation) : generation_(std::move(generation)) {}

  void OnToken(const TokenEvent& event) override {
    const std::lock_guard lock(mutex_);
    if (dropped_) return;
    tokens_.push_back({event, RequestRecord::Clock::now()});
    Schedule();
  }

  void OnFinish(const FinishEvent& event) override {
    spdlog::debug("{}: {} prompt tokens cached, miss: {}, {} preemption(s)",
                  generation_->job_.request.id, event.cached_tokens,
                  PrefixMissName(event.prefix_miss), event.timings.num_preemptions);
    const std::lock_guard lock(mutex_);
    if (!dropped_) {
      finish_ = event;
      Schedule();
    }
    if (dropped_) {
      timings_ = event.timings;
      Observe();
    }
  }

  // Strand.
  void SetOutcome(const RequestRecord& outcome) {
    const std::lock_guard lock(mutex_);
    outcome_ = outcome;
    if (timings_) Observe();
  }

 private:
  void Schedule() {
    if (std::exchange(scheduled_, true)) return;
    // A closed connection takes no more; its generation has aborted this request or is about to.
    dropped_ = !generation_->writer_->Post([self = shared_from_this()] { self->Deliver(); });
    if (dropped_) tokens_.clear();
  }

  void Deliver() {
    std::vector<TimedToken> tokens;
    std::optional<FinishEvent> finish;
    {
      const std::lock_guard lock(mutex_);
      tokens.swap(tokens_);
      finish.swap(finish_);
      scheduled_ = false;
      if (finish) timings_ = finish->timings;
    }
    generation_->OnEvents(this, tokens, finish ? &*finish : nullptr);
    if (!finish) return;
    const std::lock_guard lock(mutex_);
    Observe();
  }

  // Without an outcome the client had left before anything ended.
  void Observe() {
    if (std::exchange(observed_, true)) return;
    RequestRecord record = outcome_.value_or(RequestRecord());
    record.timings = *timings_;
    generation_->metrics_->ObserveFinish(record);
  }

  const std::shared_ptr<Generation> generation_;
  std::mutex mutex_;  // guards what follows
  std::vector<TimedToken> tokens_;
  std::optional<FinishEvent> finish_;
  bool scheduled_ = false;
  bool dropped_ = false;
  std::optional<RequestRecord> outcome_;
  std::optional<RequestTimings> timings_;  // once the engine is done
  bool observed_ = false;
};

Generation::Generation(Engine* engine, const TextFrontEnd* front_end,
                       std::shared_ptr<ServerMetrics> metrics,
                       std::shared_ptr<http::ResponseWriter> writer, GenerationJob job)
    : engine_(engine),
      front_end_(front_end),
      metrics_(std::move(metrics)),
      writer_(std::move(writer)),
      job_(std::move(job)) {
  for (const GenerationJob::Prompt& prompt : job_.prompts) {
    usage_.prompt_tokens += static_cast<int64_t>(prompt.ids.size());
  }
}

void Generation::Start() {
  auto self = shared_from_this();
  writer_->SetOnClosed([self] { self->OnClientLeft(); });
  if (job_.stream) writer_->SetOnSilence(job_.keep_alive_interval, [self] { self->OnSilence(); });
  writer_->Post([self] { self->RunPrompt(); });
}

void Generation::AbortForShutdown() {
  writer_->Post([self = shared_from_this()] {
    if (self->ended_) return;
    if (self->sink_ == nullptr) return self->Fail(kShuttingDown);
    self->engine_->Abort(self->request_id_);
    self->OnFinish({FinishReason::kAborted, std::nullopt, {}, 0});
  });
}

void Generation::RunPrompt() {
  if (ended_) return;
  const GenerationJob::Prompt& prompt = job_.prompts[prompt_index_];
  choices_.emplace_back();
  role_sent_ = false;
  record_ = {};
  record_.num_prompt_tokens = static_cast<int64_t>(prompt.ids.size());
  record_.max_tokens = prompt.max_tokens;
  record_.arrival = job_.arrival;
  if (!prompt.echo.empty()) deltas_.push_back({OutputDelta::Kind::kContent, prompt.echo});
  if (prompt.max_tokens == 0) {
    Emit();
    return EndChoice({"length", {}});
  }
  GenerateRequest request = job_.request;
  request.prompt = prompt.ids;
  request.max_tokens = prompt.max_tokens;
  Result<std::unique_ptr<OutputStream>> output = front_end_->NewOutput(job_.output);
  if (!output.ok()) return Fail(FromStatus(output.status()));
  output_ = std::move(output).value();
  tokens_before_ = usage_.completion_tokens;
  sink_ = std::make_shared<Sink>(shared_from_this());
  const Result<RequestId> id = engine_->Submit(std::move(request), sink_);
  if (!id.ok()) {
    sink_.reset();
    return Fail(FromStatus(id.status()));
  }
  request_id_ = *id;
}

void Generation::OnEvents(const Sink* sink, const std::vector<TimedToken>& tokens,
                          const FinishEvent* finish) {
  for (const TimedToken& token : tokens) {
    // The engine runs ahead: tokens behind a stop string belong to no one.
    if (ended_ || sink != sink_.get()) return;
    OnToken(token);
  }
  if (finish != nullptr && !ended_ && sink == sink_.get()) OnFinish(*finish);
}

void Generation::OnToken(const TimedToken& token) {
  const TokenEvent& event = token.event;
  NoteCachedTokens(event.cached_tokens);
  CountToken(token.time);
  ++usage_.completion_tokens;
  const bool in_reasoning = output_->in_reasoning();
  if (in_reasoning) ++usage_.reasoning_tokens;  // with the mark that ends it
  if (job_.request.num_logprobs >= 0 && (job_.include_reasoning || !in_reasoning)) {
    pending_logprobs_.push_back(EntryFor(event));
  }
  if (!IsEndToken(event.token) || job_.output.include_stop_in_output) {
    output_->Push(event.token, &deltas_);
  }
  Emit();
  if (ended_) return;  // more waits for the client than it may: the connection was closed
  if (const std::optional<std::string> stop = output_->matched_stop()) {
    Settle(FinishReason::kStop);
    engine_->EndAt(request_id_, usage_.completion_tokens - tokens_before_);
    EndChoice({"stop", *stop});
  }
}

void Generation::OnFinish(const FinishEvent& event) {
  NoteCachedTokens(event.cached_tokens);
  Settle(event.reason);
  if (event.reason == FinishReason::kError) return Fail(FromStatus(event.error));
  if (output_ != nullptr) output_->Finish(&deltas_);
  Emit();
  switch (event.reason) {
    case FinishReason::kLength:
      return EndChoice({"length", {}});
    case FinishReason::kAborted: {
      // Not by us: an abort of ours leaves no sink or has ended the answer. The server goes down.
      if (stream_begun_) {
        const ChoiceEnd end{"abort", {}};
        SendChunk(job_.format->EndChunk(static_cast<int>(prompt_index_), end, Logprobs(),
                                        RunningUsage()));
      }
      return Fail(kShuttingDown);
    }
    default:
      break;
  }
  ChoiceEnd end{"stop", {}};
  const auto& asked = job_.request.stop_token_ids;
  if (event.stop_token && std::find(asked.begin(), asked.end(), *event.stop_token) != asked.end()) {
    end.stop_reason = *event.stop_token;
  }
  EndChoice(std::move(end));
}

void Generation::OnClientLeft() {
  if (sink_ != nullptr) {
    Settle(FinishReason::kAborted);
    engine_->Abort(request_id_);
  }
  ended_ = true;
  sink_.reset();
  output_.reset();
}

void Generation::OnSilence() {
  if (ended_) return;
  BeginStream();
  writer_->Write(": keep-alive\n\n");
}

void Generation::Emit() {
  Choice& choice = choices_.back();
  const int index = static_cast<int>(prompt_index_);
  if (job_.stream && !role_sent_) {
    role_sent_ = true;
    BeginStream();
    SendChunk(job_.format->RoleChunk(index, RunningUsage()));
  }
  for (OutputDelta& delta : deltas_) {
    const bool is_reasoning = delta.kind == OutputDelta::Kind::kReasoning;
    if (is_reasoning && !job_.include_reasoning) continue;
    if (job_.stream) {
      SendChunk(job_.format->DeltaChunk(index, delta, Logprobs(), RunningUsage()));
      pending_logprobs_.clear();
    } else if (is_reasoning) {
      if (!choice.reasoning) choice.reasoning.emplace();
      *choice.reasoning += delta.text;
    } else {
      choice.content += delta.text;
    }
  }
  deltas_.clear();
}

void Generation::EndChoice(ChoiceEnd end) {
  sink_.reset();
  output_.reset();
  const int index = static_cast<int>(prompt_index_);
  Choice& choice = choices_.back();
  choice.end = std::move(end);
  if (job_.stream) {
    SendChunk(job_.format->EndChunk(index, choice.end, Logprobs(), RunningUsage()));
  } else {
    choice.logprobs = std::move(pending_logprobs_);
  }
  pending_logprobs_.clear();
  if (++prompt_index_ == job_.prompts.size()) return EndAnswer();
  // By the strand's queue, not by recursion: prompts that need no engine would nest.
  writer_->Post([self = shared_from_this()] { self->RunPrompt(); });
}

void Generation::EndAnswer() {
  ended_ = true;
  if (!job_.stream) {
    writer_->Send({200, "application/json", job_.headers,
                   job_.format->Whole(choices_, job_.request.num_logprobs >= 0, usage_)});
    return;
  }
  if (job_.include_usage) SendChunk(job_.format->UsageChunk(usage_));
  SendChunk("[DONE]");
  writer_->End();
}

void Generation::Fail(const RequestError& error) {
  ended_ = true;
  sink_.reset();
  if (!stream_begun_) return writer_->Send(ErrorResponse(error));
  SendChunk(ErrorBody(error));
  SendChunk("[DONE]");
  writer_->End();
}

void Generation::BeginStream() {
  if (std::exchange(stream_begun_, true)) return;
  http::HeaderList headers = job_.headers;
  headers.emplace_back("Cache-Control", "no-cache");
  headers.emplace_back("X-Accel-Buffering", "no");
  writer_->StartStream({200, "text/event-stream; charset=utf-8", std::move(headers), {}});
}

void Generation::SendChunk(const std::string& json) {
  if (!json.empty()) writer_->Write("data: " + json + "\n\n");
}

// Every event of a request says it, but for events of our own; usage has it once.
void Generation::NoteCachedTokens(int64_t cached_tokens) {
  if (cached_tokens <= record_.num_cached_tokens) return;
  usage_.cached_tokens += cached_tokens - record_.num_cached_tokens;
  record_.num_cached_tokens = cached_tokens;
}

void Generation::CountToken(RequestRecord::Clock::time_point time) {
  if (++record_.num_generated_tokens == 1) {
    metrics_->ObserveFirstToken(time - record_.arrival);
  } else {
    metrics_->ObserveNextToken(time - record_.last_token);
  }
  record_.last_token = time;
}

// The running request has ended for its client.
void Generation::Settle(FinishReason reason) {
  record_.reason = reason;
  record_.end = RequestRecord::Clock::now();
  sink_->SetOutcome(record_);
}

bool Generation::IsEndToken(TokenId token) const {
  auto contains = [token](const std::vector<TokenId>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  return contains(job_.request.stop_token_ids) ||
         (!job_.request.ignore_eos && contains(engine_->info().eos_token_ids));
}

LogprobEntry Generation::EntryFor(const TokenEvent& event) const {
  LogprobEntry entry;
  entry.chosen = {std::string(front_end_->TokenBytes(event.token)), event.logprob};
  for (const TokenLogprob& candidate : event.top) {
    entry.top.push_back({std::string(front_end_->TokenBytes(candidate.token)), candidate.logprob});
  }
  return entry;
}

const Usage* Generation::RunningUsage() const { return job_.continuous_usage ? &usage_ : nullptr; }

std::vector<LogprobEntry>* Generation::Logprobs() {
  return job_.request.num_logprobs >= 0 ? &pending_logprobs_ : nullptr;
}

}  // namespace fathom
