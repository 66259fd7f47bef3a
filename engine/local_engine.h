// LocalEngine: runs a model in this process, one request at a time.
//
// One thread of its own takes requests in order of arrival, computes the prompt in chunks and then
// token by token. An abort is seen between steps. All methods may be called from any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "backend/backend.h"
#include "checkpoint/checkpoint.h"
#include "engine/engine.h"
#include "engine/sequence_runner.h"
#include "model/model.h"

namespace fathom {

struct LocalEngineOptions {
  std::string backend = "cpu";   // "cpu" or "reference"
  int num_threads = 0;           // 0: DefaultThreadCount()
  int64_t max_model_len = 0;     // 0: the model's max_position_embeddings
  int max_batched_tokens = 512;  // tokens of one prefill step
  int max_queued_requests = 64;  // waiting ones; more get kUnavailable
};

// "cpu" or "reference"; kInvalidArgument names the known ones.
Result<std::unique_ptr<Backend>> MakeBackend(const std::string& name, Numerics numerics,
                                             int num_threads);

class LocalEngine final : public Engine {
 public:
  // `eos_token_ids` end a request unless it says ignore_eos. Installs the process's fault guard: a
  // weights file that is truncated under the engine ends requests with kDataLoss (the running one
  // and all later ones), not the process.
  static Result<std::unique_ptr<LocalEngine>> Create(Checkpoint checkpoint,
                                                     std::vector<TokenId> eos_token_ids,
                                                     const LocalEngineOptions& options);
  // Aborts what runs and waits; every sink has had its OnFinish afterwards.
  ~LocalEngine() override;

  [[nodiscard]] const EngineInfo& info() const override { return info_; }
  Result<RequestId> Submit(GenerateRequest request, std::shared_ptr<RequestSink> sink) override;
  void Abort(RequestId id) override;
  [[nodiscard]] int num_running() const override;
  [[nodiscard]] int num_waiting() const override;
  [[nodiscard]] EngineStats stats() const override;

 private:
  struct Job {
    RequestId id = 0;
    GenerateRequest request;
    std::shared_ptr<RequestSink> sink;
    RequestTimings timings;
  };
  LocalEngine(Checkpoint checkpoint, const LocalEngineOptions& options);
  Status Load();
  void Loop();
  FinishEvent Run(Job& job);
  Status Prefill(std::span<const TokenId> prompt, std::span<float> logits);
  // One step of the runner whose results may be used: the weights were intact until its end.
  Status Step(StepPhase phase, std::span<const TokenId> tokens, SequenceRunner::Logits wanted,
              std::span<float> logits);
  [[nodiscard]] Status Validate(const GenerateRequest& request) const;

  LocalEngineOptions options_;
  Checkpoint checkpoint_;
  EngineInfo info_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<SequenceRunner> runner_;
  std::vector<float> logits_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::deque<Job> waiting_;
  RequestId next_id_ = 1;
  RequestId running_id_ = 0;  // 0: none
  bool stopping_ = false;
  EngineStats stats_;  // its counters
  // Set by Abort and by the destructor, read between steps. Relaxed: it carries no data.
  std::atomic<bool> abort_running_{false};
  std::thread thread_;
};

}  // namespace fathom
