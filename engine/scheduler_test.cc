// The scheduler under a simulator: the model is a random number, memory is accounting.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <utility>

namespace fathom {
namespace {

struct SimulatorOptions {
  int64_t num_slabs = 12;
  int64_t max_positions = 2000;
  SchedulerOptions scheduler;
  bool prefix_caching = true;
  // Steps are scheduled before the tokens of the step in front are known, as an engine does whose
  // backend takes them over where they are sampled. Some answers then end as nobody foresaw.
  bool early = false;
};

// Runs requests to their end; every step is checked against what the scheduler promises.
class Simulator {
 public:
  struct Request : ScheduledRequest {
    int64_t max_tokens = 1;
    int64_t generated = 0;
    int finished_at = -1;  // step
    int admitted_at = -1;  // step of its first rows
    int longest_gap = 0;   // steps between two tokens of its answer
    int last_token_at = -1;
  };

  explicit Simulator(SimulatorOptions options, uint64_t seed = 1)
      : options_(options), random_(seed) {
    const CachePlanner planner(CacheLayout({{0, 4, 128}, 128, 64, 128, 128}, Numerics::kOfficial));
    BlockManagerOptions cache;
    cache.max_sequences = options.scheduler.max_num_seqs;
    cache.max_positions = options.max_positions;
    cache.max_step_positions = options.scheduler.max_batched_tokens;
    cache.prefix_caching = options.prefix_caching;
    auto manager = BlockManager::Create(planner, options.num_slabs, cache);
    EXPECT_TRUE(manager.ok()) << manager.status().ToString();
    manager_ = std::move(manager).value();
    scheduler_ = std::make_unique<Scheduler>(*manager_, options.scheduler);
  }

  Request* Add(int64_t prompt, int64_t max_tokens, int kind = 0) {
    auto request = std::make_unique<Request>();
    for (int64_t i = 0; i < prompt; ++i) {
      request->tokens.push_back(static_cast<TokenId>((i * 7 + kind * 131) % 1000));
    }
    request->num_prompt = prompt;
    request->max_tokens = max_tokens;
    request->keys = PrefixKeys({}, "", request->tokens);
    scheduler_->Add(request.get());
    requests_.push_back(std::move(request));
    return requests_.back().get();
  }

  void Abort(Request* request) {
    if (request->finished_at >= 0) return;
    scheduler_->Remove(request, request->computed);
    request->finished_at = step_;
  }

  // False when nothing is left to do.
  bool Step() {
    ++step_;
    const bool settled = sampled_.empty();
    const std::span<const ScheduledRows> rows = scheduler_->Schedule(settled);
    manager_->ClearCopies();
    if (rows.empty() && !settled) {
      Settle();
      return true;
    }
    if (rows.empty()) {
      EXPECT_EQ(scheduler_->stuck(), nullptr) << "memory is sized for every request";
      EXPECT_EQ(scheduler_->num_running() + scheduler_->num_waiting(), 0)
          << "work is left and nothing runs, step " << step_;
      return false;
    }
    int64_t total = 0;
    int total_prompt_logits = 0;
    std::set<const ScheduledRequest*> seen;
    for (const ScheduledRows& r : rows) {
      auto* request = static_cast<Request*>(r.request);
      EXPECT_TRUE(seen.insert(request).second) << "a request is in a step once";
      EXPECT_GT(r.num_tokens, 0);
      const int64_t end = request->computed + r.num_tokens;
      EXPECT_LE(end, static_cast<int64_t>(request->tokens.size()));
      EXPECT_EQ(r.wants_logits, end == static_cast<int64_t>(request->tokens.size()));
      if (!r.wants_logits && r.num_tokens >= 2 * kBlockPositions) {
        EXPECT_EQ(end % kBlockPositions, 0) << "chunks end at whole blocks where they can";
      }
      TakePromptLogits(r, *request, end);
      total_prompt_logits += r.num_prompt_logits;
      total += r.num_tokens;
      if (request->admitted_at < 0) request->admitted_at = step_;
      EXPECT_TRUE(request->pending < 0 || r.wants_logits)
          << "a token that nobody knows is the last";
    }
    EXPECT_LE(total, options_.scheduler.max_batched_tokens);
    EXPECT_LE(total_prompt_logits, kMaxPromptLogits);
    EXPECT_LE(static_cast<int>(rows.size()), options_.scheduler.max_num_seqs);
    EXPECT_LE(scheduler_->num_running(), options_.scheduler.max_num_seqs);
    if (options_.early) Settle();
    for (const ScheduledRows& r : scheduler_->rows()) {
      auto* request = static_cast<Request*>(r.request);
      EXPECT_EQ(request->finished_at, -1) << "rows of a removed request are nobody's";
      EXPECT_EQ(request->pending, -1) << "blocks are known by tokens that are known";
      if (r.wants_logits) sampled_.push_back(request);
    }
    scheduler_->Commit();
    if (!options_.early) Settle();
    for (size_t i = 0; i < sampled_.size(); ++i) {
      // Where the end is in sight, no row is spent on what comes behind it.
      if (sampled_[i]->generated + 1 == sampled_[i]->max_tokens) continue;
      sampled_[i]->tokens.push_back(-1);
      sampled_[i]->pending = static_cast<int>(i);
    }
    return true;
  }

  // The tokens that the last step sampled become known.
  void Settle() {
    for (Request* request : std::exchange(sampled_, {})) {
      if (request->finished_at >= 0) continue;  // aborted
      if (request->generated > 0) {
        request->longest_gap = std::max(request->longest_gap, step_ - request->last_token_at);
      }
      request->last_token_at = step_;
      const auto token = static_cast<TokenId>(random_() % 1000);
      const bool placed = request->pending >= 0;
      request->pending = -1;
      if (placed) request->tokens.back() = token;
      const bool unforeseen = options_.early && random_() % 64 == 0;
      if (++request->generated == request->max_tokens || unforeseen) {
        // Its last token was computed, if at all, for nobody.
        scheduler_->Remove(request, request->computed);
        request->finished_at = step_;
      } else if (!placed) {
        request->tokens.push_back(token);
      }
    }
  }

  void RunToEnd(int max_steps) {
    for (int i = 0; Step(); ++i) ASSERT_LT(i, max_steps) << "no end in sight";
    for (const auto& request : requests_) {
      EXPECT_GE(request->finished_at, 0);
      if (request->generated > 0) {
        EXPECT_FALSE(request->wants_prompt_logits());
      }
    }
    manager_->ClearPrefixes();
    EXPECT_EQ(manager_->pool().num_free_slabs(), manager_->pool().num_slabs())
        << "every block is given back";
  }

  [[nodiscard]] int step() const { return step_; }
  [[nodiscard]] Scheduler& scheduler() { return *scheduler_; }
  [[nodiscard]] BlockManager& manager() { return *manager_; }
  [[nodiscard]] std::mt19937_64& random() { return random_; }
  [[nodiscard]] const std::vector<std::unique_ptr<Request>>& requests() const { return requests_; }

 private:
  // The rows that shall have logits are told exactly once, in order.
  static void TakePromptLogits(const ScheduledRows& r, Request& request, int64_t end) {
    const int64_t wanted_until = std::min(end, request.num_prompt - 1);
    if (!request.wants_prompt_logits() || wanted_until <= request.logits_from) {
      EXPECT_EQ(r.num_prompt_logits, 0);
      return;
    }
    EXPECT_LE(request.computed, request.logits_from) << "not from a cached prefix";
    EXPECT_EQ(r.num_prompt_logits, wanted_until - request.logits_from);
    request.logits_from = wanted_until;
  }

  SimulatorOptions options_;
  std::mt19937_64 random_;
  std::unique_ptr<BlockManager> manager_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::unique_ptr<Request>> requests_;
  std::vector<Request*> sampled_;  // by the last step; what they got is not known yet
  int step_ = 0;
};

SimulatorOptions Small(int max_num_seqs, int max_batched_tokens) {
  SimulatorOptions options;
  options.scheduler.max_num_seqs = max_num_seqs;
  options.scheduler.max_batched_tokens = max_batched_tokens;
  return options;
}

// Slabs for one sequence of the longest length and a little more: memory is always short.
SimulatorOptions Tight(int max_num_seqs, int max_batched_tokens) {
  SimulatorOptions options = Small(max_num_seqs, max_batched_tokens);
  const CachePlanner planner(CacheLayout({{0, 4, 128}, 128, 64, 128, 128}, Numerics::kOfficial));
  options.num_slabs = planner.BytesFor(1, options.max_positions) / planner.slab_bytes() + 1;
  return options;
}

TEST(Scheduler, AnswersRunBesideChunksOfAPrompt) {
  Simulator s(Small(8, 64));
  auto* first = s.Add(10, 40);
  ASSERT_TRUE(s.Step());
  auto* second = s.Add(1000, 3, 1);
  while (second->generated == 0) {
    const int64_t before = second->computed;
    const int64_t tokens = first->generated;
    ASSERT_TRUE(s.Step());
    EXPECT_EQ(first->generated, tokens + (tokens < 40)) << "an answer gets a token in every step";
    EXPECT_GT(second->computed, before) << "and the prompt the rest of the budget";
    EXPECT_LE(second->computed - before, 64);
  }
  s.RunToEnd(200);
}

// Report R086: a running answer froze while another client's long prompt was read. What passes
// between two of its tokens is one step, and no step is larger than the budget.
TEST(Scheduler, ALongPromptCostsAnAnswerOneChunkPerToken) {
  SimulatorOptions options = Small(8, 512);
  options.num_slabs = 200;
  options.max_positions = 20'001;
  Simulator s(options);
  auto* answer = s.Add(64, 400, 67);
  while (answer->generated < 50) ASSERT_TRUE(s.Step());
  auto* prompt = s.Add(20'000, 1, 68);
  int chunks = 0;
  for (; prompt->generated == 0; ++chunks) ASSERT_TRUE(s.Step());
  EXPECT_GE(chunks, 20'000 / 511) << "the prompt shares every step with the answer";
  EXPECT_LE(chunks, 20'000 / 256 + 1) << "but takes most of it";
  EXPECT_EQ(answer->generated, 50 + chunks);
  s.RunToEnd(1000);
  EXPECT_EQ(answer->generated, 400);
  EXPECT_EQ(answer->longest_gap, 1);
}

class RandomTraffic : public ::testing::TestWithParam<bool> {};

TEST_P(RandomTraffic, EndsInEveryMemoryAndBudget) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 random(seed);
    const int batched = static_cast<int>(1 + random() % 700);
    const int seqs = static_cast<int>(1 + random() % static_cast<uint64_t>(std::min(batched, 40)));
    SimulatorOptions options = seed % 2 == 0 ? Tight(seqs, batched) : Small(seqs, batched);
    if (seed % 2 != 0) options.num_slabs = 60;
    options.prefix_caching = seed % 5 != 0;
    options.scheduler.by_priority = seed % 3 == 0;
    options.scheduler.retention_interval = seed % 7 == 0 ? kBlockPositions : 16'384;
    options.early = GetParam();
    Simulator s(options, seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::vector<Simulator::Request*> live;
    const int arrivals = 60;
    for (int i = 0; i < arrivals;) {
      if (random() % 3 == 0) {
        const auto prompt = static_cast<int64_t>(1 + random() % (random() % 4 == 0 ? 1500 : 300));
        auto* r =
            s.Add(prompt, static_cast<int64_t>(1 + random() % 200), static_cast<int>(random() % 5));
        r->priority = static_cast<int>(random() % 3);
        r->client = std::string(1, static_cast<char>('a' + random() % 3));
        if (i % 6 == 0) r->logits_from = 0;
        live.push_back(r);
        ++i;
      }
      if (random() % 40 == 0) s.Abort(live.empty() ? s.Add(1, 1) : live[random() % live.size()]);
      // A request taken out of memory in the middle of anything.
      auto* victim = live.empty() ? nullptr : live[random() % live.size()];
      if (random() % 20 == 0 && victim != nullptr && victim->sequence >= 0) {
        s.Settle();
        if (victim->sequence >= 0) s.scheduler().Preempt(*victim);
      }
      if (random() % 5 == 0)
        s.scheduler().SetStepBudget(
            static_cast<int>(1 + random() % static_cast<uint64_t>(batched)));
      s.Step();
    }
    s.scheduler().SetStepBudget(batched);
    s.RunToEnd(400'000);
    if (testing::Test::HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Tokens, RandomTraffic, ::testing::Bool(), [](const auto& early) {
  return early.param ? "known_a_step_later" : "known_at_once";
});

// A request whose token is not known yet is in the next step; one whose end is in sight is not.
TEST(Scheduler, EarlyStepsTakeWhatIsStillSampled) {
  SimulatorOptions options = Small(4, 64);
  options.early = true;
  Simulator s(options, 3);
  auto* answer = s.Add(10, 3);
  ASSERT_TRUE(s.Step());
  EXPECT_EQ(answer->pending, 0);
  EXPECT_EQ(answer->tokens.size(), 11u);
  EXPECT_EQ(answer->generated, 0);
  ASSERT_TRUE(s.Step());
  EXPECT_EQ(answer->generated, 1);
  EXPECT_EQ(answer->computed, 11) << "the first token's row ran before it was known";
  ASSERT_TRUE(s.Step());
  EXPECT_EQ(answer->generated, 2);
  EXPECT_EQ(answer->pending, -1) << "the third token is the last";
  ASSERT_TRUE(s.Step());
  EXPECT_EQ(answer->generated, 3);
  EXPECT_EQ(answer->computed, 12);
  EXPECT_FALSE(s.Step());
}

// Nothing may be given up for others while answers wait for their tokens alone.
TEST(Scheduler, EarlyStepsWithoutRowsTakeNobodysMemory) {
  SimulatorOptions options = Tight(4, 100);
  options.early = true;
  Simulator s(options, 5);
  auto* answer = s.Add(40, 2);
  ASSERT_TRUE(s.Step());
  ASSERT_TRUE(s.Step());
  EXPECT_EQ(answer->pending, -1);
  EXPECT_GE(answer->sequence, 0);
  EXPECT_TRUE(s.scheduler().Schedule(/*settled=*/false).empty());
  EXPECT_GE(answer->sequence, 0) << "not begun again, as it would be if nothing else ran";
  EXPECT_EQ(answer->num_preemptions, 0);
  EXPECT_EQ(s.scheduler().stuck(), nullptr);
}

TEST(Scheduler, ARequestOfTheLongestLengthRunsAloneInMemorySizedForIt) {
  SimulatorOptions options = Tight(4, 100);
  options.num_slabs -= 1;
  Simulator s(options);
  auto* big = s.Add(1500, 499);
  s.Add(600, 300, 1);
  s.Add(600, 300, 2);
  s.RunToEnd(10'000);
  EXPECT_EQ(big->generated, 499);
}

TEST(Scheduler, PreemptionCostsNoTokensWhileItsBlocksSurvive) {
  Simulator s(Small(4, 512));
  auto* r = s.Add(700, 20);
  while (r->generated < 5) ASSERT_TRUE(s.Step());
  s.scheduler().Preempt(*r);
  const int64_t before = s.scheduler().counters().tokens_recomputed;
  ASSERT_TRUE(s.Step());
  EXPECT_EQ(r->generated, 6) << "it continues at the exact token";
  EXPECT_EQ(s.scheduler().counters().tokens_recomputed, before);
  s.RunToEnd(100);
}

TEST(Scheduler, ARepeatedPromptComputesItsLastTokenOnly) {
  Simulator s(Small(4, 4096));
  auto* first = s.Add(1234, 3);
  while (first->finished_at < 0) ASSERT_TRUE(s.Step());
  auto* second = s.Add(1234, 3);
  while (second->finished_at < 0) ASSERT_TRUE(s.Step());
  EXPECT_EQ(first->cached, 0);
  EXPECT_EQ(first->miss, PrefixMiss::kMissingBlock);
  EXPECT_EQ(second->cached, 1233);
  EXPECT_EQ(second->miss, PrefixMiss::kNone);
}

TEST(Scheduler, AConversationComputesWhatIsNew) {
  SimulatorOptions options = Small(4, 512);
  options.num_slabs = 60;
  options.max_positions = 8000;
  Simulator s(options);
  auto* turn = s.Add(900, 37);
  while (turn->finished_at < 0) ASSERT_TRUE(s.Step());
  for (int i = 0; i < 10; ++i) {
    // The next prompt: all of the last turn but its unused last token, and a new question.
    std::vector<TokenId> tokens = turn->tokens;
    const auto known = static_cast<int64_t>(tokens.size());
    for (int k = 0; k < 61; ++k) tokens.push_back(static_cast<TokenId>(i * 61 + k));
    auto* next = s.Add(1, 37);
    next->tokens = tokens;
    next->num_prompt = static_cast<int64_t>(tokens.size());
    next->keys = PrefixKeys({}, "", tokens);
    while (next->finished_at < 0) ASSERT_TRUE(s.Step());
    EXPECT_EQ(next->cached, known) << "all positions of the last turn that were run";
    turn = next;
  }
}

TEST(Scheduler, SharedPrefixesMeetAtTheirJunction) {
  SimulatorOptions options = Small(4, 4096);
  options.num_slabs = 60;
  options.max_positions = 4000;
  Simulator s(options);
  const auto run = [&](int question) {
    auto* r = s.Add(2000, 2);  // the same system prompt
    r->tokens.resize(1500);
    for (int k = 0; k < 500; ++k) r->tokens.push_back(question * 1000 + k);
    r->keys = PrefixKeys({}, "", r->tokens);
    while (r->finished_at < 0) EXPECT_TRUE(s.Step());
    return r;
  };
  EXPECT_EQ(run(1)->cached, 0);
  auto* second = run(2);
  EXPECT_EQ(second->cached, 0);
  EXPECT_EQ(second->miss, PrefixMiss::kNoResumePoint) << "cached, but nothing to continue from";
  EXPECT_EQ(run(3)->cached, 1280) << "the second request left a resume point where it diverged";
}

TEST(Scheduler, ClientsTakeTurns) {
  SimulatorOptions options = Small(1, 64);
  Simulator s(options);
  std::vector<Simulator::Request*> flood;
  for (int i = 0; i < 20; ++i) {
    flood.push_back(s.Add(5, 3));
    flood.back()->client = "flood";
  }
  auto* other = s.Add(5, 3);
  other->client = "other";
  s.RunToEnd(1000);
  int before = 0;
  for (auto* r : flood) before += r->finished_at < other->finished_at;
  EXPECT_LE(before, 2) << "one client's queue is not another's";
  for (size_t i = 1; i < flood.size(); ++i) {
    EXPECT_LT(flood[i - 1]->admitted_at, flood[i]->admitted_at) << "in order among themselves";
  }
}

// A long queue of one client, all of it older than what others ask: turns stay turns.
TEST(Scheduler, AClientsBacklogDoesNotUndoTheTurnsOfOthers) {
  SimulatorOptions options = Small(1, 64);
  options.scheduler.max_skip = 16;
  Simulator s(options);
  for (int i = 0; i < 300; ++i) s.Add(5, 1)->client = "flood";
  Simulator::Request* other = nullptr;
  int served = 0;
  int added_at = 0;
  int longest_wait = 0;
  while (served < 100) {
    if (other == nullptr) {
      other = s.Add(5, 1);
      other->client = "other";
      added_at = s.step();
    }
    ASSERT_TRUE(s.Step());
    if (other->finished_at < 0) continue;
    longest_wait = std::max(longest_wait, s.step() - added_at);
    other = nullptr;
    ++served;
  }
  EXPECT_LE(longest_wait, 4);
  s.RunToEnd(1000);
}

TEST(Scheduler, ABatchOfLowPriorityDoesNotOvertakeUrgentRequests) {
  SimulatorOptions options = Small(1, 64);
  options.scheduler.by_priority = true;
  options.scheduler.max_skip = 16;
  Simulator s(options);
  std::vector<Simulator::Request*> batch;
  for (int i = 0; i < 100; ++i) {
    batch.push_back(s.Add(5, 1));
    batch.back()->priority = 5;
  }
  int longest_wait = 0;
  for (int i = 0; i < 200; ++i) {
    auto* urgent = s.Add(5, 1);
    urgent->priority = -5;
    const int added_at = s.step();
    while (urgent->finished_at < 0) ASSERT_TRUE(s.Step());
    longest_wait = std::max(longest_wait, s.step() - added_at);
  }
  EXPECT_LE(longest_wait, 3) << "one overdue request in 16 at most";
  const auto done =
      std::count_if(batch.begin(), batch.end(), [](const auto* r) { return r->finished_at >= 0; });
  EXPECT_GE(done, 200 / 17 - 1) << "and the batch gets on";
  s.RunToEnd(1000);
}

TEST(Scheduler, OneClientIsServedInOrderOfArrival) {
  Simulator s(Small(2, 64));
  std::vector<Simulator::Request*> all;
  for (int i = 0; i < 20; ++i) all.push_back(s.Add(5 + i % 3, 1 + i % 4));
  s.RunToEnd(1000);
  for (size_t i = 1; i < all.size(); ++i) EXPECT_LE(all[i - 1]->admitted_at, all[i]->admitted_at);
}

TEST(Scheduler, LowPriorityIsPassedOverABoundedNumberOfTimes) {
  SimulatorOptions options = Small(1, 64);
  options.scheduler.by_priority = true;
  options.scheduler.max_skip = 10;
  Simulator s(options);
  s.Add(5, 2);
  auto* low = s.Add(5, 2);
  low->priority = 5;
  int urgent = 0;
  for (; low->finished_at < 0 && urgent < 100; ++urgent) {
    s.Add(5, 1)->priority = -1;
    ASSERT_TRUE(s.Step());
  }
  EXPECT_GE(low->finished_at, 0);
  s.RunToEnd(1000);
}

TEST(Scheduler, SmallerPriorityGoesFirst) {
  SimulatorOptions options = Small(1, 64);
  options.scheduler.by_priority = true;
  Simulator s(options);
  auto* late = s.Add(5, 2);
  late->priority = 2;
  auto* soon = s.Add(5, 2);
  soon->priority = 1;
  s.RunToEnd(100);
  EXPECT_LT(soon->finished_at, late->finished_at);
}

TEST(Scheduler, AnAnswerIsNotStarvedByPromptsNorPromptsByAnswers) {
  SimulatorOptions options = Small(32, 32);
  options.num_slabs = 200;
  options.scheduler.max_skip = 8;
  Simulator s(options);
  // Answers alone use up the budget; a prompt in progress still gets on.
  auto* prompt = s.Add(500, 5, 9);
  ASSERT_TRUE(s.Step());
  for (int i = 0; i < 31; ++i) s.Add(1, 300, i);
  int waited = 0;
  for (; prompt->generated == 0; ++waited) ASSERT_TRUE(s.Step());
  EXPECT_LT(waited, 500 * 9);
  for (const auto& r : s.requests()) EXPECT_LE(r->longest_gap, 40);
  s.RunToEnd(5000);
}

}  // namespace
}  // namespace fathom
