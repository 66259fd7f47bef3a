// Steps that begin before the host knows what the one before sampled: the same answers, whatever
// ends, is preempted, aborted or fails meanwhile. On a device of the tests' own, on one that is
// waited for, and on a GPU or the build that runs its kernels on the CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "engine/engine_core.h"
#include "engine/test_constraints.h"
#include "tests/device/planned_step.h"
#include "tests/device/sink.h"
#ifdef FATHOM_ASYNC_ON_CUDA
#include "backend/cuda/cuda_backend.h"
#include "tests/gpu.h"
#else
#include "tests/device/behind_backend.h"
#endif

namespace fathom {
namespace {

using ::testing::HasSubstr;

// Kernels on the CPU take a tenth of a second for a row, and a sanitizer's build a tenth of that.
#if defined(FATHOM_CUDA_EMULATED) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSlow = true;
constexpr int kNumRequests = 4;
constexpr int kNumSeeds = 1;
constexpr int kMostTokens = 10;  // of a prompt
#else
constexpr bool kSlow = false;
constexpr int kNumRequests = 10;
constexpr int kNumSeeds = 2;
constexpr int kMostTokens = 40;
#endif

// The i-th request of a seed: most are of the kind whose steps begin early, some prevent it.
GenerateRequest RequestOf(uint64_t seed, int i, int vocab) {
  std::mt19937_64 random(seed * 1000 + static_cast<uint64_t>(i));
  const auto one_in = [&random](uint64_t n) { return random() % n == 0; };
  GenerateRequest request;
  // Prompts begin alike, so that caches have something of them.
  const uint64_t length = 1 + random() % kMostTokens;
  for (uint64_t t = 0; t < length; ++t) {
    request.prompt.push_back(static_cast<TokenId>(
        (t * 13 + (t > kMostTokens / 2 ? seed + random() : 7)) % static_cast<uint64_t>(vocab)));
  }
  request.max_tokens = 1 + static_cast<int64_t>(random() % (kSlow ? 5 : 12));
  request.num_logprobs = one_in(3) ? 0 : -1;
  if (one_in(9)) request.num_logprobs = 2;
  if (one_in(12)) request.num_prompt_logprobs = 1;
  SamplingParams& sampling = request.sampling;
  sampling.seed = i;
  sampling.temperature = one_in(3) ? 0.0 : 1.0;
  sampling.top_p = one_in(2) ? 0.9 : 1.0;
  if (one_in(4)) sampling.logit_bias = {{9, 2.5f}, {4, -1.0f}};
  if (one_in(9)) sampling.repetition_penalty = 1.3;
  if (one_in(9)) sampling.frequency_penalty = 0.7;
  if (one_in(7)) request.constraint = std::make_shared<HistoryConstraint>();
  if (one_in(2)) {
    for (TokenId token = 0; token < vocab; token += 6) request.stop_token_ids.push_back(token);
    if (one_in(2)) request.min_tokens = std::min<int64_t>(4, request.max_tokens);
  }
  return request;
}

struct Subject {
  const char* name;
  std::function<Result<std::unique_ptr<Backend>>()> make;
};
void PrintTo(const Subject& subject, std::ostream* out) { *out << subject.name; }

std::vector<Subject> Subjects() {
#ifdef FATHOM_ASYNC_ON_CUDA
  return {{"cuda", []() -> Result<std::unique_ptr<Backend>> {
             FATHOM_ASSIGN_OR_RETURN(auto backend, CudaBackend::Create(Numerics::kOfficial));
             return std::unique_ptr<Backend>(std::move(backend));
           }}};
#else
  return {{"behind",
           [] {
             return Result<std::unique_ptr<Backend>>(
                 std::make_unique<BehindBackend>(Numerics::kOfficial));
           }},
          {"waited_for", [] {
             return Result<std::unique_ptr<Backend>>(
                 std::make_unique<GuardedBackend>(Numerics::kOfficial));
           }}};
#endif
}

LocalEngineOptions Options(const Subject& subject, bool async) {
  LocalEngineOptions options;
  options.make_backend = [make = subject.make](Numerics) { return make(); };
  options.async_scheduling = async;
  options.max_batched_tokens = 64;
  options.max_num_seqs = 5;
  options.max_model_len = 512;
  options.cache_budget.bytes = int64_t{8} << 20;
  return options;
}

std::unique_ptr<EngineCore> Engine(const LocalEngineOptions& options) {
  auto core = EngineCore::Create(TinyA(), {1}, options);
  EXPECT_TRUE(core.ok()) << core.status().ToString();
  return core.ok() ? std::move(core).value() : nullptr;
}

std::shared_ptr<Sink> Add(EngineCore& core, RequestId id, GenerateRequest request) {
  auto sink = std::make_shared<Sink>();
  auto job = core.Prepare(id, std::move(request), sink);
  EXPECT_TRUE(job.ok()) << job.status().ToString();
  if (job.ok()) core.Add(std::move(job).value());
  return sink;
}

void Drain(EngineCore& core) {
  while (!core.idle()) core.Step();
}

class Async : public testing::TestWithParam<Subject> {
 protected:
  void SetUp() override {
#if defined(FATHOM_ASYNC_ON_CUDA) && !defined(FATHOM_CUDA_EMULATED)
    FATHOM_REQUIRE_GPU_FOR("cuda");
#endif
  }

  // What each request gets alone, its steps waited for.
  std::vector<std::shared_ptr<Sink>> Alone(uint64_t seed, int count) {
    LocalEngineOptions options = Options(GetParam(), false);
    options.prefix_caching = false;
    const auto core = Engine(options);
    std::vector<std::shared_ptr<Sink>> sinks;
    for (int i = 0; i < count; ++i) {
      sinks.push_back(Add(*core, i + 1, RequestOf(seed, i, core->info().vocab_size)));
      Drain(*core);
    }
    return sinks;
  }
};

void ExpectSame(const Sink& got, const Sink& want) {
  ASSERT_TRUE(got.finished && want.finished);
  EXPECT_EQ(got.seen, want.seen);
  EXPECT_EQ(got.finish.reason, want.finish.reason) << got.finish.error.ToString();
  EXPECT_EQ(got.finish.stop_token, want.finish.stop_token);
}

// All of it together: requests arrive at random, steps have random budgets, running requests lose
// their memory, twice over the same cache.
TEST_P(Async, AnswersAreThoseOfStepsThatAreWaitedFor) {
  for (uint64_t seed = 1; seed <= kNumSeeds; ++seed) {
    SCOPED_TRACE(seed);
    const auto want = Alone(seed, kNumRequests);
    LocalEngineOptions options = Options(GetParam(), true);
    if (seed % 2 == 0) options.cache_budget.bytes = int64_t{5} << 20;  // some wait for memory
    if (seed % 2 == 0) options.max_model_len = 128;
    const auto core = Engine(options);
    ASSERT_NE(core, nullptr);
    ASSERT_TRUE(core->async_scheduling());
    std::mt19937_64 random(seed);
    for (int round = 0; round < (seed == 1 && !kSlow ? 2 : 1); ++round) {
      std::vector<std::shared_ptr<Sink>> got;
      const RequestId first = round * kNumRequests + 1;
      while (got.size() < want.size() || !core->idle()) {
        if (got.size() < want.size() && (core->idle() || random() % 3 == 0)) {
          const int i = static_cast<int>(got.size());
          got.push_back(Add(*core, first + i, RequestOf(seed, i, core->info().vocab_size)));
        }
        core->scheduler().SetStepBudget(random() % 3 == 0 ? 1 + static_cast<int>(random() % 64)
                                                          : 64);
        core->Step();
        if (random() % 9 == 0)
          core->Preempt(first + static_cast<RequestId>(random() % want.size()));
      }
      for (size_t i = 0; i < want.size(); ++i) {
        SCOPED_TRACE(i);
        ExpectSame(*got[i], *want[i]);
      }
    }
    EXPECT_EQ(core->stats().num_running, 0);
  }
}

// Ended from outside at a token that is known, with others under way; what is kept of it serves the
// next turn.
TEST_P(Async, RequestsThatAreEndedMeanwhile) {
  const int vocab = Engine(Options(GetParam(), false))->info().vocab_size;
  LocalEngineOptions uncached = Options(GetParam(), false);
  uncached.prefix_caching = false;
  const auto plain = Engine(uncached);
  const auto core = Engine(Options(GetParam(), true));
  std::mt19937_64 random(5);
  RequestId next = 1;
  for (int turn = 0; turn < (kSlow ? 2 : 7); ++turn) {
    SCOPED_TRACE(turn);
    GenerateRequest request;
    for (int t = 0; t < kMostTokens / 2 + turn; ++t)
      request.prompt.push_back((t * 7 + turn) % vocab);
    request.max_tokens = 30;
    request.num_logprobs = 0;
    request.sampling.temperature = 0.0;
    const RequestId id = next++;
    const auto sink = Add(*core, id, request);
    const auto beside = Add(*core, next++, RequestOf(77, turn, vocab));
    const size_t known = 2 + random() % (kSlow ? 2 : 6);
    while (sink->tokens.size() < known) core->Step();
    const size_t kept = 1 + random() % known;
    if (turn % 3 == 2) {
      core->Abort(id);
    } else {
      core->EndAt(id, static_cast<int64_t>(kept));
    }
    EXPECT_TRUE(sink->finished);
    EXPECT_EQ(sink->finish.reason, FinishReason::kAborted);
    EXPECT_EQ(sink->tokens.size(), known);  // nothing that was under way came after all

    GenerateRequest again = request;
    again.prompt.insert(again.prompt.end(), sink->tokens.begin(),
                        sink->tokens.begin() + static_cast<ptrdiff_t>(kept));
    again.prompt.push_back(3);
    again.max_tokens = kSlow ? 2 : 5;
    const auto got = Add(*core, next++, again);
    Drain(*core);
    EXPECT_TRUE(beside->finished);
    const auto want = Add(*plain, next++, again);
    Drain(*plain);
    ExpectSame(*got, *want);
    if (turn % 3 != 2) {
      EXPECT_GT(got->finish.cached_tokens, 0);
    }
  }
  EXPECT_TRUE(core->idle());
}

TEST_P(Async, AbortingAllLeavesNothingUnderWay) {
  constexpr int kCount = kSlow ? 2 : 4;
  const auto core = Engine(Options(GetParam(), true));
  const int vocab = core->info().vocab_size;
  const auto want = Alone(3, kCount);
  for (int round = kSlow ? 2 : 0; round < 3; ++round) {
    std::vector<std::shared_ptr<Sink>> sinks;
    for (int i = 0; i < kCount; ++i) {
      sinks.push_back(Add(*core, 10 * round + i, RequestOf(3, i, vocab)));
    }
    for (int step = 0; step < round; ++step) core->Step();
    core->AbortAll();
    for (const auto& sink : sinks) EXPECT_TRUE(sink->finished);
    Drain(*core);
    EXPECT_TRUE(core->idle());
  }
  for (int i = 0; i < kCount; ++i) {
    SCOPED_TRACE(i);
    const auto got = Add(*core, 100 + i, RequestOf(3, i, vocab));
    Drain(*core);
    ExpectSame(*got, *want[static_cast<size_t>(i)]);
  }
}

std::string NameOf(const testing::TestParamInfo<Subject>& subject) { return subject.param.name; }

INSTANTIATE_TEST_SUITE_P(Backends, Async, testing::ValuesIn(Subjects()), NameOf);

#ifndef FATHOM_ASYNC_ON_CUDA

std::unique_ptr<EngineCore> EngineOn(BehindBackend** made, std::optional<bool> async = {},
                                     int max_num_seqs = 5) {
  Subject subject;
  subject.make = [made] {
    auto backend = std::make_unique<BehindBackend>(Numerics::kOfficial);
    *made = backend.get();
    return Result<std::unique_ptr<Backend>>(std::move(backend));
  };
  LocalEngineOptions options = Options(subject, true);
  options.async_scheduling = async;
  options.max_num_seqs = max_num_seqs;
  return Engine(options);
}

GenerateRequest Plain(int64_t max_tokens, TokenId first = 5) {
  GenerateRequest request;
  request.prompt = {first, 8, 13};
  request.max_tokens = max_tokens;
  request.sampling.seed = 1;
  return request;
}

TEST(AsyncScheduling, BeginsAStepBeforeTheOneBeforeIsReceived) {
  BehindBackend* backend = nullptr;
  const auto core = EngineOn(&backend);
  EXPECT_TRUE(core->async_scheduling());  // where the backend can, unless it is told otherwise
  const auto sink = Add(*core, 1, Plain(4));
  Drain(*core);
  EXPECT_EQ(sink->tokens.size(), 4u);
  // No step behind the one that samples the last token that may come.
  EXPECT_EQ(backend->history, "bbrbrbrr");
  EXPECT_EQ(backend->num_placed, 3);
  EXPECT_EQ(core->stats().num_steps, 4);

  BehindBackend* waited = nullptr;
  const auto serial = EngineOn(&waited, false);
  EXPECT_FALSE(serial->async_scheduling());
  const auto same = Add(*serial, 1, Plain(4));
  Drain(*serial);
  EXPECT_EQ(waited->history, "bbbb");
  EXPECT_EQ(waited->num_placed, 0);
  ExpectSame(*sink, *same);
}

// What a constraint allows and what a penalty takes follows from the token before, which is known
// when the step is sampled, if not when it begins.
TEST(AsyncScheduling, HoldsForTokensThatDependOnTheOnesBefore) {
  GenerateRequest penalised = Plain(4);
  penalised.sampling.repetition_penalty = 1.5;
  GenerateRequest constrained = Plain(4);
  constrained.constraint = std::make_shared<HistoryConstraint>();
  GenerateRequest ranked = Plain(4);
  ranked.num_logprobs = 2;
  const std::pair<GenerateRequest, const char*> cases[] = {
      {penalised, "bbrbrbrr"}, {constrained, "bbrbrbrr"}, {ranked, "bbbb"}};
  for (const auto& [request, history] : cases) {
    BehindBackend* backend = nullptr;
    const auto core = EngineOn(&backend);
    const auto sink = Add(*core, 1, request);
    Drain(*core);
    EXPECT_EQ(sink->tokens.size(), 4u);
    EXPECT_EQ(backend->history, history);
  }
}

TEST(AsyncScheduling, AnEndThatNobodyForesawCostsOneStep) {
  BehindBackend* backend = nullptr;
  const auto core = EngineOn(&backend);
  GenerateRequest request = Plain(9);
  for (TokenId token = 0; token < core->info().vocab_size; ++token) {
    request.stop_token_ids.push_back(token);
  }
  const auto sink = Add(*core, 1, request);
  Drain(*core);
  EXPECT_EQ(sink->finish.reason, FinishReason::kStop);
  EXPECT_EQ(sink->tokens.size(), 1u);
  EXPECT_EQ(backend->history, "bbrr");
}

// The requests of the step that failed and of the one behind it, and no others; nothing that they
// wrote is found by later ones.
TEST(AsyncScheduling, AFailureThatComesToLightLater) {
  BehindBackend* backend = nullptr;
  const auto core = EngineOn(&backend, {}, /*max_num_seqs=*/2);
  const int vocab = core->info().vocab_size;
  const auto first = Add(*core, 1, Plain(9));
  const auto second = Add(*core, 2, Plain(9, 6));
  const auto waiting = Add(*core, 5, Plain(3, 7));
  core->Step();
  core->Step();
  EXPECT_EQ(first->tokens.size(), 1u);
  backend->fail_receive = Internal("the device broke down");
  core->Step();
  for (const auto& sink : {first, second}) {
    EXPECT_TRUE(sink->finished);
    EXPECT_EQ(sink->finish.reason, FinishReason::kError);
    EXPECT_THAT(sink->finish.error.message(), HasSubstr("broke down"));
    EXPECT_EQ(sink->tokens.size(), 1u);
  }
  EXPECT_FALSE(waiting->finished);
  Drain(*core);
  const auto got = Add(*core, 3, RequestOf(1, 2, vocab));
  const auto prompt_again = Add(*core, 4, Plain(9));
  Drain(*core);
  EXPECT_EQ(prompt_again->finish.cached_tokens, 0);
  BehindBackend* other = nullptr;
  const auto plain = EngineOn(&other, false);
  const auto want = Add(*plain, 3, RequestOf(1, 2, vocab));
  const auto want_again = Add(*plain, 4, Plain(9));
  Drain(*plain);
  ExpectSame(*got, *want);
  ExpectSame(*prompt_again, *want_again);
  const auto want_waiting = Add(*plain, 5, Plain(3, 7));
  Drain(*plain);
  ExpectSame(*waiting, *want_waiting);
}

// The one before is fine, and so are those of its requests that are not in the one that failed.
TEST(AsyncScheduling, AStepThatFailsBehindOneThatDoesNot) {
  BehindBackend* backend = nullptr;
  const auto core = EngineOn(&backend);
  const auto both = Add(*core, 1, Plain(9));
  const auto before = Add(*core, 2, Plain(1, 6));
  core->Step();
  backend->fail_begin_receive = Internal("nothing comes back");
  core->Step();
  EXPECT_EQ(before->finish.reason, FinishReason::kLength);
  EXPECT_EQ(before->tokens.size(), 1u);
  EXPECT_EQ(both->finish.reason, FinishReason::kError);
  EXPECT_THAT(both->finish.error.message(), HasSubstr("nothing comes back"));
  EXPECT_EQ(both->tokens.size(), 1u);
  EXPECT_TRUE(core->idle());
  const auto later = Add(*core, 3, Plain(4));
  Drain(*core);
  EXPECT_EQ(later->finish.reason, FinishReason::kLength);
  EXPECT_THAT(later->tokens, testing::Contains(both->tokens.front()));
}

// Requests lose their memory while a token of theirs is on its way: answers that outgrow what they
// were admitted into.
TEST(AsyncScheduling, MemoryThatRunsOutMeanwhile) {
  if (kSlow) GTEST_SKIP() << "many steps";
  constexpr int kCount = 16;
  LocalEngineOptions options;
  options.backend = "reference";
  options.async_scheduling = false;
  options.max_model_len = 256;
  options.max_num_seqs = kCount;
  options.cache_budget.bytes = int64_t{64} << 20;
  const auto plain = Engine(options);
  ASSERT_NE(plain, nullptr);
  const CachePlanner& planner = plain->cache().planner();
  options.async_scheduling = true;
  options.cache_budget.bytes = planner.BytesFor(1, 256) + planner.slab_bytes();
  const auto small = Engine(options);
  ASSERT_NE(small, nullptr);
  std::vector<std::shared_ptr<Sink>> got, want;
  for (int i = 0; i < kCount; ++i) {
    // Admitted with a block or two of each class, they end with the windows' many.
    GenerateRequest request = Plain(70 + i, static_cast<TokenId>(20 + i));
    request.num_logprobs = 0;
    request.ignore_eos = true;
    got.push_back(Add(*small, i, request));
    // Of some: more would take longer than they are worth.
    if (i % 4 == 0) want.push_back(Add(*plain, i, request));
  }
  Drain(*small);
  Drain(*plain);
  EXPECT_GT(small->stats().num_preemptions, 0);
  for (size_t i = 0; i < want.size(); ++i) ExpectSame(*got[4 * i], *want[i]);
}

TEST(AsyncScheduling, IsRefusedWhereItCannotBe) {
  LocalEngineOptions options;
  options.async_scheduling = true;
  options.max_model_len = 256;
  options.cache_budget.bytes = int64_t{8} << 20;
  const auto cpu = EngineCore::Create(TinyA(), {}, options);
  ASSERT_FALSE(cpu.ok());
  EXPECT_EQ(cpu.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(cpu.status().message(), HasSubstr("--async-scheduling: tokens of the cpu backend"));

  Subject subject = {"behind", [] {
                       return Result<std::unique_ptr<Backend>>(
                           std::make_unique<BehindBackend>(Numerics::kOfficial));
                     }};
  options = Options(subject, true);
  options.record_expert_use = testing::TempDir() + "expert_use.json";
  const auto counting = EngineCore::Create(TinyA(), {}, options);
  ASSERT_FALSE(counting.ok());
  EXPECT_THAT(counting.status().message(), HasSubstr("--record-expert-use"));
}

TEST(Launch, RefusesWhatItCannotDo) {
  BehindBackend backend(Numerics::kOfficial);
  PlannedStep step(backend, 8);
  Model& model = step.model();
  const std::vector<int> wanted = {3, 7}, all = {0, 1}, one = {1};
  const std::vector<SampleRow> rows(2);
  std::vector<SampledToken> tokens(2);
  step.plan.logits_rows = wanted;
  const auto refused = [](const Status& status, const char* what) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(what));
  };
  refused(model.Collect(tokens), "no step");
  refused(model.LaunchSampling({all, rows, {}}), "no step");
  // Nothing has been launched that rows could be of.
  const TokenSource from_nothing[] = {{0, 0}};
  step.plan.token_sources = from_nothing;
  refused(model.Launch(step.plan), "token_sources");
  step.plan.token_sources = {};
  // A row whose logits would be the host's, and settings that are none.
  ASSERT_TRUE(model.Launch(step.plan).ok());
  refused(model.LaunchSampling({one, std::span(rows).first(1), {}}), "all rows are sampled");
  ASSERT_TRUE(model.Launch(step.plan).ok());
  std::vector<SampleRow> wrong = rows;
  wrong[1].top_p = 2.0;
  refused(model.LaunchSampling({all, wrong, {}}), "top_p");
  EXPECT_EQ(model.num_launched(), 0);

  ASSERT_TRUE(model.Launch(step.plan).ok());
  refused(model.Launch(step.plan), "not sampled yet");
  std::vector<float> logits(2 * static_cast<size_t>(step.vocab()));
  refused(model.Forward(step.plan, {logits.data(), 2, step.vocab()}), "not sampled yet");
  ASSERT_TRUE(model.LaunchSampling({all, rows, {}}).ok());
  for (const TokenSource source : {TokenSource{8, 0}, {-1, 0}, {0, 2}, {0, -1}}) {
    step.plan.token_sources = {&source, 1};
    refused(model.Launch(step.plan), "token_sources");
  }
  const TokenSource sources[] = {{0, 1}, {5, 0}};
  step.plan.token_sources = sources;
  ASSERT_TRUE(model.Launch(step.plan).ok());
  ASSERT_TRUE(model.LaunchSampling({all, rows, {}}).ok());
  EXPECT_EQ(model.num_launched(), 2);
  refused(model.Launch(step.plan), "under way");
  refused(model.Collect(std::span(tokens).first(1)), "room for 1");
  ASSERT_TRUE(model.Collect(tokens).ok());
  EXPECT_EQ(model.num_launched(), 0);

  step.plan.token_sources = {};
  ASSERT_TRUE(model.Launch(step.plan).ok());
  model.DropLaunched();
  ASSERT_TRUE(model.Forward(step.plan, {logits.data(), 2, step.vocab()}).ok());
  ASSERT_TRUE(model.CountExpertUse().ok());
  refused(model.Launch(step.plan), "counted");
}

#endif

}  // namespace
}  // namespace fathom
