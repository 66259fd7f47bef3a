#include "replay/replay_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/test_constraints.h"
#include "replay/test_replay.h"

namespace fathom {
namespace {

using ::testing::ElementsAre;
using namespace replay_testing;  // NOLINT(google-build-using-namespace)
using Ids = std::vector<TokenId>;

struct Outcome {
  std::vector<TokenEvent> events;
  FinishEvent finish;
  bool stalled = false;

  [[nodiscard]] Ids tokens() const {
    Ids ids;
    for (const TokenEvent& event : events) ids.push_back(event.token);
    return ids;
  }
};

// Runs the first answer of a script for a request.
Outcome Play(std::string_view json, const GenerateRequest& request = Ask({0, 75})) {
  Tokenizer tokenizer = Nano();
  const ReplayScript script = Script(json, tokenizer);
  const EngineInfo info = InfoFor(tokenizer);
  ReplayStream stream(script, script.answers.at(0), request, info);
  Outcome run;
  std::vector<uint64_t> scratch;
  while (const auto event = stream.Next(scratch)) run.events.push_back(*event);
  run.stalled = stream.is_stalled();
  EXPECT_NE(run.stalled, stream.finish().has_value());
  if (stream.finish()) run.finish = *stream.finish();
  return run;
}

TEST(ReplayStream, EndsAsAModelDoes) {
  Outcome run = Play(R"([{"tokens": [70, 71]}])");
  EXPECT_THAT(run.tokens(), ElementsAre(70, 71, kEos));
  EXPECT_EQ(run.finish.reason, FinishReason::kStop);
  EXPECT_EQ(run.finish.stop_token, kEos);
  EXPECT_THAT(Play(R"([{"text": ""}])").tokens(), ElementsAre(kEos));

  run = Play(R"([{"tokens": [70, 71], "finish": "length"}])");
  EXPECT_THAT(run.tokens(), ElementsAre(70, 71));
  EXPECT_EQ(run.finish.reason, FinishReason::kLength);
  run = Play(R"([{"tokens": [70], "finish": "abort"}])");
  EXPECT_EQ(run.finish.reason, FinishReason::kAborted);

  run = Play(R"([{"tokens": [70, 71]}])", Ask({0}, 2));
  EXPECT_THAT(run.tokens(), ElementsAre(70, 71));
  EXPECT_EQ(run.finish.reason, FinishReason::kLength);
  run = Play(R"([{"tokens": [70, 71]}])", Ask({0}, 3));
  EXPECT_EQ(run.finish.reason, FinishReason::kStop) << "the end token is the third";

  run = Play(R"([{"tokens": [70, 71], "endless": true}])", Ask({0}, 5));
  EXPECT_THAT(run.tokens(), ElementsAre(70, 71, 70, 71, 70));
  EXPECT_EQ(run.finish.reason, FinishReason::kLength);
}

TEST(ReplayStream, ObeysEndAndStopTokensAsTheRequestSays) {
  GenerateRequest request = Ask({0}, 7);
  request.stop_token_ids = {72};
  Outcome run = Play(R"([{"tokens": [70, 72, 71]}])", request);
  EXPECT_THAT(run.tokens(), ElementsAre(70, 72));
  EXPECT_EQ(run.finish.stop_token, 72);

  request.min_tokens = 4;  // masks end and stop tokens: the answer goes around
  run = Play(R"([{"tokens": [70, 72, 71]}])", request);
  EXPECT_THAT(run.tokens(), ElementsAre(70, 71, 70, 71, kEos));

  request = Ask({0}, 7);
  request.ignore_eos = true;
  run = Play(R"([{"tokens": [70, 71]}])", request);
  EXPECT_THAT(run.tokens(), ElementsAre(70, 71, kEos, 70, 71, kEos, 70));
  EXPECT_EQ(run.finish.reason, FinishReason::kLength);

  request.ignore_eos = false;
  request.min_tokens = 3;
  run = Play(R"([{"text": ""}])", request);
  EXPECT_THAT(run.tokens(), ElementsAre(0, 0, 0, kEos)) << "something that does not end";
}

TEST(ReplayStream, StopTokensThatAreTheWholeVocabularyEndIt) {
  GenerateRequest request = Ask({0}, 7);
  request.min_tokens = 2;
  const int vocab_size = Nano().vocab_size();
  for (TokenId t = 0; t < vocab_size; ++t) request.stop_token_ids.push_back(t);
  EXPECT_EQ(Play(R"([{"tokens": [70]}])", request).finish.reason, FinishReason::kLength);
  request.constraint = std::make_shared<ListConstraint>(std::vector<Ids>{{70}});
  EXPECT_EQ(Play(R"([{"tokens": [70]}])", request).finish.reason, FinishReason::kLength);
}

TEST(ReplayStream, ReasonsOnlyWhereThePromptAsksForIt) {
  const Tokenizer tokenizer = Nano();
  const TokenId think = *tokenizer.FindAddedToken("<think>");
  const TokenId answer = *tokenizer.FindAddedToken("</think>");
  const char* script = R"([{"reasoning": "a", "tokens": [70], "times": 2}])";
  EXPECT_THAT(Play(script, Ask({0, answer})).tokens(), ElementsAre(70, kEos));
  const Ids thoughts = Play(script, Ask({0, think})).tokens();
  ASSERT_EQ(thoughts.size(), 4u);
  EXPECT_EQ(tokenizer.TokenBytes(thoughts[0]), "a");
  EXPECT_EQ(thoughts[1], answer);
  EXPECT_EQ(thoughts[2], 70);
}

TEST(ReplayStream, FailsAndStallsWhereTheScriptSays) {
  Outcome run = Play(R"([{"tokens": [70, 71, 72], "fail_after_tokens": 2,
                      "error_status": "data_loss", "error_message": "lost"}])");
  EXPECT_THAT(run.tokens(), ElementsAre(70, 71));
  EXPECT_EQ(run.finish.reason, FinishReason::kError);
  EXPECT_EQ(run.finish.error.code(), StatusCode::kDataLoss);
  EXPECT_EQ(run.finish.error.message(), "lost");
  run = Play(R"([{"tokens": [70], "fail_after_tokens": 0}])");
  EXPECT_TRUE(run.events.empty());
  EXPECT_EQ(run.finish.error.code(), StatusCode::kInternal);
  EXPECT_EQ(Play(R"([{"tokens": [70], "fail_after_tokens": 9}])").finish.reason,
            FinishReason::kStop);
  run = Play(R"([{"tokens": [70, 71], "stall_after_tokens": 1}])");
  EXPECT_TRUE(run.stalled);
  EXPECT_THAT(run.tokens(), ElementsAre(70));
}

TEST(ReplayStream, LeavesTheScriptWhereTheConstraintForbidsIt) {
  const auto constraint =
      std::make_shared<ListConstraint>(std::vector<Ids>{{70, 80}, {81, 82}, {83}, {kEos}});
  GenerateRequest request = Ask({0});
  request.constraint = constraint;
  EXPECT_THAT(Play(R"([{"tokens": [70, 82, 90, 91]}])", request).tokens(),
              ElementsAre(70, 82, 83, kEos));
  EXPECT_THAT(constraint->accepted(), ElementsAre(70, 82, 83, kEos));

  // The script ends, but the document does not.
  request.constraint = std::make_shared<ListConstraint>(std::vector<Ids>{{70}, {81}, {kEos}});
  EXPECT_THAT(Play(R"([{"tokens": [70]}])", request).tokens(), ElementsAre(70, 81, kEos));

  // What the constraint suggests may be an end token that min_tokens masks.
  request.constraint = std::make_shared<ListConstraint>(std::vector<Ids>{{kEos, 95}, {kEos}});
  request.min_tokens = 2;
  const Outcome run = Play(R"([{"tokens": [70]}])", request);
  EXPECT_THAT(run.tokens(), ElementsAre(95, kEos)) << "which yields where nothing else is allowed";
  EXPECT_EQ(run.finish.reason, FinishReason::kStop);
}

TEST(ReplayStream, LogprobsAndCachedTokensAreWhatTheScriptSays) {
  GenerateRequest request = Ask({0, 1, 2});
  request.num_logprobs = 2;
  const char* script = R"([{"tokens": [70], "logprob": -0.5, "cached_tokens": 2}])";
  Outcome run = Play(script, request);
  EXPECT_EQ(run.events.at(0).logprob, -0.5f);
  ASSERT_EQ(run.events[0].top.size(), 2u);
  EXPECT_EQ(run.events[0].top[0].token, 70);
  EXPECT_EQ(run.events[0].top[0].logprob, -0.5f);
  EXPECT_EQ(run.events[0].top[1].token, 71);
  EXPECT_EQ(run.events[0].top[1].logprob, -1.5f);
  EXPECT_EQ(run.events[0].cached_tokens, 2);
  EXPECT_EQ(run.finish.cached_tokens, 2);
  run = Play(R"([{"tokens": [70], "cached_tokens": 1000}])", Ask({0, 1, 2}));
  EXPECT_EQ(run.events.at(0).cached_tokens, 2) << "the last prompt token is always computed";
  EXPECT_EQ(run.events[0].logprob, 0.0f);
  EXPECT_TRUE(run.events[0].top.empty());
}

TEST(ReplayStream, PromptLogprobsComeOnceAndWithoutTheFirstToken) {
  Tokenizer tokenizer = Nano();
  const ReplayScript script =
      Script(R"([{"tokens": [70], "logprob": -0.5, "cached_tokens": 2}])", tokenizer);
  const EngineInfo info = InfoFor(tokenizer);
  GenerateRequest request = Ask({0, 80, 90});
  request.num_prompt_logprobs = 1;
  ReplayStream stream(script, script.answers[0], request, info);
  const std::vector<TokenEvent> events = stream.TakePromptLogprobs();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].token, 80);
  EXPECT_EQ(events[1].token, 90);
  EXPECT_EQ(events[1].logprob, -0.5f);
  ASSERT_EQ(events[1].top.size(), 1u);
  EXPECT_EQ(events[1].top[0].token, 90);
  EXPECT_TRUE(stream.TakePromptLogprobs().empty());
  EXPECT_EQ(stream.cached_tokens(), 0) << "no cached prefix is read";
  request.num_prompt_logprobs = -1;
  EXPECT_TRUE(ReplayStream(script, script.answers[0], request, info).TakePromptLogprobs().empty());
}

}  // namespace
}  // namespace fathom
