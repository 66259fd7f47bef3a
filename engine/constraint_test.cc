// Requests with a constraint: what the engine makes of it, whatever else it does meanwhile.
#include <gtest/gtest.h>

#include <map>

#include "engine/engine_core.h"
#include "engine/test_constraints.h"

namespace fathom {
namespace {

struct Recorder final : RequestSink {
  void OnToken(const TokenEvent& event) override { tokens.push_back(event.token); }
  void OnFinish(const FinishEvent& event) override { finish = event; }
  std::vector<TokenId> tokens;
  FinishEvent finish;
};

std::unique_ptr<EngineCore> NewCore(int max_batched_tokens) {
  auto checkpoint = Checkpoint::Open(FATHOM_SOURCE_DIR "/models/fathom-nano");
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  LocalEngineOptions options;
  options.max_model_len = 1024;
  options.num_threads = 1;
  options.max_batched_tokens = max_batched_tokens;
  options.max_num_seqs = std::min(8, max_batched_tokens);
  auto core = EngineCore::Create(std::move(checkpoint).value(), {1}, options);
  EXPECT_TRUE(core.ok()) << core.status().ToString();
  return std::move(core).value();
}

GenerateRequest Request(int i) {
  GenerateRequest request;
  for (int t = 0; t < 5 + 40 * i; ++t) request.prompt.push_back(3 + (t * 7 + i * 131) % 2000);
  request.sampling.temperature = i % 2;
  request.sampling.seed = i;
  request.max_tokens = 24;
  request.ignore_eos = true;
  request.constraint = std::make_shared<HistoryConstraint>();
  return request;
}

std::shared_ptr<Recorder> Add(EngineCore& core, RequestId id, GenerateRequest request) {
  auto sink = std::make_shared<Recorder>();
  auto job = core.Prepare(id, std::move(request), sink);
  EXPECT_TRUE(job.ok()) << job.status().ToString();
  core.Add(std::move(job).value());
  return sink;
}

TEST(EngineConstraint, GivesTheSameAnswerInBatchesChunksAndAfterPreemption) {
  constexpr int kRequests = 5;
  std::map<int, std::vector<TokenId>> alone;
  {
    const auto core = NewCore(512);
    for (int i = 0; i < kRequests; ++i) {
      const auto sink = Add(*core, i + 1, Request(i));
      while (core->Step()) {
      }
      alone[i] = sink->tokens;
      ASSERT_EQ(alone[i].size(), 24u);
      HistoryConstraint check;
      for (const TokenId token : alone[i]) {
        ASSERT_TRUE(check.Allows(token));
        check.Accept(token);
      }
    }
  }
  const auto core = NewCore(16);
  std::vector<std::shared_ptr<Recorder>> sinks;
  for (int i = 0; i < kRequests; ++i) sinks.push_back(Add(*core, i + 1, Request(i)));
  for (int step = 0; core->Step(); ++step) {
    if (step % 11 == 5) core->Preempt(1 + step % kRequests);
  }
  int preemptions = 0;
  for (int i = 0; i < kRequests; ++i) {
    EXPECT_EQ(sinks[static_cast<size_t>(i)]->tokens, alone[i]) << i;
    preemptions += sinks[static_cast<size_t>(i)]->finish.timings.num_preemptions;
  }
  EXPECT_GT(preemptions, 0);
}

TEST(EngineConstraint, IsToldEveryTokenAndEndsTheAnswerBeforeMinTokensIfItMust) {
  const auto core = NewCore(64);
  GenerateRequest request = Request(0);
  request.ignore_eos = false;
  request.min_tokens = 10;
  const auto constraint =
      std::make_shared<ListConstraint>(std::vector<std::vector<TokenId>>{{70, 1}, {71, 72}, {1}});
  request.constraint = constraint;
  const auto sink = Add(*core, 1, std::move(request));
  while (core->Step()) {
  }
  ASSERT_EQ(sink->tokens.size(), 3u);
  EXPECT_EQ(sink->tokens[0], 70) << "the end token is masked while there is something else";
  EXPECT_EQ(sink->tokens[2], 1);
  EXPECT_EQ(sink->finish.reason, FinishReason::kStop);
  EXPECT_EQ(sink->finish.stop_token, 1);
  EXPECT_EQ(constraint->accepted(), sink->tokens);
}

}  // namespace
}  // namespace fathom
