// Nothing on a token's path allocates: this program counts what operator new gives out while
// answers and chunks of prompts are computed.
#include <gtest/gtest.h>

#include "base/test_allocations.h"
#include "engine/engine_core.h"
#include "engine/test_constraints.h"

namespace fathom {
namespace {

class CountingSink final : public RequestSink {
 public:
  void OnToken(const TokenEvent&) override { ++tokens; }
  void OnFinish(const FinishEvent&) override { finished = true; }
  int tokens = 0;
  bool finished = false;
};

TEST(EngineAllocations, StepsOfAnswersAndPromptsMakeNone) {
  auto checkpoint = Checkpoint::Open(FATHOM_SOURCE_DIR "/models/fathom-nano");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  LocalEngineOptions options;
  options.num_threads = 2;
  options.max_model_len = 4096;
  options.max_batched_tokens = 300;
  options.max_num_seqs = 16;
  options.cache_budget.bytes = int64_t{256} << 20;
  auto core = EngineCore::Create(std::move(checkpoint).value(), {}, options);
  ASSERT_TRUE(core.ok()) << core.status().ToString();
  std::vector<std::shared_ptr<CountingSink>> sinks;
  for (int i = 0; i < 8; ++i) {
    GenerateRequest request;
    // The last one's prompt is cut into chunks beside the others' answers.
    const int length = i == 7 ? 3000 : 20 + 31 * i;
    for (int t = 0; t < length; ++t) request.prompt.push_back(3 + (t * 7 + i * 131) % 2000);
    request.max_tokens = 600;
    request.ignore_eos = true;
    request.sampling.seed = i;
    request.sampling.temperature = i % 2;
    request.sampling.top_p = i % 4 == 1 ? 0.9 : 1.0;
    if (i % 3 == 1) request.constraint = std::make_shared<HistoryConstraint>();
    request.sampling.frequency_penalty = i % 3 == 0 ? 0.5 : 0.0;
    sinks.push_back(std::make_shared<CountingSink>());
    auto job = (*core)->Prepare(i + 1, std::move(request), sinks.back());
    ASSERT_TRUE(job.ok()) << job.status().ToString();
    (*core)->Add(std::move(job).value());
  }
  // Every kind of step once: a chunk, answers, both.
  ASSERT_TRUE((*core)->Step());
  ASSERT_TRUE((*core)->Step());
  ASSERT_TRUE((*core)->Step());
  const int64_t before = num_allocations;
  // Over blocks of 256 positions and windows of all classes, with resume points on the way.
  for (int step = 0; step < 280; ++step) ASSERT_TRUE((*core)->Step());
  EXPECT_EQ(num_allocations - before, 0);
  for (const auto& sink : sinks) {
    EXPECT_GT(sink->tokens, 200);
    EXPECT_FALSE(sink->finished);
  }
}

}  // namespace
}  // namespace fathom
