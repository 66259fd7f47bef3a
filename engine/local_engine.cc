#include "engine/local_engine.h"

#include <pthread.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>

#include "base/fault_guard.h"
#include "engine/sampler.h"

namespace fathom {

Result<std::unique_ptr<LocalEngine>> LocalEngine::Create(Checkpoint checkpoint,
                                                         std::vector<TokenId> eos_token_ids,
                                                         const LocalEngineOptions& options) {
  InstallFaultGuard();
  std::unique_ptr<LocalEngine> engine(new LocalEngine(std::move(checkpoint), options));
  engine->info_.eos_token_ids = std::move(eos_token_ids);
  FATHOM_RETURN_IF_ERROR(engine->Load());
  engine->thread_ = std::thread([raw = engine.get()] { raw->Loop(); });
  pthread_setname_np(engine->thread_.native_handle(), "fathom-engine");
  return engine;
}

LocalEngine::LocalEngine(Checkpoint checkpoint, const LocalEngineOptions& options)
    : options_(options), checkpoint_(std::move(checkpoint)) {}

Status LocalEngine::Load() {
  const ModelConfig& config = checkpoint_.config();
  const int64_t model_len =
      options_.max_model_len > 0 ? options_.max_model_len : config.max_position_embeddings;
  if (model_len > config.max_position_embeddings) {
    return InvalidArgument("max-model-len " + std::to_string(model_len) +
                           " is beyond the model's " +
                           std::to_string(config.max_position_embeddings) + " positions");
  }
  if (options_.max_batched_tokens < 1) {
    return InvalidArgument("max-num-batched-tokens must be at least 1");
  }
  info_.vocab_size = config.vocab_size;
  info_.max_model_len = model_len;
  const int max_rows = static_cast<int>(std::min<int64_t>(options_.max_batched_tokens, model_len));
  FATHOM_ASSIGN_OR_RETURN(backend_,
                          MakeBackend(options_.backend, Numerics::kOfficial, options_.num_threads));
  FATHOM_ASSIGN_OR_RETURN(model_, Model::Create(checkpoint_, *backend_, max_rows, model_len));
  FATHOM_ASSIGN_OR_RETURN(runner_, SequenceRunner::Create(*model_, Numerics::kOfficial, model_len));
  logits_.resize(static_cast<size_t>(config.vocab_size));
  // Weights that are copied or repacked were read above.
  return checkpoint_.CheckFiles();
}

LocalEngine::~LocalEngine() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    abort_running_.store(true, std::memory_order_relaxed);
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Status LocalEngine::Validate(const GenerateRequest& r) const {
  const auto prompt_tokens = static_cast<int64_t>(r.prompt.size());
  if (r.prompt.empty()) return InvalidArgument("prompt: empty");
  const auto check_id = [&](TokenId token, const char* field) -> Status {
    if (token >= 0 && token < info_.vocab_size) return OkStatus();
    return InvalidArgument(std::string(field) + ": token id " + std::to_string(token) +
                           " is not in the vocabulary of " + std::to_string(info_.vocab_size));
  };
  for (TokenId token : r.prompt) FATHOM_RETURN_IF_ERROR(check_id(token, "prompt"));
  for (TokenId token : r.stop_token_ids) FATHOM_RETURN_IF_ERROR(check_id(token, "stop_token_ids"));
  if (r.max_tokens < 1) {
    return InvalidArgument("max_tokens: " + std::to_string(r.max_tokens) + " is below 1");
  }
  if (r.min_tokens < 0 || r.min_tokens > r.max_tokens) {
    return InvalidArgument("min_tokens: " + std::to_string(r.min_tokens) +
                           " is not in [0, max_tokens]");
  }
  if (prompt_tokens + r.max_tokens > info_.max_model_len) {
    return InvalidArgument("max_tokens: prompt of " + std::to_string(prompt_tokens) +
                           " tokens and " + std::to_string(r.max_tokens) +
                           " new ones exceed the maximum context length of " +
                           std::to_string(info_.max_model_len));
  }
  if (r.priority != 0) {
    return InvalidArgument("priority: " + std::to_string(r.priority) +
                           ", but requests are served in the order of their arrival");
  }
  return ValidateSampling(r.sampling, info_.vocab_size);
}

Result<RequestId> LocalEngine::Submit(GenerateRequest request, std::shared_ptr<RequestSink> sink) {
  FATHOM_RETURN_IF_ERROR(Validate(request));
  FATHOM_RETURN_IF_ERROR(checkpoint_.CheckFiles());
  std::lock_guard lock(mutex_);
  if (stopping_) return Unavailable("the engine is shutting down");
  if (static_cast<int>(waiting_.size()) >= options_.max_queued_requests) {
    ++stats_.rejections[static_cast<size_t>(AdmissionRejection::kQueueFull)];
    return Unavailable("the queue is full: " + std::to_string(waiting_.size()) + " requests wait");
  }
  const RequestId id = next_id_++;
  waiting_.push_back({id, std::move(request), std::move(sink), {}});
  waiting_.back().timings.arrival = RequestTimings::Clock::now();
  wake_.notify_one();
  return id;
}

void LocalEngine::Abort(RequestId id) {
  std::shared_ptr<RequestSink> sink;
  RequestTimings timings;
  {
    std::lock_guard lock(mutex_);
    if (id == running_id_) {
      abort_running_.store(true, std::memory_order_relaxed);
      return;
    }
    const auto job =
        std::find_if(waiting_.begin(), waiting_.end(), [id](const Job& j) { return j.id == id; });
    if (job == waiting_.end()) return;
    sink = std::move(job->sink);
    timings = job->timings;
    waiting_.erase(job);
  }
  // Outside the lock: a sink may call the engine.
  FinishEvent event;
  event.timings = timings;
  event.reason = FinishReason::kAborted;
  sink->OnFinish(event);
}

int LocalEngine::num_running() const {
  std::lock_guard lock(mutex_);
  return running_id_ != 0 ? 1 : 0;
}

int LocalEngine::num_waiting() const {
  std::lock_guard lock(mutex_);
  return static_cast<int>(waiting_.size());
}

EngineStats LocalEngine::stats() const {
  std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  stats.num_running = running_id_ != 0 ? 1 : 0;
  stats.num_waiting = static_cast<int>(waiting_.size());
  return stats;
}

void LocalEngine::Loop() {
  while (true) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      job = std::move(waiting_.front());
      waiting_.pop_front();
      running_id_ = job.id;
      // While stopping, what still waits is finished as aborted, each with its OnFinish.
      if (!stopping_) abort_running_.store(false, std::memory_order_relaxed);
    }
    job.timings.first_scheduled = RequestTimings::Clock::now();
    FinishEvent finish = Run(job);
    finish.timings = job.timings;
    finish.prefix_miss = PrefixMiss::kDisabled;  // there is no prefix cache
    runner_->Clear();
    {
      std::lock_guard lock(mutex_);
      running_id_ = 0;
    }
    job.sink->OnFinish(finish);
  }
}

// Computes the prompt in steps; kCancelled when the request was aborted in between.
Status LocalEngine::Prefill(std::span<const TokenId> prompt, std::span<float> logits) {
  const auto chunk = static_cast<size_t>(model_->max_rows());
  for (size_t begin = 0; begin < prompt.size(); begin += chunk) {
    if (abort_running_.load(std::memory_order_relaxed)) return Cancelled("aborted");
    const size_t n = std::min(chunk, prompt.size() - begin);
    const bool last = begin + n == prompt.size();
    FATHOM_RETURN_IF_ERROR(
        Step(StepPhase::kPrefill, prompt.subspan(begin, n),
             last ? SequenceRunner::Logits::kLast : SequenceRunner::Logits::kNone,
             last ? logits : std::span<float>()));
  }
  return OkStatus();
}

Status LocalEngine::Step(StepPhase phase, std::span<const TokenId> tokens,
                         SequenceRunner::Logits wanted, std::span<float> logits) {
  const auto begin = RequestTimings::Clock::now();
  const Status status = runner_->Step(tokens, wanted, logits);
  const std::chrono::duration<double> duration = RequestTimings::Clock::now() - begin;
  // First: zeros in place of weights may have caused the other error.
  FATHOM_RETURN_IF_ERROR(checkpoint_.CheckFiles());
  FATHOM_RETURN_IF_ERROR(status);
  std::lock_guard lock(mutex_);
  stats_.step_tokens.Observe(static_cast<double>(tokens.size()));
  stats_.step_seconds[static_cast<size_t>(phase)].Observe(duration.count());
  if (phase == StepPhase::kPrefill) {
    stats_.prompt_tokens_computed += static_cast<int64_t>(tokens.size());
  }
  return OkStatus();
}

FinishEvent LocalEngine::Run(Job& job) {
  const GenerateRequest& request = job.request;
  FinishEvent finish;
  const auto fail = [&finish](Status status) {
    finish.reason =
        status.code() == StatusCode::kCancelled ? FinishReason::kAborted : FinishReason::kError;
    finish.error = std::move(status);
    return finish;
  };

  std::vector<TokenId> ends = request.stop_token_ids;
  if (!request.ignore_eos) {
    ends.insert(ends.end(), info_.eos_token_ids.begin(), info_.eos_token_ids.end());
  }
  // A request that says ignore_eos may still produce the end token; it is then text like any other.
  std::random_device entropy;
  const uint64_t seed = request.sampling.seed ? 0 : (uint64_t{entropy()} << 32) | entropy();
  Sampler sampler(request.sampling, seed, info_.vocab_size, request.prompt);

  if (Status status = Prefill(request.prompt, logits_); !status.ok())
    return fail(std::move(status));
  for (int64_t generated = 0;; ++generated) {
    const bool may_end = generated >= request.min_tokens;
    const TokenEvent event =
        sampler.Sample(logits_, runner_->length(), may_end ? std::span<const TokenId>() : ends,
                       request.num_logprobs);
    job.timings.last_token = RequestTimings::Clock::now();
    if (generated == 0) job.timings.first_token = job.timings.last_token;
    {
      std::lock_guard lock(mutex_);
      ++stats_.generation_tokens;
    }
    job.sink->OnToken(event);
    if (may_end && std::find(ends.begin(), ends.end(), event.token) != ends.end()) {
      finish.reason = FinishReason::kStop;
      finish.stop_token = event.token;
      return finish;
    }
    if (generated + 1 == request.max_tokens) {
      finish.reason = FinishReason::kLength;
      return finish;
    }
    if (abort_running_.load(std::memory_order_relaxed)) return fail(Cancelled("aborted"));
    const TokenId next = event.token;
    if (Status status =
            Step(StepPhase::kDecode, {&next, 1}, SequenceRunner::Logits::kLast, logits_);
        !status.ok()) {
      return fail(std::move(status));
    }
  }
}

}  // namespace fathom
