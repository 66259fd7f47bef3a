#include "bench/load/load_result.h"

#include <gtest/gtest.h>

namespace fathom::load {
namespace {

using std::chrono::milliseconds;

Outcome Answer(int first_ms, int last_ms, int end_ms, int64_t tokens) {
  Outcome outcome;
  outcome.status = 200;
  outcome.first_chunk = outcome.start + milliseconds(first_ms);
  outcome.last_chunk = outcome.start + milliseconds(last_ms);
  outcome.end = outcome.start + milliseconds(end_ms);
  outcome.usage = {true, 100, 60, tokens};
  outcome.num_chunks = 3;
  return outcome;
}

TEST(LoadResult, TimesAndTokensAreThoseOfAnswers) {
  LoadResult result;
  result.Add(Answer(10, 110, 120, 11));
  result.Add(Answer(30, 30, 40, 1));  // one token has no time between tokens
  Outcome failed = Answer(1, 2, 3, 99);
  failed.kind = Outcome::Kind::kDisconnected;
  result.Add(failed);
  EXPECT_EQ(result.num_ok, 2);
  EXPECT_EQ(result.num_failed, 1);
  EXPECT_EQ(result.prompt_tokens, 200);
  EXPECT_EQ(result.cached_tokens, 120);
  EXPECT_EQ(result.output_tokens, 12);
  EXPECT_EQ(result.num_chunks, 9);
  EXPECT_DOUBLE_EQ(result.first_token.mean_ms(), 20.0);
  EXPECT_EQ(result.token_times.count(), 1);
  EXPECT_DOUBLE_EQ(result.token_times.mean_ms(), 10.0);
  EXPECT_DOUBLE_EQ(result.whole.mean_ms(), 80.0);
}

TEST(LoadResult, WithoutUsageChunksCount) {
  LoadResult result;
  Outcome outcome = Answer(10, 30, 30, 0);
  outcome.usage = {};
  result.Add(outcome);
  EXPECT_EQ(result.output_tokens, 3);
  EXPECT_EQ(result.num_without_usage, 1);
  EXPECT_DOUBLE_EQ(result.token_times.mean_ms(), 10.0);
}

TEST(LoadResult, AnAnswerWithoutContentHasNoFirstToken) {
  LoadResult result;
  Outcome outcome;
  outcome.end = outcome.start + milliseconds(5);
  result.Add(outcome);
  EXPECT_EQ(result.num_ok, 1);
  EXPECT_EQ(result.first_token.count(), 0);
  EXPECT_EQ(result.whole.count(), 1);
}

TEST(LoadResult, ErrorsAreCountedByKindWithTheirFirstMessage) {
  LoadResult result;
  for (const char* message : {"full", "still full"}) {
    Outcome outcome;
    outcome.kind = Outcome::Kind::kStatus;
    outcome.status = 503;
    outcome.message = message;
    result.Add(outcome);
  }
  Outcome outcome;
  outcome.kind = Outcome::Kind::kConnect;
  result.Add(outcome);
  outcome.kind = Outcome::Kind::kCancelled;
  result.Add(outcome);
  EXPECT_EQ(result.num_failed, 3);
  EXPECT_EQ(result.num_cancelled, 1);
  EXPECT_EQ(result.errors.at("status 503").count, 2);
  EXPECT_EQ(result.errors.at("status 503").example, "full");
  EXPECT_EQ(result.errors.at("connect").count, 1);
  EXPECT_EQ(result.by_status, (std::map<int, int64_t>{{0, 1}, {503, 2}}));
}

}  // namespace
}  // namespace fathom::load
