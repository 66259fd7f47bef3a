// EngineCore: model, cache, scheduler and samplers of one replica, run step by step.
//
// What LocalEngine's thread runs; tests and benchmarks drive it themselves, so that they decide
// what is in a batch. Single-threaded but for the const methods that say so.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache/cache_memory.h"
#include "checkpoint/checkpoint.h"
#include "engine/cache_sizing.h"
#include "engine/engine.h"
#include "engine/local_engine_options.h"
#include "engine/local_model.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/step_builder.h"

namespace fathom {

// The cache that these options give a model whose weights take `weight_memory` bytes of the host's
// beside their files, and how long its sequences may be; kInvalidArgument when they cannot.
Result<CacheSize> SizeEngineCache(const ModelConfig& config, const LocalEngineOptions& options,
                                  uint64_t weight_memory);
// The same on a device that holds all but the cache.
Result<CacheSize> SizeEngineCache(const ModelConfig& config, const LocalEngineOptions& options,
                                  const MemoryState& device);

// What these options want of a device for the cache: the bytes they say, or room for one sequence
// of the longest length; at least that where they give the length. kInvalidArgument as above.
Result<CacheDemand> DeviceCacheDemand(const ModelConfig& config, const LocalEngineOptions& options);

class EngineCore {
 public:
  // A request on its way through the core.
  struct Job;
  struct JobDeleter {
    void operator()(Job* job) const;
  };
  using JobPtr = std::unique_ptr<Job, JobDeleter>;

  // As LocalEngine::Create.
  static Result<std::unique_ptr<EngineCore>> Create(Checkpoint checkpoint,
                                                    std::vector<TokenId> eos_token_ids,
                                                    const LocalEngineOptions& options);
  ~EngineCore();  // requests that are left get no OnFinish

  // Binds the calling thread, which runs the steps from here on, where --numa wants it.
  void BindThread() const { model_->pool().BindOwner(); }

  // Any thread. Checks the request and does what needs no engine thread.
  [[nodiscard]] Result<JobPtr> Prepare(RequestId id, GenerateRequest request,
                                       std::shared_ptr<RequestSink> sink) const;
  void Add(JobPtr job);
  // Called when a step's requests are chosen and before sinks get OnFinish: who knows that a
  // request runs or ended sees that in the stats as well.
  void SetStatsObserver(std::function<void(const EngineStats&)> observer) {
    stats_observer_ = std::move(observer);
  }
  // Its sink gets OnFinish(kAborted). Unknown ids are ignored.
  void Abort(RequestId id);
  void EndAt(RequestId id, int64_t num_tokens);
  void AbortAll();
  void ResetPrefixCache() { manager_->ClearPrefixes(); }
  // One forward pass, and its tokens or, with async scheduling, mostly those of the one before.
  // False when there was nothing to do.
  bool Step();

  [[nodiscard]] const EngineInfo& info() const { return info_; }
  [[nodiscard]] const LocalEngineOptions& options() const { return options_; }  // defaults resolved
  [[nodiscard]] const CacheSize& cache_size() const { return cache_size_; }
  // False also where the model has nothing that a prefix could be named by.
  [[nodiscard]] bool prefix_caching() const { return manager_->prefix_caching(); }
  [[nodiscard]] bool idle() const { return jobs_.empty() && ahead_ == nullptr; }
  [[nodiscard]] EngineStats stats() const;

  [[nodiscard]] Scheduler& scheduler() { return *scheduler_; }
  [[nodiscard]] BlockManager& cache() { return *manager_; }
  [[nodiscard]] const Backend& backend() const { return model_->backend(); }
  // Where the weights are. Any thread.
  [[nodiscard]] const WeightsReport& weights() const { return model_->weights(); }
  // Steps that the backend records; absent where it records none whatever it is told.
  [[nodiscard]] std::optional<GraphOptions> graphs() const {
    const StepGraphs* graphs = model_->model().graphs();
    if (graphs == nullptr) return std::nullopt;
    return GraphOptions{graphs->mode(), graphs->sizes()};
  }
  // The device's memory when all was in it; absent where the host's is computed in. Any thread.
  [[nodiscard]] const std::optional<MemoryState>& device_memory() const { return device_memory_; }
  // Takes a running request's blocks away as if memory had run out; it continues later, with the
  // same result. False when it does not run.
  bool Preempt(RequestId id);
  // Whether steps are begun before the host knows what the one before sampled.
  [[nodiscard]] bool async_scheduling() const { return async_; }

 private:
  EngineCore(Checkpoint checkpoint, const LocalEngineOptions& options);
  Status Load();
  Status LoadModel();
  Status DecideAsync();
  struct StepUnderWay;
  // Computes the rows, or begins to where what is sampled of them can come later.
  Status Begin(StepUnderWay& step, std::span<const ScheduledRows> rows);
  void Describe(StepUnderWay& step, std::span<const ScheduledRows> rows);
  // What the step sampled goes to its requests.
  void Settle(StepUnderWay& step);
  // The same of the one that was begun and not waited for, if there is one.
  // False when that one failed, which is the end of its requests and of those of the step behind.
  bool SettleAhead();
  void Observe(const StepUnderWay& step);
  void TellPromptLogprobs(Job& job, int64_t position, std::span<const float> logits);
  // Says how the step's rows are sampled that need no logits on the host, when all tokens in front
  // of them are known.
  StepSampling BuildSampling(StepUnderWay& step);
  [[nodiscard]] bool SamplesOnDevice(const Job& job) const;
  TokenEvent Sample(Job& job, std::span<float> logits);
  // Of a request whose token was sampled elsewhere.
  TokenEvent Accept(Job& job, const SampledToken& sampled);
  void Deliver(Job& job, TokenEvent event);
  void Abort(Job& job, int64_t keep);
  void Finish(Job& job, FinishEvent event, int64_t keep);
  void TellFinished();
  bool RunStep();
  void FailStep(const StepUnderWay& step, const Status& error);

  LocalEngineOptions options_;
  Checkpoint checkpoint_;
  EngineInfo info_;
  CacheSize cache_size_;
  std::optional<MemoryState> device_memory_;
  PrefixKey seed_{};
  std::unique_ptr<LocalModel> model_;
  std::unique_ptr<BlockManager> manager_;
  std::unique_ptr<CacheMemory> memory_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<StepBuilder> builder_;
  std::unique_ptr<SampleScratch> scratch_;
  std::unique_ptr<float[]> logits_;  // [max_num_seqs + kMaxPromptLogits, vocab]
  // Whose logits of the step they are, in their order.
  struct StepLogits {
    Job* job = nullptr;    // nullptr: gone
    int64_t position = 0;  // of the first row
    int num_prompt_rows = 0;
    bool is_sampled = false;  // one row more
    bool on_device = false;   // that one's token is among the step's tokens, in their order
  };
  struct StepUnderWay {
    std::vector<Job*> jobs;  // nullptr: gone
    std::vector<StepLogits> logits;
    std::vector<SampledToken> tokens;  // of rows that the backend samples
    bool ahead = false;                // they come later
    int num_rows = 0;
    StepPhase phase = StepPhase::kDecode;
    RequestTimings::Clock::time_point begin;
  };
  // The one that is begun, and the one before it, which may be under way.
  std::array<StepUnderWay, 2> steps_;
  StepUnderWay* ahead_ = nullptr;
  bool async_ = false;
  RequestTimings::Clock::time_point last_settled_;
  // Rows that the backend samples: which of the step's logits, how, and what the constraints of
  // requests allow.
  std::vector<int> sampled_indices_;
  std::vector<SampleRow> sampled_rows_;
  std::vector<std::vector<uint64_t>> sampled_allowed_;
  std::vector<TokenEvent> prompt_events_;
  std::unordered_map<RequestId, JobPtr> jobs_;
  EngineStats stats_;                                     // its counters and histograms
  std::vector<std::pair<JobPtr, FinishEvent>> finished_;  // not told yet
  std::function<void(const EngineStats&)> stats_observer_;
};

}  // namespace fathom
