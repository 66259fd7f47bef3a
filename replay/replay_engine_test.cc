#include "replay/replay_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>

#include "replay/test_replay.h"

namespace fathom {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace replay_testing;  // NOLINT(google-build-using-namespace)
using Clock = std::chrono::steady_clock;

std::unique_ptr<ReplayEngine> NewEngine(std::string_view json, ReplayEngineOptions options = {}) {
  const auto tokenizer = std::make_shared<Tokenizer>(Nano());
  ReplayScript script = Script(json, *tokenizer);
  const bool priority = options.info.priority_scheduling;
  options.info = InfoFor(*tokenizer);
  options.info.priority_scheduling = priority;
  options.decode = [tokenizer](std::span<const TokenId> ids) {
    return tokenizer->Decode(ids, SpecialTokens::kKeep);
  };
  auto engine = ReplayEngine::Create(std::move(script), std::move(options));
  EXPECT_TRUE(engine.ok()) << engine.status().ToString();
  return std::move(engine).value();
}

std::shared_ptr<Recorder> Submit(ReplayEngine& engine, GenerateRequest request,
                                 RequestId* id = nullptr) {
  auto sink = std::make_shared<Recorder>();
  const auto submitted = engine.Submit(std::move(request), sink);
  EXPECT_TRUE(submitted.ok()) << submitted.status().ToString();
  if (submitted.ok() && id != nullptr) *id = *submitted;
  return sink;
}

std::vector<TokenId> Prompt(std::string_view text) {
  return Nano().Encode(text, AddedTokens::kMatch).value();
}

TEST(ReplayEngine, GivesTheScriptWhateverThePacing) {
  std::mt19937 random(7);
  std::string json = "[";
  std::vector<std::vector<TokenId>> want;
  for (int i = 0; i < 60; ++i) {
    std::vector<TokenId> tokens;
    std::string list;
    const size_t length = random() % 40;
    for (size_t t = 0; t < length; ++t) {
      tokens.push_back(static_cast<TokenId>(3 + random() % 2000));
      list += (t == 0 ? "" : ",") + std::to_string(tokens.back());
    }
    const auto delay = [&random] {
      return std::to_string(0.5 * static_cast<double>(random() % 3 * (random() % 4)));
    };
    json += (i == 0 ? "{" : ",{") + std::string("\"tokens\": [") + list +
            "], \"first_token_delay_ms\": " + delay() + ", \"token_delay_ms\": " + delay() +
            ", \"tokens_per_step\": " + std::to_string(1 + random() % 5) +
            (random() % 4 == 0 ? ", \"stall_after_tokens\": 3, \"stall_ms\": 2" : "") + "}";
    tokens.push_back(kEos);
    want.push_back(std::move(tokens));
  }
  ReplayEngineOptions options;
  options.max_num_seqs = 23;
  auto engine = NewEngine(json + "]", options);
  std::vector<std::shared_ptr<Recorder>> sinks;
  for (size_t i = 0; i < want.size(); ++i) sinks.push_back(Submit(*engine, Ask({0, 75})));
  int64_t num_tokens = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(sinks[i]->Wait().reason, FinishReason::kStop);
    EXPECT_EQ(sinks[i]->tokens(), want[i]) << i;
    num_tokens += static_cast<int64_t>(want[i].size());
  }
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.generation_tokens, num_tokens);
  EXPECT_EQ(stats.prompt_tokens_computed, 120);
  EXPECT_EQ(stats.num_running, 0);
  EXPECT_EQ(stats.num_waiting, 0);
}

TEST(ReplayEngine, AnswersComeInOrderAndThenAsRepeatSays) {
  const auto first_tokens = [](const std::string& repeat, int requests) {
    auto engine = NewEngine("{\"repeat\": \"" + repeat +
                            R"(", "answers": [{"tokens": [70]}, {"tokens": [71], "times": 2}]})");
    std::vector<TokenId> ids;
    for (int i = 0; i < requests; ++i) {
      auto sink = std::make_shared<Recorder>();
      const auto id = engine->Submit(Ask({0}), sink);
      if (!id.ok()) {
        EXPECT_EQ(id.status().code(), StatusCode::kUnavailable);
        EXPECT_THAT(id.status().message(), HasSubstr("no answer left"));
        ids.push_back(-1);
        continue;
      }
      sink->Wait();
      ids.push_back(sink->tokens().at(0));
    }
    return ids;
  };
  EXPECT_THAT(first_tokens("last", 5), ElementsAre(70, 71, 71, 71, 71));
  EXPECT_THAT(first_tokens("cycle", 7), ElementsAre(70, 71, 71, 70, 71, 71, 70));
  EXPECT_THAT(first_tokens("refuse", 5), ElementsAre(70, 71, 71, -1, -1));
}

TEST(ReplayEngine, ConditionsPickTheAnswerByThePrompt) {
  auto engine = NewEngine(
      R"([{"tokens": [70]},
          {"tokens": [71], "when": {"contains": "<tool_result>"}},
          {"tokens": [72], "when": {"contains": "fish", "ends_with": "<think>"}, "times": 1}])");
  const auto ask = [&engine](std::string_view prompt) {
    const auto sink = Submit(*engine, Ask(Prompt(prompt)));
    sink->Wait();
    return sink->tokens().at(0);
  };
  EXPECT_EQ(ask("catch a fish"), 70);
  EXPECT_EQ(ask("fish<think>"), 72);
  EXPECT_EQ(ask("fish<think>"), 70) << "its one time is over";
  EXPECT_EQ(ask("a <tool_result>7</tool_result>"), 71);
  EXPECT_EQ(ask("a <tool_result>7</tool_result>"), 71);
}

TEST(ReplayEngine, AbortEndsWaitingDelayedAndStalledRequests) {
  ReplayEngineOptions options;
  options.max_num_seqs = 3;
  auto engine = NewEngine(
      R"([{"tokens": [70], "first_token_delay_ms": 86400000},
          {"tokens": [70, 71], "stall_after_tokens": 1},
          {"tokens": [70], "endless": true},
          {"tokens": [73]}])",
      options);
  RequestId ids[4] = {};
  std::vector<std::shared_ptr<Recorder>> sinks;
  for (RequestId& id : ids) sinks.push_back(Submit(*engine, Ask({0}, 1'000'000), &id));
  sinks[1]->WaitForTokens(1);
  sinks[2]->WaitForTokens(10);
  EXPECT_EQ(engine->num_running(), 3);
  EXPECT_EQ(engine->num_waiting(), 1);
  engine->Abort(ids[3]);
  EXPECT_EQ(sinks[3]->Wait().reason, FinishReason::kAborted);
  EXPECT_TRUE(sinks[3]->tokens().empty());
  engine->Abort(ids[0]);
  EXPECT_EQ(sinks[0]->Wait().reason, FinishReason::kAborted);
  engine->EndAt(ids[1], 1);
  EXPECT_EQ(sinks[1]->Wait().reason, FinishReason::kAborted);
  EXPECT_THAT(sinks[1]->tokens(), ElementsAre(70));
  engine->Abort(ids[2]);
  EXPECT_EQ(sinks[2]->Wait().reason, FinishReason::kAborted);
  engine->Abort(ids[2]);  // over: ignored
  engine->Abort(4711);
  EXPECT_EQ(engine->num_running(), 0);
  const auto next = Submit(*engine, Ask({0}));
  EXPECT_EQ(next->Wait().reason, FinishReason::kStop);
}

TEST(ReplayEngine, DestructionFinishesEveryRequest) {
  std::vector<std::shared_ptr<Recorder>> sinks;
  {
    ReplayEngineOptions options;
    options.max_num_seqs = 2;
    auto engine = NewEngine(R"([{"tokens": [70], "stall_after_tokens": 0}])", options);
    for (int i = 0; i < 5; ++i) sinks.push_back(Submit(*engine, Ask({0})));
  }
  for (const auto& sink : sinks) EXPECT_EQ(sink->Wait().reason, FinishReason::kAborted);
}

TEST(ReplayEngine, DelaysAreKept) {
  auto engine =
      NewEngine(R"([{"tokens": [70, 71, 72], "first_token_delay_ms": 40, "token_delay_ms": 20}])");
  const auto begin = Clock::now();
  const auto sink = Submit(*engine, Ask({0}));
  const FinishEvent finish = sink->Wait();
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(40 + 3 * 20));
  const RequestTimings& t = finish.timings;
  EXPECT_LE(t.arrival, t.first_scheduled);
  EXPECT_GE(t.first_token - t.first_scheduled, std::chrono::milliseconds(40));
  EXPECT_GE(t.last_token - t.first_token, std::chrono::milliseconds(60 - 20));
}

TEST(ReplayEngine, PriorityDecidesWhoWaitsLess) {
  ReplayEngineOptions options;
  options.max_num_seqs = 1;
  options.info.priority_scheduling = true;
  auto engine = NewEngine(R"([{"tokens": [70], "endless": true}, {"tokens": [71, 72]}])", options);
  RequestId first = 0;
  const auto running = Submit(*engine, Ask({0}, 1'000'000), &first);
  running->WaitForTokens(1);
  GenerateRequest late = Ask({0});
  late.priority = 5;
  const auto less_urgent = Submit(*engine, late);
  late.priority = -5;
  const auto urgent = Submit(*engine, late);
  engine->Abort(first);
  const FinishEvent a = urgent->Wait();
  const FinishEvent b = less_urgent->Wait();
  EXPECT_LE(a.timings.last_token, b.timings.first_token);
}

TEST(ReplayEngine, RefusesAsTheScriptSaysAndAsAnyEngineWould) {
  ReplayEngineOptions options;
  options.max_num_seqs = 1;
  options.max_queued_requests = 1;
  auto engine = NewEngine(
      R"([{"submit_error": "queue_full"}, {"submit_error": "too_long"},
          {"submit_error": "shutting_down"},
          {"submit_error": "internal", "error_status": "out_of_memory", "error_message": "no"},
          {"tokens": [70], "stall_after_tokens": 0, "cached_tokens": 1}])",
      options);
  const auto refusal = [&engine](GenerateRequest request) {
    const auto id = engine->Submit(std::move(request), std::make_shared<Recorder>());
    EXPECT_FALSE(id.ok());
    return id.ok() ? Status() : id.status();
  };
  GenerateRequest bad = Ask({0});
  bad.max_tokens = 0;
  EXPECT_THAT(refusal(bad).message(), HasSubstr("max_tokens")) << "takes no answer";
  EXPECT_EQ(refusal(Ask({0})).code(), StatusCode::kUnavailable);
  EXPECT_EQ(engine->stats().rejections[0], 1);
  const Status too_long = refusal(Ask({0}));
  EXPECT_EQ(too_long.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(too_long.message(), HasSubstr("maximum context length"));
  EXPECT_THAT(refusal(Ask({0})).message(), HasSubstr("shutting down"));
  EXPECT_EQ(refusal(Ask({0})).ToString(), "out of memory: no");
  EXPECT_EQ(engine->stats().rejections[0], 1);
  // One runs, one waits, the third is too many.
  Submit(*engine, Ask({0, 5, 6}));
  Submit(*engine, Ask({0}));
  EXPECT_THAT(refusal(Ask({0})).message(), HasSubstr("queue is full"));
  EXPECT_EQ(engine->stats().rejections[0], 2);
}

TEST(ReplayEngine, NeedsAnEndTokenAndTextForConditions) {
  Tokenizer tokenizer = Nano();
  ReplayEngineOptions options;
  options.info = InfoFor(tokenizer);
  const char* json = R"([{"text": "a", "when": {"contains": "b"}}])";
  EXPECT_FALSE(ReplayEngine::Create(Script(json, tokenizer), options).ok());
  options.info.eos_token_ids.clear();
  EXPECT_FALSE(ReplayEngine::Create(Script(R"([{"text": "a"}])", tokenizer), options).ok());
}

// Counts without keeping.
class Counter final : public RequestSink {
 public:
  explicit Counter(std::atomic<int64_t>* tokens, std::atomic<int>* finished)
      : tokens_(tokens), finished_(finished) {}
  void OnToken(const TokenEvent&) override { tokens_->fetch_add(1, std::memory_order_relaxed); }
  void OnFinish(const FinishEvent&) override {
    finished_->fetch_add(1);
    finished_->notify_all();
  }

 private:
  std::atomic<int64_t>* tokens_;
  std::atomic<int>* finished_;
};

TEST(ReplayEngine, AThousandStreamsAtOnce) {
  auto engine = NewEngine(
      R"([{"tokens": [70, 71], "endless": true, "token_delay_ms": 0.5, "tokens_per_step": 2}])");
  constexpr int kStreams = 1000;
  std::atomic<int64_t> tokens = 0;
  std::atomic<int> finished = 0;
  const auto sink = std::make_shared<Counter>(&tokens, &finished);
  const auto begin = Clock::now();
  for (int i = 0; i < kStreams; ++i) ASSERT_TRUE(engine->Submit(Ask({0}, 300), sink).ok());
  for (int n = finished; n < kStreams; n = finished) finished.wait(n);
  const std::chrono::duration<double> seconds = Clock::now() - begin;
  EXPECT_EQ(tokens, kStreams * 300);
  EXPECT_EQ(engine->stats().generation_tokens, kStreams * 300);
  RecordProperty("tokens_per_second", std::to_string(kStreams * 300 / seconds.count()));
}

}  // namespace
}  // namespace fathom
