// ScriptedEngine: an Engine for tests that says what it is told to.
//
// One thread serves requests one after the other; more serve as many at once. A request gets the
// tokens of Script, then ends as the real engine would: at an end token, a stop token, max_tokens,
// or (script used up) with kLength. Endless requests repeat one token until they are aborted. All
// methods may be called from any thread.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace fathom {

class ScriptedEngine final : public Engine {
 public:
  explicit ScriptedEngine(EngineInfo info) : info_(std::move(info)) { AddThreads(1); }
  ~ScriptedEngine() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  void AddThreads(int n) {
    for (int i = 0; i < n; ++i) threads_.emplace_back([this] { Run(); });
  }

  // For all requests that begin after the call.
  void Script(std::vector<TokenId> tokens) {
    const std::lock_guard lock(mutex_);
    script_ = std::move(tokens);
    endless_ = false;
    error_ = {};
  }
  void ScriptEndless(TokenId token) {
    const std::lock_guard lock(mutex_);
    script_ = {token};
    endless_ = true;
  }
  // As many tokens as scripted, then an error.
  void ScriptError(std::vector<TokenId> tokens, Status error) {
    Script(std::move(tokens));
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
  }
  // While closed, requests wait before their first token.
  void SetGate(bool open) {
    const std::lock_guard lock(mutex_);
    open_ = open;
    changed_.notify_all();
  }
  void SetSubmitStatus(Status status) {
    const std::lock_guard lock(mutex_);
    submit_status_ = std::move(status);
  }
  // Of every request that begins after the call.
  void SetCachedTokens(int cached_tokens) {
    const std::lock_guard lock(mutex_);
    cached_tokens_ = cached_tokens;
  }
  // What stats() shows besides what this engine counts itself.
  void SetStats(const EngineStats& stats) {
    const std::lock_guard lock(mutex_);
    stats_ = stats;
  }
  std::vector<GenerateRequest> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  // Waits until exactly `running` requests run and `waiting` wait.
  bool WaitFor(int running, int waiting, std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [&] {
      return num_running_ == running && static_cast<int>(queue_.size()) == waiting;
    });
  }

  [[nodiscard]] const EngineInfo& info() const override { return info_; }
  Result<RequestId> Submit(GenerateRequest request, std::shared_ptr<RequestSink> sink) override {
    const std::lock_guard lock(mutex_);
    if (!submit_status_.ok()) {
      if (submit_status_.code() == StatusCode::kUnavailable) {
        ++stats_.rejections[static_cast<size_t>(AdmissionRejection::kQueueFull)];
      }
      return submit_status_;
    }
    const RequestId id = ++last_id_;
    requests_.push_back(request);
    queue_.push_back({id, std::move(request), std::move(sink), {}});
    queue_.back().timings.arrival = RequestTimings::Clock::now();
    changed_.notify_all();
    return id;
  }
  void Abort(RequestId id) override {
    const std::lock_guard lock(mutex_);
    aborted_.push_back(id);
    changed_.notify_all();
  }
  void EndAt(RequestId id, int64_t /*num_tokens*/) override { Abort(id); }
  void ResetPrefixCache() override {
    const std::lock_guard lock(mutex_);
    ++num_resets_;
  }
  [[nodiscard]] int num_resets() const {
    const std::lock_guard lock(mutex_);
    return num_resets_;
  }
  [[nodiscard]] int num_running() const override {
    const std::lock_guard lock(mutex_);
    return num_running_;
  }
  [[nodiscard]] int num_waiting() const override {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(queue_.size());
  }
  [[nodiscard]] EngineStats stats() const override {
    const std::lock_guard lock(mutex_);
    EngineStats stats = stats_;
    stats.num_running = num_running_;
    stats.num_waiting = static_cast<int>(queue_.size());
    return stats;
  }

 private:
  struct Item {
    RequestId id = 0;
    GenerateRequest request;
    std::shared_ptr<RequestSink> sink;
    RequestTimings timings;
  };

  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (stopping_) return;
      Item item = std::move(queue_.front());
      queue_.pop_front();
      ++num_running_;
      changed_.notify_all();
      const int cached_tokens = cached_tokens_;
      stats_.prompt_tokens_cached += cached_tokens;
      stats_.prompt_tokens_computed +=
          static_cast<int64_t>(item.request.prompt.size()) - cached_tokens;
      const std::vector<TokenId> script = script_;
      const bool endless = endless_;
      const Status error = error_;
      lock.unlock();
      item.timings.first_scheduled = RequestTimings::Clock::now();
      FinishEvent finish = Serve(item, script, endless, cached_tokens);
      if (!error.ok() && finish.reason == FinishReason::kLength) {
        finish = {FinishReason::kError, std::nullopt, error, 0};
      }
      finish.cached_tokens = cached_tokens;
      finish.timings = item.timings;
      item.sink->OnFinish(finish);
      item.sink.reset();
      lock.lock();
      --num_running_;
      changed_.notify_all();
    }
  }

  // Waits for a step; false when the request was aborted.
  bool Step(RequestId id, bool endless) {
    std::unique_lock lock(mutex_);
    auto must_end = [this, id] {
      return stopping_ || std::find(aborted_.begin(), aborted_.end(), id) != aborted_.end();
    };
    changed_.wait(lock, [&] { return open_ || must_end(); });
    // A pace, so that an endless request does not fill the memory.
    if (endless) changed_.wait_for(lock, std::chrono::milliseconds(1), must_end);
    if (must_end()) return false;
    ++stats_.generation_tokens;
    ++stats_.num_steps;
    return true;
  }

  FinishEvent Serve(Item& item, const std::vector<TokenId>& script, bool endless,
                    int cached_tokens) {
    const GenerateRequest& request = item.request;
    if (request.num_prompt_logprobs >= 0) {
      std::vector<TokenEvent> events;
      for (size_t i = 1; i < request.prompt.size(); ++i) {
        events.push_back({request.prompt[i], -0.25f, {}, 0});
        if (request.num_prompt_logprobs > 0) events.back().top = {{request.prompt[i], -0.25f}};
      }
      item.sink->OnPromptLogprobs(events);
    }
    for (int64_t i = 0; i < request.max_tokens; ++i) {
      if (!endless && i >= static_cast<int64_t>(script.size())) break;
      if (!Step(item.id, endless)) return {FinishReason::kAborted, std::nullopt, {}, 0};
      TokenEvent event;
      event.cached_tokens = cached_tokens;
      event.token = script[endless ? 0 : static_cast<size_t>(i)];
      if (request.num_logprobs >= 0) event.logprob = -0.5f;
      for (int n = 0; n < request.num_logprobs; ++n) {
        event.top.push_back({event.token + n, -0.5f - static_cast<float>(n)});
      }
      item.timings.last_token = RequestTimings::Clock::now();
      if (i == 0) item.timings.first_token = item.timings.last_token;
      item.sink->OnToken(event);
      auto is_in = [&event](const std::vector<TokenId>& ids) {
        return std::find(ids.begin(), ids.end(), event.token) != ids.end();
      };
      if (is_in(request.stop_token_ids) || (!request.ignore_eos && is_in(info_.eos_token_ids))) {
        return {FinishReason::kStop, event.token, {}, 0};
      }
    }
    return {FinishReason::kLength, std::nullopt, {}, 0};
  }

  const EngineInfo info_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Item> queue_;
  int num_resets_ = 0;
  std::vector<RequestId> aborted_;
  std::vector<GenerateRequest> requests_;
  std::vector<TokenId> script_;
  Status error_;
  Status submit_status_;
  RequestId last_id_ = 0;
  EngineStats stats_;
  int num_running_ = 0;
  int cached_tokens_ = 0;
  bool endless_ = false;
  bool open_ = true;
  bool stopping_ = false;
  std::vector<std::thread> threads_;  // last: they use the members above
};

}  // namespace fathom
