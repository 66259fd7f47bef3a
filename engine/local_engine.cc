#include "engine/local_engine.h"

#include <pthread.h>

#include <algorithm>
#include <string>
#include <utility>

namespace fathom {

Result<std::unique_ptr<LocalEngine>> LocalEngine::Create(Checkpoint checkpoint,
                                                         std::vector<TokenId> eos_token_ids,
                                                         const LocalEngineOptions& options) {
  FATHOM_ASSIGN_OR_RETURN(
      std::unique_ptr<EngineCore> core,
      EngineCore::Create(std::move(checkpoint), std::move(eos_token_ids), options));
  return std::unique_ptr<LocalEngine>(new LocalEngine(std::move(core)));
}

LocalEngine::LocalEngine(std::unique_ptr<EngineCore> core)
    : core_(std::move(core)), stats_(core_->stats()) {
  core_->SetStatsObserver([this](const EngineStats& stats) { Publish(stats); });
  thread_ = std::thread([this] { Loop(); });
  pthread_setname_np(thread_.native_handle(), "fathom-engine");
}

LocalEngine::~LocalEngine() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

Result<RequestId> LocalEngine::Submit(GenerateRequest request, std::shared_ptr<RequestSink> sink) {
  RequestId id = 0;
  {
    std::lock_guard lock(mutex_);
    id = next_id_++;
  }
  FATHOM_ASSIGN_OR_RETURN(EngineCore::JobPtr job,
                          core_->Prepare(id, std::move(request), std::move(sink)));
  std::lock_guard lock(mutex_);
  if (stopping_) return Unavailable("the engine is shutting down");
  // Who has a seat already does not wait.
  const int seats = core_->options().max_num_seqs - stats_.num_running;
  const int waiting = std::max(0, stats_.num_waiting + static_cast<int>(submitted_.size()) - seats);
  if (waiting >= core_->options().max_queued_requests) {
    ++stats_.rejections[static_cast<size_t>(AdmissionRejection::kQueueFull)];
    return Unavailable("the queue is full: " + std::to_string(waiting) + " requests wait");
  }
  submitted_.push_back(std::move(job));
  wake_.notify_one();
  return id;
}

void LocalEngine::Abort(RequestId id) {
  std::lock_guard lock(mutex_);
  ended_.push_back({id, {}});
  wake_.notify_one();
}

void LocalEngine::EndAt(RequestId id, int64_t num_tokens) {
  std::lock_guard lock(mutex_);
  ended_.push_back({id, num_tokens});
  wake_.notify_one();
}

void LocalEngine::ResetPrefixCache() {
  std::lock_guard lock(mutex_);
  reset_prefixes_ = true;
  wake_.notify_one();
}

int LocalEngine::num_running() const {
  std::lock_guard lock(mutex_);
  return stats_.num_running;
}

int LocalEngine::num_waiting() const {
  std::lock_guard lock(mutex_);
  return stats_.num_waiting + static_cast<int>(submitted_.size());
}

EngineStats LocalEngine::stats() const {
  std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  stats.num_waiting += static_cast<int>(submitted_.size());
  return stats;
}

void LocalEngine::Loop() {
  core_->BindThread();
  std::vector<EngineCore::JobPtr> submitted;
  std::vector<End> ended;
  for (bool stopping = false; !stopping;) {
    bool reset = false;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] {
        return stopping_ || !submitted_.empty() || !ended_.empty() || reset_prefixes_ ||
               !core_->idle();
      });
      stopping = stopping_;
      reset = std::exchange(reset_prefixes_, false);
      submitted.swap(submitted_);
      ended.swap(ended_);
      // They wait in the core until the step below has begun.
      stats_.num_waiting += static_cast<int>(submitted.size());
    }
    for (EngineCore::JobPtr& job : submitted) core_->Add(std::move(job));
    submitted.clear();
    // An id may be aborted before its request came here, but never before it was submitted.
    for (const End& end : ended) {
      end.num_tokens ? core_->EndAt(end.id, *end.num_tokens) : core_->Abort(end.id);
    }
    ended.clear();
    if (reset) core_->ResetPrefixCache();
    stopping ? core_->AbortAll() : static_cast<void>(core_->Step());
  }
}

void LocalEngine::Publish(EngineStats stats) {
  std::lock_guard lock(mutex_);
  stats.rejections = stats_.rejections;  // counted by Submit
  stats_ = stats;
}

}  // namespace fathom
