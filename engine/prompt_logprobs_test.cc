// Log-probabilities of prompts: those of the logits that `fathom logits` prints, bit for bit,
// whatever the engine does meanwhile.
#include <gtest/gtest.h>

#include <bit>

#include "engine/engine_core.h"
#include "engine/sequence_runner.h"

namespace fathom {
namespace {

constexpr int kTop = 3;

struct Recorder final : RequestSink {
  void OnPromptLogprobs(std::span<const TokenEvent> events) override {
    EXPECT_TRUE(tokens.empty()) << "before the first token";
    EXPECT_FALSE(events.empty());
    ++num_calls;
    prompt.insert(prompt.end(), events.begin(), events.end());
  }
  void OnToken(const TokenEvent& event) override { tokens.push_back(event.token); }
  void OnFinish(const FinishEvent& event) override { finish = event; }
  std::vector<TokenEvent> prompt;
  std::vector<TokenId> tokens;
  int num_calls = 0;
  FinishEvent finish;
};

Checkpoint Nano() {
  auto checkpoint = Checkpoint::Open(FATHOM_SOURCE_DIR "/models/fathom-nano");
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  return std::move(checkpoint).value();
}

std::unique_ptr<EngineCore> NewCore(int max_batched_tokens) {
  LocalEngineOptions options;
  options.max_model_len = 1024;
  options.num_threads = 1;
  options.max_batched_tokens = max_batched_tokens;
  options.max_num_seqs = std::min(8, max_batched_tokens);
  auto core = EngineCore::Create(Nano(), {1}, options);
  EXPECT_TRUE(core.ok()) << core.status().ToString();
  return std::move(core).value();
}

GenerateRequest Request(int i, int length) {
  GenerateRequest request;
  for (int t = 0; t < length; ++t) request.prompt.push_back(3 + (t * 7 + i * 131) % 2000);
  request.sampling.temperature = 0;
  request.max_tokens = 4;
  request.ignore_eos = true;
  request.num_prompt_logprobs = kTop;
  return request;
}

std::shared_ptr<Recorder> Add(EngineCore& core, RequestId id, GenerateRequest request) {
  auto sink = std::make_shared<Recorder>();
  auto job = core.Prepare(id, std::move(request), sink);
  EXPECT_TRUE(job.ok()) << job.status().ToString();
  core.Add(std::move(job).value());
  return sink;
}

// By the way of `fathom logits`: all rows in one step.
std::vector<TokenEvent> Want(const std::vector<TokenId>& prompt) {
  const Checkpoint checkpoint = Nano();
  auto backend = MakeBackend("cpu", Numerics::kOfficial, 2);
  const auto rows = static_cast<int>(prompt.size());
  auto model = Model::Create(checkpoint, **backend, rows, 1024);
  auto runner = SequenceRunner::Create(**model, Numerics::kOfficial, 1024);
  const auto vocab = static_cast<size_t>((*model)->config().vocab_size);
  std::vector<float> logits(prompt.size() * vocab);
  EXPECT_TRUE((*runner)->Step(prompt, SequenceRunner::Logits::kAll, logits).ok());
  SampleScratch scratch(static_cast<int>(vocab));
  std::vector<TokenEvent> events;
  for (size_t i = 1; i < prompt.size(); ++i) {
    events.push_back(
        LogprobsOf(std::span(logits).subspan((i - 1) * vocab, vocab), prompt[i], kTop, scratch));
  }
  return events;
}

void ExpectSame(const std::vector<TokenEvent>& got, const std::vector<TokenEvent>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(got[i].token, want[i].token) << i;
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i].logprob), std::bit_cast<uint32_t>(want[i].logprob))
        << i;
    ASSERT_EQ(got[i].top.size(), static_cast<size_t>(kTop));
    for (size_t n = 0; n < kTop; ++n) {
      ASSERT_EQ(got[i].top[n].token, want[i].top[n].token);
      ASSERT_EQ(std::bit_cast<uint32_t>(got[i].top[n].logprob),
                std::bit_cast<uint32_t>(want[i].top[n].logprob));
    }
  }
}

TEST(PromptLogprobs, AreThoseOfTheLogitsWhateverElseRuns) {
  constexpr int kLengths[] = {2, 3, 64, 65, 66, 180};
  // All prompts begin alike, so the longest one tells of the others.
  const std::vector<TokenEvent> want = Want(Request(0, kLengths[5]).prompt);
  for (const int max_batched_tokens : {100, 17}) {
    const auto core = NewCore(max_batched_tokens);
    std::vector<std::shared_ptr<Recorder>> sinks;
    RequestId id = 0;
    for (const int length : kLengths) sinks.push_back(Add(*core, ++id, Request(0, length)));
    GenerateRequest without = Request(0, 90);
    without.num_prompt_logprobs = -1;
    const auto plain = Add(*core, ++id, without);
    for (int step = 0; core->Step(); ++step) {
      // In the middle of prompts that were partly told. Not for ever: they begin again each time.
      if (step < 30 && step % 3 == 2) core->Preempt(1 + step % 6);
    }
    int preemptions = 0;
    for (size_t i = 0; i < sinks.size(); ++i) {
      SCOPED_TRACE(std::to_string(kLengths[i]) + " tokens, steps of " +
                   std::to_string(max_batched_tokens));
      ExpectSame(sinks[i]->prompt, {want.begin(), want.begin() + kLengths[i] - 1});
      EXPECT_EQ(sinks[i]->tokens.size(), 4u);
      EXPECT_EQ(sinks[i]->finish.cached_tokens, 0);
      preemptions += sinks[i]->finish.timings.num_preemptions;
    }
    EXPECT_GT(preemptions, 0);
    EXPECT_GT(sinks[5]->num_calls, 1) << "longer than what a step may tell";
    EXPECT_TRUE(plain->prompt.empty());
  }
}

TEST(PromptLogprobs, ReadNoCachedPrefixButLeaveOne) {
  const auto core = NewCore(512);
  const auto run = [&core](RequestId id, int num_prompt_logprobs) {
    GenerateRequest request = Request(1, 130);
    request.num_prompt_logprobs = num_prompt_logprobs;
    const auto sink = Add(*core, id, std::move(request));
    while (core->Step()) {
    }
    return sink;
  };
  const auto first = run(1, kTop);
  const auto again = run(2, kTop);
  EXPECT_EQ(again->finish.cached_tokens, 0);
  EXPECT_EQ(again->finish.prefix_miss, PrefixMiss::kDisabled);
  ExpectSame(again->prompt, first->prompt);
  const EngineStats before = core->stats();
  EXPECT_EQ(before.prefix_cache_queries, 0);
  EXPECT_EQ(run(3, -1)->finish.cached_tokens, 129);
  EXPECT_EQ(run(4, 0)->prompt.at(128).top.size(), 0u);
}

TEST(PromptLogprobs, OfOneTokenAreNone) {
  const auto core = NewCore(16);
  const auto sink = Add(*core, 1, Request(2, 1));
  while (core->Step()) {
  }
  EXPECT_EQ(sink->num_calls, 0);
  EXPECT_EQ(sink->tokens.size(), 4u);
}

}  // namespace
}  // namespace fathom
