// DirectBatch computes what a sequence alone computes.
#include "bench/direct_batch.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "bench/workload.h"
#include "engine/sequence_runner.h"

namespace fathom::bench {
namespace {

TEST(DirectBatch, LogitsAreThoseOfEachSequenceAlone) {
  auto checkpoint = Checkpoint::Open(FATHOM_SOURCE_DIR "/models/fathom-nano");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  const int vocab = checkpoint->config().vocab_size;
  LocalEngineOptions options;
  options.num_threads = 2;
  options.max_batched_tokens = 96;
  auto batch = DirectBatch::Create(*checkpoint, options, 3, 300);
  ASSERT_TRUE(batch.ok()) << batch.status().ToString();
  // One of two tokens, one shorter than a chunk, one of several.
  const std::vector<std::vector<TokenId>> prompts = {
      SyntheticTokens(1, 2, vocab), SyntheticTokens(2, 90, vocab), SyntheticTokens(3, 290, vocab)};
  const std::vector<TokenId> next = {40, 41, 42};
  std::vector<std::vector<float>> got;
  // A second time, as after another run.
  for (int run = 0; run < 2; ++run) {
    ASSERT_TRUE((*batch)->Start(prompts).ok());
    got.clear();
    for (int step = 0; step < 3; ++step) {
      double ms = -1.0;
      ASSERT_TRUE((*batch)->Step(&ms).ok());
      EXPECT_GE(ms, 0.0);
      got.emplace_back((*batch)->logits().begin(), (*batch)->logits().end());
      (*batch)->Append(next);
    }
  }

  auto backend = MakeBackend("cpu", Numerics::kOfficial, 1);
  ASSERT_TRUE(backend.ok());
  auto model = Model::Create(*checkpoint, **backend, 300, 300);
  ASSERT_TRUE(model.ok());
  for (size_t i = 0; i < prompts.size(); ++i) {
    auto runner = SequenceRunner::Create(**model, Numerics::kOfficial, 300);
    ASSERT_TRUE(runner.ok());
    std::vector<float> want(static_cast<size_t>(vocab));
    std::vector<TokenId> tokens = prompts[i];
    for (size_t step = 0; step < got.size(); ++step) {
      ASSERT_TRUE((*runner)->Step(tokens, SequenceRunner::Logits::kLast, want).ok());
      EXPECT_TRUE(std::equal(want.begin(), want.end(),
                             got[step].begin() + static_cast<ptrdiff_t>(i * want.size())))
          << "sequence " << i << ", step " << step;
      tokens = {next[i]};
    }
  }
}

TEST(DirectBatch, WhatItHasNoRoomForIsRefused) {
  auto checkpoint = Checkpoint::Open(FATHOM_SOURCE_DIR "/models/fathom-nano");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  LocalEngineOptions options;
  options.num_threads = 1;
  auto batch = DirectBatch::Create(*checkpoint, options, 1, 300);
  ASSERT_TRUE(batch.ok()) << batch.status().ToString();
  EXPECT_FALSE((*batch)->Start({{1, 2}, {3, 4}}).ok());
  EXPECT_FALSE((*batch)->Start({{1}}).ok());
}

}  // namespace
}  // namespace fathom::bench
