// Scheduler: which tokens of which requests the next step computes.
//
// Continuous batching: a step takes one token of every answer in progress and fills the rest of its
// token budget with chunks of prompts. Requests run in the order of their arrival (or priority);
// when cache memory runs out the last of them gives up its blocks and runs again later, with what
// of its prefix is still cached. No device calls: a simulator runs it in tests. Single-threaded:
// owned by the engine.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "cache/block_manager.h"
#include "cache/retention.h"

namespace fathom {

// A request as the scheduler sees it. The first group is the caller's, who also appends to `tokens`
// what is sampled.
struct ScheduledRequest {
  std::vector<TokenId> tokens;  // prompt and generated ones; only the last may not be computed yet
  // The last of them is still being sampled: its place among what that step samples. -1: it is
  // known. Between steps it is, for requests that do not run.
  int pending = -1;
  int64_t num_prompt = 0;
  PrefixKeys keys;     // of `tokens`
  int priority = 0;    // smaller first, with the priority policy
  std::string client;  // whose turn it is when several wait
  // The prompt's rows from here on, but for its last, shall have logits. Their owner moves this on
  // as it gets them; as long as there are any, no cached prefix is used.
  int64_t logits_from = INT64_MAX;
  [[nodiscard]] bool wants_prompt_logits() const { return logits_from < num_prompt - 1; }

  // The scheduler's.
  uint64_t order = 0;        // of arrival
  SequenceId sequence = -1;  // while running
  int64_t computed = 0;      // tokens whose cache entries exist
  int64_t cached = 0;        // of the prompt, found in the prefix cache when it first ran
  PrefixMiss miss = PrefixMiss::kNone;
  int num_preemptions = 0;
  int64_t longest = 0;          // most tokens that were ever computed
  int skipped = 0;              // steps or admissions that went past it
  uint64_t last_step = 0;       // that computes rows of it
  int64_t lone_failed_at = -1;  // where it could not go on although nothing else ran
  RetentionPlan retention;
};

// Logits of prompt rows in a step, besides those of the tokens that come next.
inline constexpr int kMaxPromptLogits = 64;

struct SchedulerOptions {
  int max_num_seqs = 256;
  int max_batched_tokens = 512;  // tokens of a step; at least max_num_seqs
  bool by_priority = false;      // smaller priority first, else order of arrival alone
  int max_skip = 64;             // a request passed over so often goes first
  int64_t retention_interval = kDefaultRetentionInterval;
};

struct ScheduledRows {
  ScheduledRequest* request = nullptr;
  int num_tokens = 0;         // request->tokens from request->computed
  bool wants_logits = false;  // they end at the last known token
  // The last ones (but for the very last, with wants_logits) shall have logits, too.
  int num_prompt_logits = 0;
};

struct SchedulerCounters {
  int64_t preemptions = 0;
  int64_t prompt_tokens_computed = 0;  // prompt tokens of first runs
  int64_t tokens_recomputed = 0;       // computed again after preemption
  int64_t prompt_tokens_cached = 0;
  int64_t prefix_queries = 0;                      // tokens looked up
  int64_t prefix_hits = 0;                         // tokens found
  std::array<int64_t, kNumPrefixMisses> misses{};  // requests
};

class Scheduler {
 public:
  // `manager` must outlive the scheduler and hold max_num_seqs sequences.
  Scheduler(BlockManager& manager, const SchedulerOptions& options);

  // Requests stay the caller's and must live until they are removed.
  void Add(ScheduledRequest* request);
  // Takes a request out between steps, wherever it is. The next request that begins with its first
  // `keep` tokens continues behind them, if they are computed (where fewer are, behind those); 0:
  // nothing more is kept of it.
  void Remove(ScheduledRequest* request, int64_t keep);

  // Takes a running request's blocks away, between steps; it waits and runs again.
  void Preempt(ScheduledRequest& request);

  // The next step's rows, requests in running order; empty when there is nothing to do. The blocks
  // for them are reserved; manager.copies() must be carried out before they are computed.
  // `settled`: no request waits for what an earlier step samples; while some do, nothing is done
  // that only shall be where nothing goes on otherwise.
  std::span<const ScheduledRows> Schedule(bool settled = true);
  // Those of the last Schedule, until the next Commit, without requests that were removed since.
  [[nodiscard]] std::span<const ScheduledRows> rows() const { return rows_; }
  // The rows of the last Schedule are computed, or will be before anything that comes later; those
  // of requests that were removed meanwhile are nobody's.
  void Commit();
  // A request that cannot run although nothing else does; it is the caller's to Remove. Can only
  // happen to requests longer than what the memory was sized for.
  [[nodiscard]] ScheduledRequest* stuck() const { return stuck_; }

  // At most this many tokens per step from here on; at most options().max_batched_tokens.
  void SetStepBudget(int tokens) { budget_ = tokens; }

  [[nodiscard]] int num_running() const { return static_cast<int>(running_.size()); }
  [[nodiscard]] int num_waiting() const { return static_cast<int>(waiting_.size()); }
  [[nodiscard]] const SchedulerCounters& counters() const { return counters_; }
  [[nodiscard]] const SchedulerOptions& options() const { return options_; }

 private:
  [[nodiscard]] bool Before(const ScheduledRequest& a, const ScheduledRequest& b) const;
  bool ScheduleRows(ScheduledRequest& request, int64_t* budget);
  void ScheduleRunning(int64_t* budget);
  void ScheduleWaiting(int64_t* budget);
  [[nodiscard]] bool LacksLogits(const ScheduledRequest& request) const {
    return prompt_logits_left_ == 0 && request.wants_prompt_logits() &&
           request.computed >= request.logits_from;
  }
  bool MakeRoom(const ScheduledRequest& request);
  [[nodiscard]] bool IsScheduled(const ScheduledRequest& request) const {
    return request.last_step == step_;
  }
  void ScheduleLone();
  ScheduledRequest* NextWaiting() const;
  bool Admit(ScheduledRequest& request);
  void CountSkips(const ScheduledRequest& admitted);

  BlockManager& manager_;
  SchedulerOptions options_;
  std::vector<ScheduledRequest*> running_;  // best first
  std::vector<ScheduledRequest*> waiting_;  // in no order
  std::vector<ScheduledRows> rows_;
  std::vector<int64_t> points_;
  // When a client's request was admitted last, in admissions; for the round among clients.
  std::map<std::string, uint64_t, std::less<>> last_turn_;
  uint64_t next_turn_ = 1;
  uint64_t next_order_ = 1;
  uint64_t step_ = 0;
  int budget_ = 0;
  int64_t prompt_logits_left_ = 0;  // in this step
  bool preempted_ = false;          // in this step
  ScheduledRequest* stuck_ = nullptr;
  SchedulerCounters counters_;
};

}  // namespace fathom
