// LocalEngine: runs a model in this process, many requests at a time.
//
// One thread of its own runs an EngineCore: it takes what was submitted and aborted since the last
// step, runs a step, and hands out its tokens. All methods may be called from any thread.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/engine_core.h"

namespace fathom {

class LocalEngine final : public Engine {
 public:
  // `eos_token_ids` end a request unless it says ignore_eos. Installs the process's fault guard: a
  // weights file that is truncated under the engine ends requests with kDataLoss (those that run
  // and all later ones), not the process.
  static Result<std::unique_ptr<LocalEngine>> Create(Checkpoint checkpoint,
                                                     std::vector<TokenId> eos_token_ids,
                                                     const LocalEngineOptions& options);
  // Aborts what runs and waits; every sink has had its OnFinish afterwards.
  ~LocalEngine() override;

  [[nodiscard]] const EngineInfo& info() const override { return core_->info(); }
  Result<RequestId> Submit(GenerateRequest request, std::shared_ptr<RequestSink> sink) override;
  void Abort(RequestId id) override;
  void EndAt(RequestId id, int64_t num_tokens) override;
  void ResetPrefixCache() override;
  [[nodiscard]] int num_running() const override;
  [[nodiscard]] int num_waiting() const override;
  [[nodiscard]] EngineStats stats() const override;

  [[nodiscard]] const LocalEngineOptions& options() const { return core_->options(); }
  [[nodiscard]] bool prefix_caching() const { return core_->prefix_caching(); }
  [[nodiscard]] const CacheSize& cache_size() const { return core_->cache_size(); }
  [[nodiscard]] const WeightsReport& weights() const { return core_->weights(); }
  [[nodiscard]] std::optional<GraphOptions> graphs() const { return core_->graphs(); }
  [[nodiscard]] const std::optional<MemoryState>& device_memory() const {
    return core_->device_memory();
  }

 private:
  explicit LocalEngine(std::unique_ptr<EngineCore> core);
  void Loop();
  void Publish(EngineStats stats);

  const std::unique_ptr<EngineCore> core_;  // the thread's but for what any thread may call

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::vector<EngineCore::JobPtr> submitted_;
  struct End {
    RequestId id = 0;
    std::optional<int64_t> num_tokens;  // of EndAt
  };
  std::vector<End> ended_;
  bool reset_prefixes_ = false;
  RequestId next_id_ = 1;
  bool stopping_ = false;
  EngineStats stats_;  // after the last step, without what was submitted since
  std::thread thread_;
};

}  // namespace fathom
