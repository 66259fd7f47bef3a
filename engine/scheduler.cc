#include "engine/scheduler.h"

#include <algorithm>

#include "base/check.h"

namespace fathom {
namespace {

// Clients whose last turn is remembered although nothing of theirs waits.
constexpr size_t kMaxClients = 4096;

int64_t NumKnown(const ScheduledRequest& r) { return static_cast<int64_t>(r.tokens.size()); }
int64_t Remaining(const ScheduledRequest& r) { return NumKnown(r) - r.computed; }

}  // namespace

Scheduler::Scheduler(BlockManager& manager, const SchedulerOptions& options)
    : manager_(manager), options_(options), budget_(options.max_batched_tokens) {
  FATHOM_CHECK(options.max_num_seqs > 0 && options.max_batched_tokens >= options.max_num_seqs,
               "a step has room for a token of every sequence");
  running_.reserve(static_cast<size_t>(options.max_num_seqs));
  rows_.reserve(static_cast<size_t>(options.max_num_seqs));
  points_.reserve(static_cast<size_t>(options.max_batched_tokens / kBlockPositions) + 8);
}

// The order of running, and of giving up memory from the end.
bool Scheduler::Before(const ScheduledRequest& a, const ScheduledRequest& b) const {
  if (options_.by_priority && a.priority != b.priority) return a.priority < b.priority;
  return a.order < b.order;
}

void Scheduler::Add(ScheduledRequest* request) {
  request->order = next_order_++;
  waiting_.push_back(request);
}

void Scheduler::Remove(ScheduledRequest* request, int64_t keep) {
  if (request == stuck_) stuck_ = nullptr;
  if (std::erase(waiting_, request) > 0) return;
  FATHOM_CHECK(std::erase(running_, request) > 0, "only requests that were added are removed");
  std::erase_if(rows_, [request](const ScheduledRows& rows) { return rows.request == request; });
  const int64_t position = std::min(keep, manager_.length(request->sequence));
  if (position > 0) manager_.Keep(request->sequence, request->tokens, position);
  manager_.Release(request->sequence);
  request->sequence = -1;
}

std::span<const ScheduledRows> Scheduler::Schedule(bool settled) {
  rows_.clear();
  ++step_;
  preempted_ = false;
  stuck_ = nullptr;
  prompt_logits_left_ = kMaxPromptLogits;
  int64_t budget = budget_;
  ScheduleRunning(&budget);
  // Who gave up memory in this step would otherwise see it go to somebody who came later.
  if (!preempted_) ScheduleWaiting(&budget);
  if (!settled) return rows_;
  while (rows_.empty() && running_.size() > 1) {
    // Prompts alone, each waiting for memory of the others.
    Preempt(*running_.back());
    ScheduleRunning(&budget);
  }
  if (rows_.empty()) ScheduleLone();
  return rows_;
}

void Scheduler::ScheduleRunning(int64_t* budget) {
  // A running request that got nothing for too long, then answers in progress, then the prompts in
  // order. Indices instead of iterators: making room shortens the list from its end.
  enum Pass { kOverdue, kAnswers, kPrompts, kEnd };
  const int64_t num_answers =
      std::count_if(running_.begin(), running_.end(),
                    [](const ScheduledRequest* r) { return Remaining(*r) == 1; });
  for (int pass = kOverdue; pass != kEnd; ++pass) {
    for (size_t i = 0; i < running_.size(); ++i) {
      ScheduledRequest& r = *running_[i];
      const bool overdue = r.skipped >= options_.max_skip;
      const bool answer = Remaining(r) == 1;
      if (pass == kOverdue ? !overdue : pass == kAnswers ? !answer : answer) continue;
      // Nothing remains of those that wait for their last token.
      if (IsScheduled(r) || *budget == 0 || Remaining(r) == 0 || LacksLogits(r)) continue;
      // An overdue prompt leaves the answers their tokens.
      int64_t share = *budget;
      if (overdue && !answer) share = std::max<int64_t>(1, share - num_answers);
      const int64_t before = share;
      bool scheduled = ScheduleRows(r, &share);
      // A prompt can wait for the answers to end, for a while; an answer in progress goes on at the
      // expense of those behind it.
      while (!scheduled && (answer || overdue) && MakeRoom(r)) scheduled = ScheduleRows(r, &share);
      *budget -= before - share;
    }
  }
  for (ScheduledRequest* r : running_) r->skipped = IsScheduled(*r) ? 0 : r->skipped + 1;
}

// Takes the memory of the last running request behind `request` that is not part of the step.
bool Scheduler::MakeRoom(const ScheduledRequest& request) {
  for (size_t i = running_.size(); i-- > 0 && running_[i] != &request;) {
    if (IsScheduled(*running_[i])) continue;
    Preempt(*running_[i]);
    return true;
  }
  return false;
}

void Scheduler::Preempt(ScheduledRequest& request) {
  manager_.Keep(request.sequence, request.tokens, request.computed);
  manager_.Release(request.sequence);
  request.sequence = -1;
  request.longest = std::max(request.longest, request.computed);
  request.computed = 0;
  request.skipped = 0;
  ++request.num_preemptions;
  ++counters_.preemptions;
  preempted_ = true;
  std::erase(running_, &request);
  waiting_.push_back(&request);
}

// As many of the request's tokens as the budget and the cache have room for.
bool Scheduler::ScheduleRows(ScheduledRequest& r, int64_t* budget) {
  const int64_t begin = r.computed;
  int64_t end = begin + std::min(Remaining(r), *budget);
  const int64_t logits_begin = std::max(begin, r.logits_from);
  if (r.wants_prompt_logits() && r.num_prompt - 1 - logits_begin > prompt_logits_left_) {
    end = std::min(end, logits_begin + prompt_logits_left_);
  }
  if (end < NumKnown(r)) {
    // A chunk that is not the last one ends at a whole block where it can, so that resume points at
    // whole blocks cost no blocks of their own.
    const int64_t whole = end / kBlockPositions * kBlockPositions;
    if (whole > begin) end = whole;
  }
  points_.clear();
  r.retention.PointsIn(begin, end, points_);
  StepKeeps keeps;
  if (begin >= r.retention.known - 1 && end % kBlockPositions == 0) {
    if (points_.empty() || points_.back() != end) points_.push_back(end);
    // Unless it is one of those that stay.
    const int64_t interval = r.retention.interval;
    keeps.rolling = interval > 0 && end % interval == 0 ? -1 : end;
  }
  keeps.points = points_;
  if (!manager_.Extend(r.sequence, end, keeps)) return false;
  const int64_t num_logits = std::max<int64_t>(0, std::min(end, r.num_prompt - 1) - logits_begin);
  prompt_logits_left_ -= num_logits;
  rows_.push_back(
      {&r, static_cast<int>(end - begin), end == NumKnown(r), static_cast<int>(num_logits)});
  r.last_step = step_;
  *budget -= end - begin;
  return true;
}

void Scheduler::Commit() {
  for (const ScheduledRows& rows : rows_) {
    ScheduledRequest& r = *rows.request;
    manager_.Commit(r.sequence, r.tokens);
    const int64_t end = r.computed + rows.num_tokens;
    const int64_t again = std::clamp<int64_t>(r.longest - r.computed, 0, rows.num_tokens);
    counters_.tokens_recomputed += again;
    counters_.prompt_tokens_computed +=
        std::max<int64_t>(0, std::min(end, r.num_prompt) - std::max(r.computed + again, r.longest));
    r.computed = end;
    r.longest = std::max(r.longest, end);
  }
  rows_.clear();
}

// Nothing can run. If that is because the blocks of the only running request lie in too many slabs,
// it begins again in memory that is empty; sizing and admission see to it that this suffices.
void Scheduler::ScheduleLone() {
  if (running_.empty() && waiting_.empty()) return;
  if (!running_.empty()) {
    ScheduledRequest& r = *running_.front();
    if (r.computed <= r.lone_failed_at) {
      stuck_ = &r;
      return;
    }
    r.lone_failed_at = r.computed;
    Preempt(r);
  }
  manager_.ClearPrefixes();
  int64_t budget = budget_;
  ScheduleWaiting(&budget);
  if (rows_.empty()) stuck_ = NextWaiting();
}

// Waiting requests --------------------------------------------------------------------------------

// Overdue ones first, then those that ran before, then by priority; among equals whoever's client
// had its turn longest ago, then by arrival.
ScheduledRequest* Scheduler::NextWaiting() const {
  ScheduledRequest* best = nullptr;
  const auto turn = [this](const ScheduledRequest& r) {
    const auto it = last_turn_.find(r.client);
    return it == last_turn_.end() ? uint64_t{0} : it->second;
  };
  const auto better = [&](const ScheduledRequest& a, const ScheduledRequest& b) {
    const bool a_overdue = a.skipped >= options_.max_skip;
    const bool b_overdue = b.skipped >= options_.max_skip;
    if (a_overdue != b_overdue) return a_overdue;
    if (a_overdue) return a.order < b.order;
    if (options_.by_priority && a.priority != b.priority) return a.priority < b.priority;
    const bool a_ran = a.num_preemptions > 0;
    const bool b_ran = b.num_preemptions > 0;
    if (a_ran != b_ran) return a_ran;
    if (!a_ran && a.client != b.client && turn(a) != turn(b)) return turn(a) < turn(b);
    return a.order < b.order;
  };
  for (ScheduledRequest* r : waiting_) {
    if (best == nullptr || better(*r, *best)) best = r;
  }
  return best;
}

void Scheduler::ScheduleWaiting(int64_t* budget) {
  while (*budget > 0 && num_running() < options_.max_num_seqs) {
    ScheduledRequest* const r = NextWaiting();
    // Nobody overtakes a request that does not fit yet: it would wait for ever.
    if (r == nullptr || LacksLogits(*r) || !Admit(*r)) return;
    if (!ScheduleRows(*r, budget)) {
      // No memory for its first chunk after all; it keeps its place.
      manager_.Release(r->sequence);
      r->sequence = -1;
      r->computed = 0;
      return;
    }
    std::erase(waiting_, r);
    running_.insert(
        std::upper_bound(running_.begin(), running_.end(), r,
                         [this](const auto* a, const auto* b) { return Before(*a, *b); }),
        r);
    CountSkips(*r);
    if (r->num_preemptions == 0) {
      r->cached = r->computed;
      counters_.prompt_tokens_cached += r->cached;
      if (!r->wants_prompt_logits()) counters_.prefix_queries += NumKnown(*r);
      counters_.prefix_hits += r->cached;
      ++counters_.misses[static_cast<size_t>(r->miss)];
      r->longest = r->computed;
    }
    r->skipped = 0;
  }
}

bool Scheduler::Admit(ScheduledRequest& r) {
  FATHOM_CHECK(r.pending < 0, "a prefix is looked up by tokens that are known");
  PrefixMatch match;
  match.miss = PrefixMiss::kDisabled;
  if (!r.wants_prompt_logits()) match = manager_.Match(r.tokens, r.keys);
  PrefixMiss miss = match.miss;
  // Room for the whole prompt and the first new token.
  const int64_t length = NumKnown(r) + 1;
  if (!manager_.Fits(length, match)) return false;
  std::optional<SequenceId> id = manager_.Admit(match, &r.keys, length);
  if (!id && match.position > 0) {
    // A copy of a partly filled block needs one block more than fits: from the beginning, then.
    PrefixMatch none;
    none.junction = match.junction;
    miss = PrefixMiss::kMissingBlock;
    if (!manager_.Fits(length, none)) return false;
    id = manager_.Admit(none, &r.keys, length);
    match = none;
  }
  if (!id) return false;
  r.sequence = *id;
  r.computed = match.position;
  if (r.num_preemptions == 0) r.miss = miss;
  r.retention = {r.num_prompt, NumKnown(r), match.junction, options_.retention_interval};
  return true;
}

// Only the one that waits longest can become overdue: so one request in max_skip goes first for
// that reason, and a long queue of one client or priority does not undo the order of the others.
void Scheduler::CountSkips(const ScheduledRequest& admitted) {
  const auto oldest =
      std::min_element(waiting_.begin(), waiting_.end(),
                       [](const auto* a, const auto* b) { return a->order < b->order; });
  if (oldest != waiting_.end() && (*oldest)->order < admitted.order) ++(*oldest)->skipped;
  last_turn_[admitted.client] = next_turn_++;
  if (last_turn_.size() <= kMaxClients) return;
  std::erase_if(last_turn_,
                [&](const auto& entry) { return entry.second + kMaxClients / 2 < next_turn_; });
}

}  // namespace fathom
