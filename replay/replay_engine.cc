#include "replay/replay_engine.h"

#include <pthread.h>

#include <algorithm>

#include "engine/request_check.h"
#include "replay/replay_stream.h"

namespace fathom {
namespace {

// A slow model still ends steps: who watches them (the server's watchdog) sees it alive. One that
// stalls does not.
constexpr std::chrono::milliseconds kTick{500};

}  // namespace

struct ReplayEngine::Request {
  enum class State { kWaiting, kDue, kReady, kInRound, kStalled, kEnded };

  Request(const ReplayScript& script, const ReplayAnswer& answer, GenerateRequest request,
          const EngineInfo& info)
      : priority(request.priority), stream(script, answer, std::move(request), info) {}

  RequestId id = 0;
  int priority = 0;
  ReplayStream stream;
  std::shared_ptr<RequestSink> sink;
  RequestTimings timings;
  State state = State::kWaiting;
  std::set<Due>::node_type node;  // of due_, kept while it is not in there
  Clock::time_point due;          // its place in due_
};

Result<std::unique_ptr<ReplayEngine>> ReplayEngine::Create(ReplayScript script,
                                                           ReplayEngineOptions options) {
  if (options.info.eos_token_ids.empty()) {
    return InvalidArgument("the model names no end token, with which answers would end");
  }
  if (script.has_conditions() && !options.decode) {
    return InvalidArgument("answers with conditions need the text of prompts");
  }
  return std::unique_ptr<ReplayEngine>(new ReplayEngine(std::move(script), std::move(options)));
}

ReplayEngine::ReplayEngine(ReplayScript script, ReplayEngineOptions options)
    : script_(std::move(script)),
      options_(std::move(options)),
      num_uses_(script_.answers.size(), 0) {
  for (size_t i = 0; i < script_.answers.size(); ++i) {
    (script_.answers[i].when ? conditional_ : in_order_).push_back(i);
  }
  thread_ = std::thread([this] { Loop(); });
  pthread_setname_np(thread_.native_handle(), "fathom-replay");
}

ReplayEngine::~ReplayEngine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    has_inbox_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

// Any thread --------------------------------------------------------------------------------------

// The answers with conditions that hold for a prompt, in the file's order.
std::vector<size_t> ReplayEngine::MatchingAnswers(std::span<const TokenId> prompt) const {
  std::vector<size_t> matching;
  if (conditional_.empty()) return matching;
  const std::string text = options_.decode(prompt);
  for (const size_t i : conditional_) {
    if (script_.answers[i].when->Holds(text)) matching.push_back(i);
  }
  return matching;
}

// Null when the script has no answer left. With the lock held.
const ReplayAnswer* ReplayEngine::TakeAnswer(std::span<const size_t> matching) {
  for (const size_t i : matching) {
    const ReplayAnswer& answer = script_.answers[i];
    if (answer.times != 0 && num_uses_[i] == answer.times) continue;
    ++num_uses_[i];
    return &answer;
  }
  if (in_order_.empty()) return nullptr;
  if (next_in_order_ == in_order_.size()) {
    if (script_.repeat == ReplayRepeat::kRefuse) return nullptr;
    if (script_.repeat == ReplayRepeat::kLast) return &script_.answers[in_order_.back()];
    next_in_order_ = 0;
  }
  const size_t i = in_order_[next_in_order_];
  const ReplayAnswer& answer = script_.answers[i];
  if (++num_uses_[i] == answer.times) {
    num_uses_[i] = 0;
    ++next_in_order_;
  }
  return &answer;
}

// With the lock held.
Status ReplayEngine::SubmitErrorOf(const ReplayAnswer& answer, const GenerateRequest& request) {
  switch (*answer.submit_error) {
    case ReplaySubmitError::kQueueFull:
      ++stats_.rejections[static_cast<size_t>(AdmissionRejection::kQueueFull)];
      return Unavailable("the queue is full (scripted)");
    case ReplaySubmitError::kShuttingDown:
      return Unavailable("the engine is shutting down (scripted)");
    case ReplaySubmitError::kTooLong:
      return InvalidArgument("max_tokens: prompt of " + std::to_string(request.prompt.size()) +
                             " tokens and " + std::to_string(request.max_tokens) +
                             " new ones exceed the maximum context length (scripted)");
    case ReplaySubmitError::kInternal:
      return answer.error;
  }
  return answer.error;
}

Result<RequestId> ReplayEngine::Submit(GenerateRequest request, std::shared_ptr<RequestSink> sink) {
  FATHOM_RETURN_IF_ERROR(ValidateRequest(request, options_.info));
  const std::vector<size_t> matching = MatchingAnswers(request.prompt);
  const auto arrival = RequestTimings::Clock::now();
  const std::lock_guard lock(mutex_);
  if (stopping_) return Unavailable("the engine is shutting down");
  // Who has a seat already does not wait.
  const int seats = options_.max_num_seqs - stats_.num_running;
  const int waiting = std::max(0, stats_.num_waiting + static_cast<int>(submitted_.size()) - seats);
  if (waiting >= options_.max_queued_requests) {
    ++stats_.rejections[static_cast<size_t>(AdmissionRejection::kQueueFull)];
    return Unavailable("the queue is full: " + std::to_string(waiting) + " requests wait");
  }
  const ReplayAnswer* const answer = TakeAnswer(matching);
  if (answer == nullptr) return Unavailable("the replay file has no answer left for this request");
  if (answer->submit_error) return SubmitErrorOf(*answer, request);
  auto job = std::make_unique<Request>(script_, *answer, std::move(request), options_.info);
  const RequestId id = next_id_++;
  job->id = id;
  job->sink = std::move(sink);
  job->timings.arrival = arrival;
  submitted_.push_back(std::move(job));
  has_inbox_ = true;
  wake_.notify_one();
  return id;
}

void ReplayEngine::Abort(RequestId id) {
  const std::lock_guard lock(mutex_);
  aborted_.push_back(id);
  has_inbox_ = true;
  wake_.notify_one();
}

void ReplayEngine::EndAt(RequestId id, int64_t /*num_tokens*/) { Abort(id); }

int ReplayEngine::num_running() const {
  const std::lock_guard lock(mutex_);
  return stats_.num_running;
}

int ReplayEngine::num_waiting() const {
  const std::lock_guard lock(mutex_);
  return stats_.num_waiting + static_cast<int>(submitted_.size());
}

EngineStats ReplayEngine::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  stats.num_waiting += static_cast<int>(submitted_.size());
  return stats;
}

// The engine's thread -----------------------------------------------------------------------------

void ReplayEngine::Loop() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      const auto has_news = [this] { return stopping_ || has_inbox_; };
      if (ready_.empty() && due_.empty()) {
        wake_.wait(lock, has_news);
      } else if (ready_.empty()) {
        const auto time = std::min(due_.begin()->time, Clock::now() + kTick);
        wake_.wait_until(lock, time, has_news);
      }
      if (stopping_) break;
    }
    if (has_inbox_) TakeInbox();
    RunRound(Clock::now());
  }
  TakeInbox();
  while (!requests_.empty()) AbortRequest(requests_.begin()->first);
}

// Takes over what was submitted and aborted.
void ReplayEngine::TakeInbox() {
  std::vector<std::unique_ptr<Request>> submitted;
  std::vector<RequestId> aborted;
  {
    const std::lock_guard lock(mutex_);
    submitted.swap(submitted_);
    aborted.swap(aborted_);
    has_inbox_ = false;
    stats_.num_waiting += static_cast<int>(submitted.size());
  }
  for (std::unique_ptr<Request>& request : submitted) {
    waiting_.emplace(request->priority, request->id);
    requests_.emplace(request->id, std::move(request));
  }
  // An id may be aborted before its request came here, but never before it was submitted.
  for (const RequestId id : aborted) AbortRequest(id);
  StartWaiting();
}

void ReplayEngine::StartWaiting() {
  const auto begin = Clock::now();
  while (!waiting_.empty() && num_running_ < options_.max_num_seqs) {
    Request& request = *requests_.at(waiting_.begin()->second);
    waiting_.erase(waiting_.begin());
    ++num_running_;
    request.timings.first_scheduled = begin;
    {
      const std::lock_guard lock(mutex_);
      stats_.prompt_tokens_cached += request.stream.cached_tokens();
      stats_.prompt_tokens_computed +=
          request.stream.num_prompt_tokens() - request.stream.cached_tokens();
    }
    Schedule(request, begin + request.stream.answer().first_token_delay);
  }
  Count();
}

// Brings the public numbers up to date.
void ReplayEngine::Count() {
  const std::lock_guard lock(mutex_);
  stats_.num_running = num_running_;
  stats_.num_waiting = static_cast<int>(waiting_.size());
  stats_.generation_tokens += std::exchange(new_tokens_, 0);
}

void ReplayEngine::Schedule(Request& request, Clock::time_point time) {
  request.due = time;
  if (time <= Clock::now()) {
    request.state = Request::State::kReady;
    ready_.push_back(&request);
    return;
  }
  request.state = Request::State::kDue;
  if (request.node.empty()) {
    due_.insert({time, request.id, &request});
    return;
  }
  request.node.value() = {time, request.id, &request};
  due_.insert(std::move(request.node));
}

// Every request whose time has come takes a step. This is what num_steps counts.
void ReplayEngine::RunRound(Clock::time_point now) {
  round_.swap(ready_);
  while (!due_.empty() && due_.begin()->time <= now) {
    Request* const request = due_.begin()->request;
    request->node = due_.extract(due_.begin());
    round_.push_back(request);
  }
  for (Request* request : round_) request->state = Request::State::kInRound;
  const bool worked = !round_.empty() || !due_.empty();
  round_tokens_ = 0;
  all_first_ = none_first_ = true;
  for (Request* request : round_) {
    if (request->state == Request::State::kInRound) RunRequest(*request, now);
    // An abort does not wait for the other streams.
    if (has_inbox_.load(std::memory_order_relaxed)) TakeInbox();
  }
  round_.clear();
  ended_.clear();
  if (!worked) return;
  const std::chrono::duration<double> duration = Clock::now() - now;
  const std::lock_guard lock(mutex_);
  ++stats_.num_steps;
  stats_.generation_tokens += std::exchange(new_tokens_, 0);
  if (round_tokens_ == 0) return;
  stats_.step_tokens.Observe(static_cast<double>(round_tokens_));
  const StepPhase phase = none_first_  ? StepPhase::kDecode
                          : all_first_ ? StepPhase::kPrefill
                                       : StepPhase::kMixed;
  stats_.step_seconds[static_cast<size_t>(phase)].Observe(duration.count());
}

void ReplayEngine::RunRequest(Request& request, Clock::time_point now) {
  ReplayStream& stream = request.stream;
  const ReplayAnswer& answer = stream.answer();
  if (stream.is_stalled()) stream.Resume();
  const auto time = RequestTimings::Clock::now();
  if (const auto events = stream.TakePromptLogprobs(); !events.empty()) {
    request.sink->OnPromptLogprobs(events);
  }
  for (int i = 0; i < answer.tokens_per_step && !stream.finish(); ++i) {
    const std::optional<TokenEvent> event = stream.Next(scratch_);
    if (!event) break;
    request.timings.last_token = time;
    const bool is_first = stream.num_generated() == 1;
    if (is_first) request.timings.first_token = time;
    (is_first ? none_first_ : all_first_) = false;
    ++new_tokens_;
    ++round_tokens_;
    request.sink->OnToken(*event);
  }
  if (stream.finish()) {
    End(request, *stream.finish());
    StartWaiting();
  } else if (!stream.is_stalled()) {
    // From its own time, not from now: what a wake-up comes late is not added up.
    Schedule(request, std::max(request.due + answer.token_delay, now));
  } else if (answer.stall) {
    Schedule(request, now + *answer.stall);
  } else {
    request.state = Request::State::kStalled;
  }
}

void ReplayEngine::AbortRequest(RequestId id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  FinishEvent event;
  event.reason = FinishReason::kAborted;
  event.error = Cancelled("aborted");
  event.cached_tokens = found->second->stream.cached_tokens();
  End(*found->second, std::move(event));
}

// Takes the request out of wherever it is and tells its sink.
void ReplayEngine::End(Request& request, FinishEvent event) {
  using State = Request::State;
  if (request.state == State::kWaiting) {
    waiting_.erase({request.priority, request.id});
    event.cached_tokens = 0;
  } else {
    --num_running_;
  }
  if (request.state == State::kDue) due_.erase({request.due, request.id, nullptr});
  if (request.state == State::kReady) std::erase(ready_, &request);
  request.state = State::kEnded;
  event.timings = request.timings;
  Count();  // who knows that the request ended sees that in the numbers as well
  request.sink->OnFinish(event);
  auto node = requests_.extract(request.id);
  ended_.push_back(std::move(node.mapped()));
}

}  // namespace fathom
