// ReplayEngine: an Engine that says what a file tells it to (docs/replay.md).
//
// For tests of clients and of everything between socket and engine, and for measuring what a
// server costs per token: it computes nothing. One thread hands out the tokens of all requests, so
// thousands of streams cost a timer entry each. All methods may be called from any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "replay/replay_script.h"

namespace fathom {

struct ReplayEngineOptions {
  EngineInfo info;           // with at least one end token
  int max_num_seqs = 65536;  // requests that run together
  int max_queued_requests = 1024;
  // The text of a prompt, control tokens included; called by Submit, on its thread, where the
  // script has conditions.
  std::function<std::string(std::span<const TokenId>)> decode;
};

class ReplayEngine final : public Engine {
 public:
  static Result<std::unique_ptr<ReplayEngine>> Create(ReplayScript script,
                                                      ReplayEngineOptions options);
  // Aborts what runs and waits; every sink has had its OnFinish afterwards.
  ~ReplayEngine() override;

  [[nodiscard]] const EngineInfo& info() const override { return options_.info; }
  // Besides what the interface says: what the script's submit_error says, and kUnavailable when it
  // has no answer left.
  Result<RequestId> Submit(GenerateRequest request, std::shared_ptr<RequestSink> sink) override;
  void Abort(RequestId id) override;
  void EndAt(RequestId id, int64_t num_tokens) override;
  // Nothing is cached; cached_tokens of an answer is a claim.
  void ResetPrefixCache() override {}
  [[nodiscard]] int num_running() const override;
  [[nodiscard]] int num_waiting() const override;
  [[nodiscard]] EngineStats stats() const override;

 private:
  using Clock = std::chrono::steady_clock;
  struct Request;
  struct Due {
    Clock::time_point time;
    RequestId id = 0;
    Request* request = nullptr;
    bool operator<(const Due& other) const {
      return time != other.time ? time < other.time : id < other.id;
    }
  };

  ReplayEngine(ReplayScript script, ReplayEngineOptions options);
  [[nodiscard]] std::vector<size_t> MatchingAnswers(std::span<const TokenId> prompt) const;
  const ReplayAnswer* TakeAnswer(std::span<const size_t> matching);
  Status SubmitErrorOf(const ReplayAnswer& answer, const GenerateRequest& request);

  // The thread's.
  void Loop();
  void TakeInbox();
  void StartWaiting();
  void RunRound(Clock::time_point now);
  void RunRequest(Request& request, Clock::time_point now);
  void End(Request& request, FinishEvent event);
  void AbortRequest(RequestId id);
  void Schedule(Request& request, Clock::time_point time);
  void Count();

  const ReplayScript script_;
  const ReplayEngineOptions options_;
  std::vector<size_t> conditional_;  // answers with a condition
  std::vector<size_t> in_order_;     // the others

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::vector<std::unique_ptr<Request>> submitted_;
  std::vector<RequestId> aborted_;
  std::vector<int64_t> num_uses_;  // of each answer; of those in order, in this turn
  size_t next_in_order_ = 0;
  bool stopping_ = false;
  RequestId next_id_ = 1;
  EngineStats stats_;  // but for submitted_

  // Whether the inbox has something; read between requests of a round without the lock.
  std::atomic<bool> has_inbox_ = false;

  // The thread's.
  std::unordered_map<RequestId, std::unique_ptr<Request>> requests_;
  std::set<std::pair<int, RequestId>> waiting_;  // by priority, then arrival
  std::set<Due> due_;                            // those with a time to wait for
  std::vector<Request*> ready_;                  // those without
  std::vector<Request*> round_;                  // ready ones of this round
  std::vector<std::unique_ptr<Request>> ended_;  // freed when the round is over
  std::vector<uint64_t> scratch_;
  int num_running_ = 0;
  int64_t round_tokens_ = 0;
  bool all_first_ = true;   // every token of the round was its request's first
  bool none_first_ = true;  // none was
  int64_t new_tokens_ = 0;  // since stats_ was brought up to date

  std::thread thread_;
};

}  // namespace fathom
