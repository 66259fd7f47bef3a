#include "server/generation.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/log_fields.h"
#include "tokenizer/utf8.h"

namespace fathom {
namespace {

const RequestError kShuttingDown{503, "the server is shutting down", {}, {}};

// A request with many prompts or samples leaves room in the queue for those of others.
constexpr int kMaxInEngine = 64;

double Milliseconds(RequestRecord::Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace

// Takes events on the engine's thread and hands them over in batches. The engine is its last owner
// once the generation has moved on.
//
// The metrics of a request are observed once two things are known: how it ended for its client,
// which the generation decides, and the times in the engine's FinishEvent, which may come later.
class Generation::Sink final : public RequestSink, public std::enable_shared_from_this<Sink> {
 public:
  Sink(std::shared_ptr<Generation> generation, int index)
      : generation_(std::move(generation)), index_(index) {}

  void OnPromptLogprobs(std::span<const TokenEvent> tokens) override {
    const std::lock_guard lock(mutex_);
    if (dropped_) return;
    batch_.prompt_tokens.insert(batch_.prompt_tokens.end(), tokens.begin(), tokens.end());
    Schedule();
  }

  void OnToken(const TokenEvent& event) override {
    const std::lock_guard lock(mutex_);
    if (dropped_) return;
    batch_.tokens.push_back({event, RequestRecord::Clock::now()});
    Schedule();
  }

  void OnFinish(const FinishEvent& event) override {
    spdlog::debug("{}: {} prompt tokens cached, miss: {}, {} preemption(s)",
                  generation_->job_.request.id, event.cached_tokens,
                  PrefixMissName(event.prefix_miss), event.timings.num_preemptions);
    const std::lock_guard lock(mutex_);
    if (!dropped_) {
      batch_.finish = event;
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
    if (dropped_) batch_ = {};
  }

  void Deliver() {
    Batch batch;
    {
      const std::lock_guard lock(mutex_);
      std::swap(batch, batch_);
      scheduled_ = false;
      if (batch.finish) timings_ = batch.finish->timings;
    }
    const bool finished = batch.finish.has_value();
    generation_->OnBatch(index_, this, std::move(batch));
    if (!finished) return;
    const std::lock_guard lock(mutex_);
    Observe();
  }

  // Without an outcome the client had left before anything ended.
  void Observe() {
    if (std::exchange(observed_, true)) return;
    RequestRecord record = outcome_.value_or(RequestRecord());
    record.timings = *timings_;
    generation_->context_.metrics->ObserveFinish(record);
  }

  const std::shared_ptr<Generation> generation_;
  const int index_;
  std::mutex mutex_;  // guards what follows
  Batch batch_;
  bool scheduled_ = false;
  bool dropped_ = false;
  std::optional<RequestRecord> outcome_;
  std::optional<RequestTimings> timings_;  // once the engine is done
  bool observed_ = false;
};

Generation::Generation(GenerationContext context, std::shared_ptr<http::ResponseWriter> writer,
                       GenerationJob job)
    : context_(std::move(context)), writer_(std::move(writer)), job_(std::move(job)) {
  for (const GenerationJob::Prompt& prompt : job_.prompts) {
    usage_.prompt_tokens += static_cast<int64_t>(prompt.ids.size());
    for (int sample = 0; sample < job_.num_samples; ++sample) {
      runs_.emplace_back(static_cast<int>(runs_.size()),
                         ChoiceRun(context_.front_end, &job_.choice, prompt.wanted));
    }
  }
}

void Generation::Start() {
  auto self = shared_from_this();
  writer_->SetOnClosed([self] { self->OnClientLeft(); });
  if (job_.stream) writer_->SetOnSilence(job_.keep_alive_interval, [self] { self->OnSilence(); });
  writer_->Post([self] { self->Begin(); });
}

void Generation::AbortForShutdown() {
  writer_->Post([self = shared_from_this()] {
    if (self->ended_) return;
    for (Run& run : self->runs_) {
      if (run.sink == nullptr) continue;
      self->context_.engine->Abort(run.request_id);
      self->CutOff(&run);
    }
    self->Fail(kShuttingDown);
  });
}

void Generation::Begin() {
  if (ended_) return;
  LogBegin();
  StartRuns();
  Flush();
}

// Starts what may run now: first samples, and further ones of prompts that are in the cache.
void Generation::StartRuns() {
  for (Run& run : runs_) {
    if (ended_ || num_in_engine_ >= kMaxInEngine) return;
    if (run.started) continue;
    const Run& first = runs_[static_cast<size_t>(run.index - run.index % job_.num_samples)];
    const bool may_start =
        IsFirstSample(run) || first.ended || first.record.num_generated_tokens > 0;
    if (may_start && !StartRun(&run)) return;
  }
}

// False when the engine takes no more for now.
bool Generation::StartRun(Run* run) {
  const GenerationJob::Prompt& prompt = PromptOf(*run);
  if (const Status status = run->choice.Open(); !status.ok()) {
    Fail(FromStatus(status));
    return false;
  }
  run->record.num_prompt_tokens = static_cast<int64_t>(prompt.ids.size());
  run->record.max_tokens = prompt.max_tokens;
  run->record.num_samples = IsFirstSample(*run) ? job_.num_samples : 0;
  run->record.arrival = job_.arrival;
  const bool wants_prompt = job_.request.num_prompt_logprobs >= 0;
  if (prompt.max_tokens == 0 && !wants_prompt) {
    run->started = true;
    run->choice.Echo(prompt.echo);
    run->choice.Finish(FinishReason::kLength, std::nullopt);
    EndRun(run);
    return true;
  }
  GenerateRequest request = job_.request;
  request.prompt = prompt.ids;
  request.max_tokens = std::max<int64_t>(prompt.max_tokens, 1);
  if (request.sampling.seed) {
    // Wraps as the client's number space does.
    request.sampling.seed =
        static_cast<int64_t>(static_cast<uint64_t>(*request.sampling.seed) +
                             static_cast<uint64_t>(run->index % job_.num_samples));
  }
  if (job_.new_constraint) request.constraint = job_.new_constraint();
  auto sink = std::make_shared<Sink>(shared_from_this(), run->index);
  const Result<RequestId> id = context_.engine->Submit(std::move(request), sink);
  if (!id.ok()) {
    // Full: the others of this request go on, and this one is tried again when one of them ends.
    if (id.status().code() != StatusCode::kUnavailable || num_in_engine_ == 0) {
      Fail(FromStatus(id.status()));
    }
    return false;
  }
  run->started = true;
  run->sink = std::move(sink);
  run->request_id = *id;
  ++num_in_engine_;
  run->choice.Echo(prompt.echo);
  if (wants_prompt) run->choice.PushPromptToken({prompt.ids.front(), 0.0f, {}, 0}, true);
  return true;
}

void Generation::OnBatch(int index, const Sink* sink, Batch batch) {
  Run& run = runs_[static_cast<size_t>(index)];
  // The engine runs ahead: what comes after the end of an answer belongs to no one.
  auto is_over = [&] { return ended_ || run.sink.get() != sink; };
  if (is_over()) return;
  for (const TokenEvent& token : batch.prompt_tokens) run.choice.PushPromptToken(token, false);
  const bool was_first = run.record.num_generated_tokens == 0;
  for (const TimedToken& token : batch.tokens) {
    OnToken(&run, token);
    if (is_over()) break;
  }
  if (batch.finish && !is_over()) OnFinish(&run, *batch.finish);
  if (job_.num_samples > 1 && was_first && !ended_) StartRuns();
  Flush();
}

void Generation::OnToken(Run* run, const TimedToken& token) {
  NoteCachedTokens(run, token.event.cached_tokens);
  if (PromptOf(*run).max_tokens == 0) return;  // only made for the prompt's log-probabilities
  CountToken(run, token.time);
  ++usage_.completion_tokens;
  const int64_t reasoning_before = run->choice.num_reasoning_tokens();
  run->choice.Push(token.event);
  usage_.reasoning_tokens += run->choice.num_reasoning_tokens() - reasoning_before;
  if (run->choice.is_complete()) {
    Settle(run, FinishReason::kStop);
    context_.engine->EndAt(run->request_id, run->choice.num_tokens());
    run->choice.Finish(FinishReason::kStop, std::nullopt);
    return EndRun(run);
  }
  ++run->tokens_to_send;
  Emit(run);
}

void Generation::OnFinish(Run* run, const FinishEvent& event) {
  NoteCachedTokens(run, event.cached_tokens);
  if (event.reason == FinishReason::kAborted) {
    // Not by us: an abort of ours leaves no sink. The engine goes down.
    CutOff(run);
    return Fail(kShuttingDown);
  }
  Settle(run, event.reason);
  if (event.reason == FinishReason::kError) return Fail(FromStatus(event.error));
  const bool only_prompt = PromptOf(*run).max_tokens == 0;
  run->choice.Finish(only_prompt ? FinishReason::kLength : event.reason, event.stop_token);
  EndRun(run);
}

// Ends a run before its time; what a stream has of it gets an end.
void Generation::CutOff(Run* run) {
  Settle(run, FinishReason::kAborted);
  run->choice.Finish(FinishReason::kAborted, std::nullopt);
  if (!run->begun) return;
  EmitChunks(run);
  job_.format->EndChoice(run->index, run->choice.end(), ExtrasOf(*run), &out_);
}

void Generation::OnClientLeft() {
  for (Run& run : runs_) {
    if (run.sink == nullptr) continue;
    context_.engine->Abort(run.request_id);
    Settle(&run, FinishReason::kAborted);
  }
  if (!ended_) NoteEnd("client left");
  ended_ = true;
}

void Generation::OnSilence() {
  if (ended_) return;
  out_ += job_.format->KeepAlive();
  Flush();
}

// Sends what waits, or keeps it where the answer is sent as a whole or the next write is not due.
void Generation::Emit(Run* run) {
  if (!job_.stream) return run->choice.KeepPending();
  if (!answer_begun_) {
    answer_begun_ = true;
    job_.format->Begin(usage_, &out_);
  }
  const bool is_due = !run->begun || run->ended || run->tokens_to_send >= job_.stream_interval;
  if (is_due) EmitChunks(run);
}

void Generation::EmitChunks(Run* run) {
  if (!std::exchange(run->begun, true)) {
    ChunkExtras extras;
    if (job_.continuous_usage) extras.usage = &usage_;
    job_.format->BeginChoice(run->index, run->choice.prompt(), extras, &out_);
  }
  for (const OutputDelta& delta : run->choice.pending()) {
    job_.format->Delta(run->index, delta, ExtrasOf(*run), &out_);
    run->choice.ClearExtras();
  }
  run->choice.ClearPending();
  run->tokens_to_send = 0;
}

void Generation::EndRun(Run* run) {
  run->ended = true;
  if (const OutputParser* parser = run->choice.parser()) {
    context_.metrics->ObserveRepairs(parser->repairs());
  }
  Emit(run);
  if (job_.stream) {
    job_.format->EndChoice(run->index, run->choice.end(), ExtrasOf(*run), &out_);
    run->choice.ClearExtras();
  }
  if (++num_ended_ == runs_.size()) return EndAnswer();
  // By the strand's queue, not by recursion: runs that need no engine would nest.
  writer_->Post([self = shared_from_this()] {
    if (!self->ended_) self->StartRuns();
    self->Flush();
  });
}

void Generation::EndAnswer() {
  ended_ = true;
  NoteEnd(runs_.front().choice.end().finish_reason);
  if (job_.stream) {
    job_.format->End(usage_, &out_);
    Flush();
    return writer_->End();
  }
  std::vector<Choice> choices;
  for (Run& run : runs_) choices.push_back(run.choice.Take());
  writer_->Send({200, "application/json", job_.headers, job_.format->Whole(choices, usage_)});
}

void Generation::Fail(const RequestError& error) {
  if (std::exchange(ended_, true)) return;
  for (Run& run : runs_) {
    if (run.sink == nullptr) continue;
    context_.engine->Abort(run.request_id);
    Settle(&run, FinishReason::kError);
  }
  NoteEnd("error");
  if (!stream_begun_ && !answer_begun_) {
    http::Response response = job_.format->Failure(error);
    response.headers.insert(response.headers.end(), job_.headers.begin(), job_.headers.end());
    return writer_->Send(std::move(response));
  }
  job_.format->Error(error, &out_);
  Flush();
  writer_->End();
}

void Generation::Flush() {
  if (out_.empty()) return;
  if (!std::exchange(stream_begun_, true)) {
    http::HeaderList headers = job_.headers;
    headers.emplace_back("Cache-Control", "no-cache");
    headers.emplace_back("X-Accel-Buffering", "no");
    writer_->StartStream({200, "text/event-stream; charset=utf-8", std::move(headers), {}});
  }
  writer_->Write(out_);
  out_.clear();
}

// Every event of a request says it; usage has it once per prompt, as it is counted.
void Generation::NoteCachedTokens(Run* run, int64_t cached_tokens) {
  int64_t& noted = run->record.num_cached_tokens;
  if (cached_tokens <= noted) return;
  if (IsFirstSample(*run)) usage_.cached_tokens += cached_tokens - noted;
  noted = cached_tokens;
}

void Generation::CountToken(Run* run, RequestRecord::Clock::time_point time) {
  RequestRecord& record = run->record;
  if (++record.num_generated_tokens == 1) {
    if (first_token_ == RequestRecord::Clock::time_point()) first_token_ = time;
    context_.metrics->ObserveFirstToken(time - record.arrival);
  } else {
    context_.metrics->ObserveNextToken(time - record.last_token);
  }
  record.last_token = time;
}

// The run has ended for its client: what its sink still brings belongs to no one.
void Generation::Settle(Run* run, FinishReason reason) {
  run->record.reason = reason;
  run->record.end = RequestRecord::Clock::now();
  run->sink->SetOutcome(run->record);
  run->sink.reset();
  --num_in_engine_;
}

// The answer has ended for its client.
void Generation::NoteEnd(std::string_view outcome) {
  job_.in_flight.reset();
  if (!context_.log_requests) return;
  const auto now = RequestRecord::Clock::now();
  LogFields fields;
  fields.Add("id", job_.request.id)
      .Add("outcome", outcome)
      .Add("prompt_tokens", usage_.prompt_tokens)
      .Add("cached_tokens", usage_.cached_tokens)
      .Add("generated_tokens", usage_.completion_tokens);
  if (first_token_ != RequestRecord::Clock::time_point()) {
    fields.Add("first_token_ms", Milliseconds(first_token_ - job_.arrival));
  }
  fields.Add("total_ms", Milliseconds(now - job_.arrival));
  if (!job_.traceparent.empty()) fields.Add("traceparent", job_.traceparent);
  spdlog::info("request ended{}", fields.Text());
}

// Prompts are only logged where the operator asked for them.
void Generation::LogBegin() const {
  if (!context_.log_requests) return;
  const GenerationJob::Prompt& first = job_.prompts.front();
  LogFields fields;
  fields.Add("id", job_.request.id)
      .Add("prompt_tokens", usage_.prompt_tokens)
      .Add("choices", static_cast<int64_t>(runs_.size()))
      .Add("max_tokens", first.max_tokens)
      .Add("temperature", job_.request.sampling.temperature)
      .Add("stream", job_.stream ? "true" : "false");
  if (!job_.traceparent.empty()) fields.Add("traceparent", job_.traceparent);
  if (context_.max_log_len > 0) {
    const std::string prompt = context_.front_end->Decode(first.ids, /*skip_special_tokens=*/false);
    std::string cut;
    (void)AppendValidUtf8(
        std::string_view(prompt).substr(0, static_cast<size_t>(context_.max_log_len)), cut);
    fields.Add("prompt", cut);
  }
  spdlog::info("request received{}", fields.Text());
}

const GenerationJob::Prompt& Generation::PromptOf(const Run& run) const {
  return job_.prompts[static_cast<size_t>(run.index / job_.num_samples)];
}

bool Generation::IsFirstSample(const Run& run) const { return run.index % job_.num_samples == 0; }

ChunkExtras Generation::ExtrasOf(const Run& run) const {
  ChunkExtras extras;
  if (job_.choice.logprobs || job_.choice.echo_logprobs) extras.logprobs = &run.choice.logprobs();
  if (job_.choice.token_ids) extras.token_ids = &run.choice.token_ids();
  if (job_.continuous_usage) extras.usage = &usage_;
  return extras;
}

}  // namespace fathom
