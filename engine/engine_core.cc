#include "engine/engine_core.h"

#include <algorithm>
#include <new>
#include <random>
#include <string>
#include <utility>

#include "engine/model_fingerprint.h"
#include "engine/request_check.h"

namespace fathom {

using Clock = RequestTimings::Clock;

struct EngineCore::Job : ScheduledRequest {
  RequestId id = 0;
  GenerateRequest request;  // its prompt moved to `tokens`
  std::shared_ptr<RequestSink> sink;
  RequestTimings timings;
  std::vector<TokenId> ends;  // tokens that end it, ascending
  std::optional<Sampler> sampler;
  int64_t generated = 0;

  // Not chosen next.
  [[nodiscard]] std::span<const TokenId> masked() const {
    return generated >= request.min_tokens ? std::span<const TokenId>() : ends;
  }
};

void EngineCore::JobDeleter::operator()(Job* job) const { delete job; }

namespace {

constexpr int64_t kReservedAnswer = 32'768;  // tokens

Status CheckLength(const ModelConfig& config, const LocalEngineOptions& options) {
  if (options.max_model_len <= config.max_position_embeddings) return OkStatus();
  return InvalidArgument("max-model-len " + std::to_string(options.max_model_len) +
                         " is beyond the model's " +
                         std::to_string(config.max_position_embeddings) + " positions");
}

Result<CacheSize> SizeIn(int64_t bytes, const ModelConfig& config,
                         const LocalEngineOptions& options) {
  FATHOM_ASSIGN_OR_RETURN(const CachePlanner planner,
                          PlannerFor(config, options.numerics, options.cache_dtypes));
  return SizeCache(planner, bytes, options.max_model_len, config.max_position_embeddings,
                   std::max(1, options.max_num_seqs), options.prefix_caching);
}

}  // namespace

Result<CacheDemand> DeviceCacheDemand(const ModelConfig& config,
                                      const LocalEngineOptions& options) {
  FATHOM_RETURN_IF_ERROR(CheckLength(config, options));
  FATHOM_RETURN_IF_ERROR(CheckDeviceBudget(options.cache_budget));
  if (const int64_t bytes = options.cache_budget.bytes; bytes > 0) {
    FATHOM_RETURN_IF_ERROR(SizeIn(bytes, config, options).status());
    return CacheDemand{bytes, bytes};
  }
  if (options.max_model_len > 0) return CacheDemandOf(config, options, 1, options.max_model_len);
  // The model's own length may be lowered to what fits.
  FATHOM_ASSIGN_OR_RETURN(const CacheDemand whole,
                          CacheDemandOf(config, options, 1, config.max_position_embeddings));
  FATHOM_ASSIGN_OR_RETURN(const CacheDemand least, CacheDemandOf(config, options, 1, 2));
  return CacheDemand{whole.wanted_bytes, least.least_bytes};
}

Result<CacheSize> SizeEngineCache(const ModelConfig& config, const LocalEngineOptions& options,
                                  uint64_t weight_memory) {
  FATHOM_RETURN_IF_ERROR(CheckLength(config, options));
  // Pages of mapped files count as free; copies will not.
  int64_t free = options.memory ? options.memory->available_bytes : FreeHostMemory();
  if (free > 0) free = std::max<int64_t>(1, free - static_cast<int64_t>(weight_memory));
  FATHOM_ASSIGN_OR_RETURN(const int64_t bytes, HostCacheBytes(options.cache_budget, free));
  return SizeIn(bytes, config, options);
}

Result<CacheSize> SizeEngineCache(const ModelConfig& config, const LocalEngineOptions& options,
                                  const MemoryState& device) {
  FATHOM_RETURN_IF_ERROR(CheckLength(config, options));
  FATHOM_ASSIGN_OR_RETURN(const int64_t bytes, DeviceCacheBytes(options.cache_budget, device));
  return SizeIn(bytes, config, options);
}

Result<std::unique_ptr<EngineCore>> EngineCore::Create(Checkpoint checkpoint,
                                                       std::vector<TokenId> eos_token_ids,
                                                       const LocalEngineOptions& options) {
  std::unique_ptr<EngineCore> core(new EngineCore(std::move(checkpoint), options));
  core->info_.eos_token_ids = std::move(eos_token_ids);
  FATHOM_RETURN_IF_ERROR(core->Load());
  return core;
}

EngineCore::EngineCore(Checkpoint checkpoint, const LocalEngineOptions& options)
    : options_(options), checkpoint_(std::move(checkpoint)) {}

EngineCore::~EngineCore() = default;

Status EngineCore::Load() {
  const ModelConfig& config = checkpoint_.config();
  if (options_.max_batched_tokens < 1) {
    return InvalidArgument("max-num-batched-tokens must be at least 1");
  }
  if (options_.max_num_seqs == 0)
    options_.max_num_seqs = std::min(256, options_.max_batched_tokens);
  if (options_.max_num_seqs < 1 || options_.max_num_seqs > options_.max_batched_tokens) {
    return InvalidArgument("max-num-seqs " + std::to_string(options_.max_num_seqs) +
                           " must be at least 1 and at most max-num-batched-tokens, which is " +
                           std::to_string(options_.max_batched_tokens));
  }
  info_.vocab_size = config.vocab_size;
  info_.priority_scheduling = options_.priority_scheduling;
  FATHOM_ASSIGN_OR_RETURN(const CachePlanner planner,
                          PlannerFor(config, options_.numerics, options_.cache_dtypes));
  FATHOM_RETURN_IF_ERROR(LoadModel());
  info_.max_model_len = cache_size_.max_model_len;
  options_.load_progress = nullptr;  // its owner may go now
  BlockManagerOptions cache_options;
  cache_options.max_sequences = options_.max_num_seqs;
  cache_options.max_positions = info_.max_model_len;
  cache_options.max_step_positions = options_.max_batched_tokens;
  cache_options.prefix_caching = options_.prefix_caching;
  FATHOM_ASSIGN_OR_RETURN(manager_,
                          BlockManager::Create(planner, cache_size_.num_slabs, cache_options));
  DeviceMemory& memory = model_->backend().memory();
  FATHOM_ASSIGN_OR_RETURN(memory_, CacheMemory::Create(planner.layout(), manager_->pool(), memory));
  FATHOM_ASSIGN_OR_RETURN(seed_,
                          ModelFingerprint(model_->model(), options_.numerics, planner.layout()));

  SchedulerOptions scheduler_options;
  scheduler_options.max_num_seqs = options_.max_num_seqs;
  scheduler_options.max_batched_tokens = options_.max_batched_tokens;
  scheduler_options.by_priority = options_.priority_scheduling;
  scheduler_options.retention_interval = options_.retention_interval;
  scheduler_ = std::make_unique<Scheduler>(*manager_, scheduler_options);
  builder_ = std::make_unique<StepBuilder>(options_.max_batched_tokens, options_.max_num_seqs,
                                           memory_->pages());
  scratch_ = std::make_unique<SampleScratch>(info_.vocab_size);
  const size_t num_logits = static_cast<size_t>(options_.max_num_seqs + kMaxPromptLogits) *
                            static_cast<size_t>(info_.vocab_size);
  logits_.reset(new (std::nothrow) float[num_logits]);
  if (logits_ == nullptr) {
    return OutOfMemory("no memory for the logits of " + std::to_string(options_.max_num_seqs) +
                       " requests; lower --max-num-seqs");
  }
  const auto max_sequences = static_cast<size_t>(options_.max_num_seqs);
  for (StepUnderWay& step : steps_) {
    step.jobs.reserve(max_sequences);
    step.logits.reserve(max_sequences);
    step.tokens.reserve(max_sequences);
  }
  sampled_indices_.reserve(max_sequences);
  sampled_rows_.reserve(max_sequences);
  sampled_allowed_.resize(max_sequences);
  if (!memory.host_readable()) {
    FATHOM_ASSIGN_OR_RETURN(device_memory_, memory.State());
  }
  // Weights that are widened or repacked were read above.
  return checkpoint_.CheckFiles();
}

// The model, and the size of the cache: before the weights are read, so that what does not fit is
// refused at once. A device's cache is what they then really leave.
Status EngineCore::LoadModel() {
  const ModelConfig& config = checkpoint_.config();
  FATHOM_RETURN_IF_ERROR(CheckLength(config, options_));
  FATHOM_ASSIGN_OR_RETURN(model_, LocalModel::Open(options_));
  FATHOM_RETURN_IF_ERROR(DecideAsync());
  DeviceMemory& memory = model_->backend().memory();
  if (memory.host_readable()) {
    const WeightDemand demand = DemandOf(options_, checkpoint_);
    FATHOM_RETURN_IF_ERROR(CheckWeightsFit(options_, demand));
    FATHOM_ASSIGN_OR_RETURN(cache_size_, SizeEngineCache(config, options_, demand.total()));
    return model_->LoadModel(checkpoint_, options_, options_.max_batched_tokens,
                             cache_size_.max_model_len);
  }
  const int64_t longest =
      options_.max_model_len > 0 ? options_.max_model_len : int64_t{config.max_position_embeddings};
  FATHOM_ASSIGN_OR_RETURN(const CacheDemand cache, DeviceCacheDemand(config, options_));
  FATHOM_RETURN_IF_ERROR(
      model_->LoadModel(checkpoint_, options_, options_.max_batched_tokens, longest, cache));
  FATHOM_ASSIGN_OR_RETURN(const MemoryState state, memory.State());
  FATHOM_ASSIGN_OR_RETURN(cache_size_, SizeEngineCache(config, options_, state));
  return OkStatus();
}

Status EngineCore::DecideAsync() {
  const bool wanted = options_.async_scheduling.value_or(false);
  Backend& backend = model_->backend();
  const bool counts = !options_.record_expert_use.empty();
  if (wanted && !backend.samples()) {
    return InvalidArgument("--async-scheduling: tokens of the " + std::string(backend.name()) +
                           " backend are sampled on the host, which has to wait for each step");
  }
  if (wanted && counts) {
    return InvalidArgument("--async-scheduling: --record-expert-use waits for each step");
  }
  async_ = options_.async_scheduling.value_or(RunsBehindOf(backend) != nullptr && !counts);
  return OkStatus();
}

Result<EngineCore::JobPtr> EngineCore::Prepare(RequestId id, GenerateRequest request,
                                               std::shared_ptr<RequestSink> sink) const {
  FATHOM_RETURN_IF_ERROR(ValidateRequest(request, info_));
  FATHOM_RETURN_IF_ERROR(checkpoint_.CheckFiles());
  JobPtr job(new Job);
  job->id = id;
  job->sink = std::move(sink);
  job->timings.arrival = Clock::now();
  job->ends = EndTokensOf(request, info_);
  std::random_device entropy;
  // Neighbours get distant seeds: the odd constant spreads the ids over all 64 bits.
  const uint64_t seed = request.sampling.seed ? 0
                        : options_.seed       ? static_cast<uint64_t>(*options_.seed) +
                                              0x9e3779b97f4a7c15u * static_cast<uint64_t>(id)
                                        : (uint64_t{entropy()} << 32) | entropy();
  job->sampler.emplace(request.sampling, seed, info_.vocab_size, request.prompt);
  job->priority = request.priority;
  job->client = std::move(request.client);
  job->tokens = std::move(request.prompt);
  job->num_prompt = static_cast<int64_t>(job->tokens.size());
  // What most requests will ever need, so that their tokens allocate nothing; longer answers grow
  // by doubling. Not all of max_tokens: clients leave it at the model's whole length.
  const int64_t most = job->num_prompt + std::min(request.max_tokens, kReservedAnswer);
  job->tokens.reserve(static_cast<size_t>(most));
  if (prefix_caching()) {
    job->keys = PrefixKeys(seed_, request.cache_salt, job->tokens);
    job->keys.Reserve(most / kBlockPositions);
  }
  if (request.num_prompt_logprobs >= 0) job->logits_from = 0;
  job->request = std::move(request);
  return job;
}

void EngineCore::Add(JobPtr job) {
  scheduler_->Add(job.get());
  const RequestId id = job->id;
  jobs_.emplace(id, std::move(job));
}

void EngineCore::Abort(RequestId id) {
  const auto job = jobs_.find(id);
  if (job != jobs_.end()) Abort(*job->second, job->second->computed);
}

void EngineCore::EndAt(RequestId id, int64_t num_tokens) {
  const auto job = jobs_.find(id);
  if (job != jobs_.end()) Abort(*job->second, job->second->num_prompt + num_tokens - 1);
}

void EngineCore::Abort(Job& job, int64_t keep) {
  FinishEvent event;
  event.reason = FinishReason::kAborted;
  event.error = Cancelled("aborted");
  Finish(job, std::move(event), keep);
  TellFinished();
}

void EngineCore::AbortAll() {
  while (!jobs_.empty()) Abort(jobs_.begin()->first);
}

bool EngineCore::Preempt(RequestId id) {
  // Whoever waits has no token on its way.
  SettleAhead();
  TellFinished();
  const auto job = jobs_.find(id);
  if (job == jobs_.end() || job->second->sequence < 0) return false;
  scheduler_->Preempt(*job->second);
  return true;
}

void EngineCore::Finish(Job& job, FinishEvent event, int64_t keep) {
  event.cached_tokens = static_cast<int>(job.cached);
  event.prefix_miss = job.miss;
  event.timings = job.timings;
  event.timings.num_preemptions = job.num_preemptions;
  scheduler_->Remove(&job, keep);
  for (StepUnderWay& step : steps_) {
    std::replace(step.jobs.begin(), step.jobs.end(), &job, static_cast<Job*>(nullptr));
    for (StepLogits& of : step.logits) {
      if (of.job == &job) of.job = nullptr;
    }
  }
  auto node = jobs_.extract(job.id);
  finished_.emplace_back(std::move(node.mapped()), std::move(event));
}

void EngineCore::TellFinished() {
  if (stats_observer_) stats_observer_(stats());
  for (auto& [job, event] : finished_) job->sink->OnFinish(event);
  finished_.clear();
}

bool EngineCore::Step() {
  const bool worked = RunStep();
  TellFinished();
  return worked;
}

bool EngineCore::RunStep() {
  if (jobs_.empty()) {
    SettleAhead();
    return false;
  }
  std::span<const ScheduledRows> rows = scheduler_->Schedule(ahead_ == nullptr);
  if (rows.empty() && ahead_ != nullptr) {
    SettleAhead();
    return true;
  }
  if (rows.empty()) {
    ScheduledRequest* const stuck = scheduler_->stuck();
    FATHOM_CHECK(stuck != nullptr, "a request can run or says that it cannot");
    ++stats_.num_steps;
    FinishEvent event;
    event.reason = FinishReason::kError;
    event.error = OutOfMemory("the cache has no room for this request alone");
    Finish(static_cast<Job&>(*stuck), std::move(event), 0);
    return true;
  }
  if (stats_observer_) stats_observer_(stats());  // who runs is known before the first token is
  StepUnderWay& step = ahead_ == steps_.data() ? steps_[1] : steps_[0];
  Describe(step, rows);
  if (!step.ahead && ahead_ != nullptr) {
    // The host has to know all tokens in front of it; some may end requests that it was to be of.
    if (!SettleAhead()) return true;
    rows = scheduler_->rows();
    if (rows.empty()) return true;
    Describe(step, rows);
  }
  Status status = Begin(step, rows);
  // The device is at this step while the host sees to the one before, whose tokens may end requests
  // of this one: nothing of these comes to light.
  if (!SettleAhead()) return true;
  if (status.ok() && step.ahead) {
    status = model_->model().LaunchSampling(BuildSampling(step));
  }
  if (!step.ahead || !status.ok()) ++stats_.num_steps;
  if (!status.ok()) {
    // First: zeros in place of weights may have caused the other error.
    if (Status files = checkpoint_.CheckFiles(); !files.ok()) status = std::move(files);
    FailStep(step, status);
    return true;
  }
  scheduler_->Commit();
  if (!step.ahead) {
    Settle(step);
    return true;
  }
  ahead_ = &step;
  int index = 0;
  for (const StepLogits& of : step.logits) {
    const int place = index++;
    if (of.job == nullptr || of.job->generated + 1 == of.job->request.max_tokens) continue;
    of.job->tokens.push_back(0);
    of.job->pending = place;
  }
  return true;
}

Status EngineCore::Begin(StepUnderWay& step, std::span<const ScheduledRows> rows) {
  FATHOM_RETURN_IF_ERROR(memory_->CarryOut(*manager_));
  const StepPlan& plan = builder_->Build(rows, *manager_);
  step.num_rows = plan.num_rows();
  Model& model = model_->model();
  if (step.ahead) return model.Launch(plan);
  const StepSampling sampling = BuildSampling(step);
  const auto num_logits = static_cast<int64_t>(plan.logits_rows.size() - sampling.indices.size());
  const Status status = model.ForwardAndSample(
      plan, sampling, {logits_.get(), num_logits, int64_t{info_.vocab_size}});
  Observe(step);
  FATHOM_RETURN_IF_ERROR(status);
  return checkpoint_.CheckFiles();
}

void EngineCore::Describe(StepUnderWay& step, std::span<const ScheduledRows> rows) {
  step.begin = Clock::now();
  step.jobs.clear();
  step.logits.clear();
  step.ahead = async_;
  int num_prefill = 0;
  for (const ScheduledRows& r : rows) {
    Job& job = static_cast<Job&>(*r.request);
    if (job.timings.first_scheduled == Clock::time_point())
      job.timings.first_scheduled = step.begin;
    num_prefill += job.generated == 0 && job.pending < 0;
    step.jobs.push_back(&job);
    const int num_logits = r.num_prompt_logits + (r.wants_logits ? 1 : 0);
    if (num_logits == 0) continue;
    const bool on_device = r.wants_logits && SamplesOnDevice(job);
    step.logits.push_back({&job, job.computed + r.num_tokens - num_logits, r.num_prompt_logits,
                           r.wants_logits, on_device});
    if (r.num_prompt_logits > 0 || !on_device) step.ahead = false;  // the host sees to logits
  }
  step.phase = num_prefill == 0                               ? StepPhase::kDecode
               : num_prefill == static_cast<int>(rows.size()) ? StepPhase::kPrefill
                                                              : StepPhase::kMixed;
}

void EngineCore::Observe(const StepUnderWay& step) {
  // A step that was begun early waits for the one before.
  const Clock::time_point now = Clock::now();
  const std::chrono::duration<double> duration = now - std::max(step.begin, last_settled_);
  last_settled_ = now;
  stats_.step_tokens.Observe(step.num_rows);
  stats_.step_seconds[static_cast<size_t>(step.phase)].Observe(duration.count());
}

bool EngineCore::SettleAhead() {
  if (ahead_ == nullptr) return true;
  StepUnderWay& step = *std::exchange(ahead_, nullptr);
  Status status = model_->model().Collect(step.tokens);
  ++stats_.num_steps;
  Observe(step);
  if (Status files = checkpoint_.CheckFiles(); !files.ok()) status = std::move(files);
  if (status.ok()) {
    Settle(step);
    return true;
  }
  // What of it the cache has named, and what the step behind it has read, may be wrong as well.
  model_->model().DropLaunched();
  manager_->ClearPrefixes();
  for (const StepUnderWay& failed : steps_) FailStep(failed, status);
  return false;
}

void EngineCore::Settle(StepUnderWay& step) {
  const auto vocab = static_cast<size_t>(info_.vocab_size);
  float* logits = logits_.get();
  auto token = step.tokens.begin();
  for (const StepLogits& of : step.logits) {
    const size_t num_values = static_cast<size_t>(of.num_prompt_rows) * vocab;
    const std::span<float> prompt_logits(logits, num_values);
    logits += num_values;
    const std::span<float> last_logits(logits, of.is_sampled && !of.on_device ? vocab : 0);
    logits += last_logits.size();
    const SampledToken* const sampled = of.on_device ? &*token++ : nullptr;
    if (of.job == nullptr) continue;
    Job& job = *of.job;
    if (num_values > 0) TellPromptLogprobs(job, of.position, prompt_logits);
    if (!of.is_sampled) continue;
    Deliver(job, sampled != nullptr ? Accept(job, *sampled) : Sample(job, last_logits));
  }
  step.jobs.clear();
  step.logits.clear();
}

// The step's cache entries may be wrong, so nothing of its requests is kept.
void EngineCore::FailStep(const StepUnderWay& step, const Status& error) {
  std::vector<RequestId> failed;
  if (error.code() == StatusCode::kDataLoss) {
    // Lost weights stay lost: nobody gets another token.
    for (const auto& [id, job] : jobs_) failed.push_back(id);
    manager_->ClearPrefixes();
  } else {
    for (const Job* job : step.jobs) {
      if (job != nullptr) failed.push_back(job->id);
    }
  }
  for (const RequestId id : failed) {
    FinishEvent event;
    event.reason = FinishReason::kError;
    event.error = error;
    Finish(*jobs_.at(id), std::move(event), 0);
  }
}

// `logits` [rows, vocab] of the positions from `position` on.
void EngineCore::TellPromptLogprobs(Job& job, int64_t position, std::span<const float> logits) {
  const auto vocab = static_cast<size_t>(info_.vocab_size);
  prompt_events_.clear();
  for (; !logits.empty(); logits = logits.subspan(vocab)) {
    ++position;
    prompt_events_.push_back(LogprobsOf(logits.first(vocab),
                                        job.tokens[static_cast<size_t>(position)],
                                        job.request.num_prompt_logprobs, *scratch_));
  }
  // Computed again after a preemption, these rows need no logits.
  job.logits_from = position;
  job.sink->OnPromptLogprobs(prompt_events_);
}

bool EngineCore::SamplesOnDevice(const Job& job) const {
  // The likeliest tokens are ranked on the host.
  return model_->backend().samples() && job.request.num_logprobs <= 0;
}

StepSampling EngineCore::BuildSampling(StepUnderWay& step) {
  sampled_indices_.clear();
  sampled_rows_.clear();
  int index = 0;
  for (const StepLogits& of : step.logits) {
    index += of.num_prompt_rows;
    if (!of.is_sampled) continue;
    if (of.on_device) {
      SampleRow row;
      row.temperature = 0.0;  // of a request that is gone: any token will do
      if (of.job != nullptr) {
        const Job& job = *of.job;
        std::vector<uint64_t>& allowed = sampled_allowed_[sampled_rows_.size()];
        row = job.sampler->RowAt(static_cast<int64_t>(job.tokens.size()), job.masked(),
                                 job.request.constraint.get(),
                                 static_cast<size_t>(info_.vocab_size), allowed);
        row.logprob = job.request.num_logprobs >= 0;
      }
      sampled_rows_.push_back(row);
      sampled_indices_.push_back(index);
    }
    ++index;
  }
  step.tokens.resize(sampled_rows_.size());
  return {sampled_indices_, sampled_rows_, step.ahead ? std::span<SampledToken>() : step.tokens};
}

TokenEvent EngineCore::Accept(Job& job, const SampledToken& sampled) {
  job.sampler->Accept(sampled.token, job.request.constraint.get());
  TokenEvent event;
  event.token = sampled.token;
  event.logprob = sampled.logprob;
  return event;
}

TokenEvent EngineCore::Sample(Job& job, std::span<float> logits) {
  return job.sampler->Sample(logits, static_cast<int64_t>(job.tokens.size()), job.masked(),
                             job.request.constraint.get(), job.request.num_logprobs, *scratch_);
}

void EngineCore::Deliver(Job& job, TokenEvent event) {
  const GenerateRequest& request = job.request;
  event.cached_tokens = static_cast<int>(job.cached);
  job.timings.last_token = Clock::now();
  if (job.generated == 0) job.timings.first_token = job.timings.last_token;
  ++job.generated;
  ++stats_.generation_tokens;
  job.sink->OnToken(event);
  const bool placed = job.pending >= 0;
  job.pending = -1;
  if (placed) job.tokens.back() = event.token;
  FinishEvent finish;
  // Before min_tokens an end token is chosen only where the constraint left nothing else.
  if (std::binary_search(job.ends.begin(), job.ends.end(), event.token)) {
    finish.reason = FinishReason::kStop;
    finish.stop_token = event.token;
  } else if (job.generated == request.max_tokens) {
    finish.reason = FinishReason::kLength;
  } else {
    if (!placed) job.tokens.push_back(event.token);
    return;
  }
  Finish(job, std::move(finish), job.computed);
}

EngineStats EngineCore::stats() const {
  EngineStats stats = stats_;
  stats.num_running = scheduler_->num_running();
  stats.num_waiting = scheduler_->num_waiting();
  const SchedulerCounters& counters = scheduler_->counters();
  stats.num_preemptions = counters.preemptions;
  stats.prompt_tokens_computed = counters.prompt_tokens_computed;
  stats.prompt_tokens_cached = counters.prompt_tokens_cached;
  stats.prompt_tokens_recomputed = counters.tokens_recomputed;
  stats.prefix_cache_queries = counters.prefix_queries;
  stats.prefix_cache_hits = counters.prefix_hits;
  stats.prefix_misses = counters.misses;
  const BlockPool& pool = manager_->pool();
  int64_t used = 0;
  for (size_t c = 0; c < kNumCacheClasses; ++c) {
    const auto cache_class = static_cast<CacheClass>(c);
    const BlockPool::ClassUse use = pool.Use(cache_class);
    const int64_t bytes = manager_->planner().layout().BlockBytes(cache_class);
    stats.cache_classes[c] = {use.in_use, use.cached, use.free, bytes};
    used += use.in_use * bytes;
    stats.resume_point_bytes += use.cached * bytes;
  }
  stats.kv_cache_usage = static_cast<double>(used) / static_cast<double>(pool.memory_bytes());
  stats.num_slabs = pool.num_slabs();
  stats.num_free_slabs = pool.num_free_slabs();
  stats.num_resume_points = manager_->prefixes().num_points();
  return stats;
}

}  // namespace fathom
