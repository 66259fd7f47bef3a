// The engine on the bundled model: life of a request, limits, aborts.
#include "engine/local_engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <thread>

namespace fathom {
namespace {

// Collects one request's events; Wait() returns when it finished.
class Collector final : public RequestSink {
 public:
  void OnToken(const TokenEvent& event) override {
    tokens_.push_back(event.token);
    if (on_token) on_token();
  }
  void OnFinish(const FinishEvent& event) override { finished_.set_value(event); }
  FinishEvent Wait() { return finished_.get_future().get(); }
  [[nodiscard]] const std::vector<TokenId>& tokens() const { return tokens_; }

  std::function<void()> on_token;  // called on the engine's thread

 private:
  std::vector<TokenId> tokens_;
  std::promise<FinishEvent> finished_;
};

std::unique_ptr<LocalEngine> NewEngine(LocalEngineOptions options = {}) {
  auto checkpoint = Checkpoint::Open(FATHOM_SOURCE_DIR "/models/fathom-nano");
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  if (options.max_model_len == 0) options.max_model_len = 2048;
  auto engine = LocalEngine::Create(std::move(checkpoint).value(), {1}, options);
  EXPECT_TRUE(engine.ok()) << engine.status().ToString();
  return std::move(engine).value();
}

GenerateRequest Request(int64_t max_tokens) {
  GenerateRequest request;
  request.prompt = {0, 2551, 75, 76, 77, 2552};
  request.sampling.temperature = 0.0;
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  return request;
}

TEST(LocalEngine, GreedyIsTheSameWhateverThePrefillStep) {
  std::vector<TokenId> first;
  for (int batched : {512, 1, 4}) {
    LocalEngineOptions options;
    options.max_batched_tokens = batched;
    options.max_num_seqs = 1;
    auto engine = NewEngine(options);
    auto sink = std::make_shared<Collector>();
    ASSERT_TRUE(engine->Submit(Request(12), sink).ok());
    EXPECT_EQ(sink->Wait().reason, FinishReason::kLength);
    EXPECT_EQ(sink->tokens().size(), 12u);
    if (first.empty()) first = sink->tokens();
    EXPECT_EQ(sink->tokens(), first) << batched;
  }
}

TEST(LocalEngine, CountsTokensStepsAndTimes) {
  LocalEngineOptions options;
  options.max_batched_tokens = 4;
  auto engine = NewEngine(options);
  EXPECT_EQ(engine->stats().step_tokens.count(), 0);
  auto sink = std::make_shared<Collector>();
  ASSERT_TRUE(engine->Submit(Request(3), sink).ok());
  const RequestTimings timings = sink->Wait().timings;
  EXPECT_NE(timings.arrival, RequestTimings::Clock::time_point());
  EXPECT_LE(timings.arrival, timings.first_scheduled);
  EXPECT_LT(timings.first_scheduled, timings.first_token);
  EXPECT_LT(timings.first_token, timings.last_token);

  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.prompt_tokens_computed, 6);
  EXPECT_EQ(stats.generation_tokens, 3);
  // 4 and 2 tokens of the prompt, then the first two generated ones.
  EXPECT_EQ(stats.num_steps, 4);
  EXPECT_EQ(stats.step_tokens.count(), 4);
  EXPECT_EQ(stats.step_tokens.sum, 8);
  EXPECT_EQ(stats.step_seconds[static_cast<size_t>(StepPhase::kPrefill)].count(), 2);
  EXPECT_EQ(stats.step_seconds[static_cast<size_t>(StepPhase::kDecode)].count(), 2);
  EXPECT_EQ(stats.step_seconds[static_cast<size_t>(StepPhase::kMixed)].count(), 0);
}

TEST(LocalEngine, StopTokensEndAndAreDeliveredUnlessMinTokensMasksThem) {
  auto engine = NewEngine();
  auto plain = std::make_shared<Collector>();
  ASSERT_TRUE(engine->Submit(Request(10), plain).ok());
  plain->Wait();
  const TokenId third = plain->tokens()[2];

  GenerateRequest request = Request(10);
  request.stop_token_ids = {third};
  auto stopped = std::make_shared<Collector>();
  ASSERT_TRUE(engine->Submit(request, stopped).ok());
  const FinishEvent finish = stopped->Wait();
  EXPECT_EQ(finish.reason, FinishReason::kStop);
  EXPECT_EQ(finish.stop_token, third);
  EXPECT_EQ(stopped->tokens().back(), third);
  EXPECT_LE(stopped->tokens().size(), 3u);

  request.min_tokens = 10;
  auto masked = std::make_shared<Collector>();
  ASSERT_TRUE(engine->Submit(request, masked).ok());
  EXPECT_EQ(masked->Wait().reason, FinishReason::kLength);
  for (TokenId token : masked->tokens()) EXPECT_NE(token, third);
}

TEST(LocalEngine, AbortEndsARunningAndAWaitingRequest) {
  LocalEngineOptions options;
  options.max_num_seqs = 1;
  auto engine = NewEngine(options);
  auto running = std::make_shared<Collector>();
  std::promise<void> first_token;
  bool told = false;
  running->on_token = [&] {
    if (!told) first_token.set_value();
    told = true;
  };
  auto id = engine->Submit(Request(2000), running);
  ASSERT_TRUE(id.ok());
  auto waiting = std::make_shared<Collector>();
  auto waiting_id = engine->Submit(Request(5), waiting);
  ASSERT_TRUE(waiting_id.ok());
  first_token.get_future().wait();
  EXPECT_EQ(engine->num_running(), 1);
  EXPECT_EQ(engine->num_waiting(), 1);
  engine->Abort(*waiting_id);
  EXPECT_EQ(waiting->Wait().reason, FinishReason::kAborted);
  EXPECT_TRUE(waiting->tokens().empty());
  engine->Abort(*id);
  EXPECT_EQ(running->Wait().reason, FinishReason::kAborted);
  engine->Abort(*id);   // finished: ignored
  engine->Abort(4711);  // never known: ignored

  auto next = std::make_shared<Collector>();
  ASSERT_TRUE(engine->Submit(Request(3), next).ok());
  EXPECT_EQ(next->Wait().reason, FinishReason::kLength) << "an abort does not spill over";
}

// A front end that finds a stop string ends the request at a token that the engine has given out.
TEST(LocalEngine, WhatWasComputedInFrontOfAStopStringIsKept) {
  auto engine = NewEngine();
  auto sink = std::make_shared<Collector>();
  std::atomic<RequestId> id = 0;
  sink->on_token = [&] {
    if (sink->tokens().size() != 9) return;
    while (id == 0) std::this_thread::yield();
    engine->EndAt(id, 9);
  };
  const GenerateRequest request = Request(500);
  const auto submitted = engine->Submit(request, sink);
  ASSERT_TRUE(submitted.ok());
  id = *submitted;
  EXPECT_EQ(sink->Wait().reason, FinishReason::kAborted);
  ASSERT_GE(sink->tokens().size(), 9u);

  GenerateRequest next = request;
  next.max_tokens = 1;
  next.prompt.insert(next.prompt.end(), sink->tokens().begin(), sink->tokens().begin() + 8);
  next.prompt.push_back(75);  // not what the answer went on with
  next.prompt.push_back(76);
  auto again = std::make_shared<Collector>();
  ASSERT_TRUE(engine->Submit(next, again).ok());
  EXPECT_EQ(again->Wait().cached_tokens, static_cast<int>(request.prompt.size()) + 8);

  engine->ResetPrefixCache();
  again = std::make_shared<Collector>();
  ASSERT_TRUE(engine->Submit(next, again).ok());
  EXPECT_EQ(again->Wait().cached_tokens, 0);
}

TEST(LocalEngine, DestructionFinishesEveryRequest) {
  std::vector<std::shared_ptr<Collector>> sinks;
  {
    auto engine = NewEngine();
    for (int i = 0; i < 4; ++i) {
      sinks.push_back(std::make_shared<Collector>());
      ASSERT_TRUE(engine->Submit(Request(2000), sinks.back()).ok());
    }
  }
  for (auto& sink : sinks) EXPECT_EQ(sink->Wait().reason, FinishReason::kAborted);
}

TEST(LocalEngine, QueueIsBounded) {
  LocalEngineOptions options;
  options.max_queued_requests = 2;
  options.max_num_seqs = 1;
  auto engine = NewEngine(options);
  std::vector<std::shared_ptr<Collector>> sinks;
  Status refused;
  for (int i = 0; i < 8 && refused.ok(); ++i) {
    auto sink = std::make_shared<Collector>();
    auto id = engine->Submit(Request(2000), sink);
    if (id.ok()) sinks.push_back(sink);
    refused = id.status();
  }
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
  EXPECT_GE(sinks.size(), 2u);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.rejections[static_cast<size_t>(AdmissionRejection::kQueueFull)], 1);
  EXPECT_EQ(static_cast<size_t>(stats.num_running + stats.num_waiting), sinks.size());
  engine.reset();
  for (auto& sink : sinks) sink->Wait();
}

TEST(LocalEngine, BadRequestsAreRefusedByField) {
  auto engine = NewEngine();
  const auto refuse = [&](auto change, const char* field) {
    GenerateRequest request = Request(4);
    change(request);
    auto id = engine->Submit(request, std::make_shared<Collector>());
    ASSERT_FALSE(id.ok()) << field;
    EXPECT_EQ(id.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(id.status().message().find(field), std::string::npos) << id.status().message();
  };
  refuse([](auto& r) { r.prompt.clear(); }, "prompt");
  refuse([](auto& r) { r.prompt[1] = 2560; }, "prompt");
  refuse([](auto& r) { r.prompt[1] = -1; }, "prompt");
  refuse([](auto& r) { r.max_tokens = 0; }, "max_tokens");
  refuse([](auto& r) { r.max_tokens = 2048; }, "maximum context length");
  refuse([](auto& r) { r.min_tokens = 5; }, "min_tokens");
  refuse([](auto& r) { r.stop_token_ids = {2560}; }, "stop_token_ids");
  refuse([](auto& r) { r.sampling.top_p = 0.0; }, "top_p");
  refuse([](auto& r) { r.priority = 1; }, "priority");
}

// Weights that vanish under the engine: somebody truncates a file that is in use.
class LostWeights : public ::testing::TestWithParam<const char*> {};

TEST_P(LostWeights, EndTheRequestAndAllLaterOnesButNotTheProcess) {
  namespace fs = std::filesystem;
  const fs::path directory = fs::path(::testing::TempDir()) / "fathom_lost_weights" / GetParam();
  fs::remove_all(directory);
  fs::create_directories(directory);
  for (const auto& entry : fs::directory_iterator(FATHOM_SOURCE_DIR "/models/fathom-nano")) {
    fs::copy_file(entry.path(), directory / entry.path().filename());
  }
  auto checkpoint = Checkpoint::Open(directory);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  LocalEngineOptions options;
  options.backend = GetParam();
  options.max_model_len = 2048;
  auto engine = LocalEngine::Create(std::move(checkpoint).value(), {1}, options);
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();

  const std::string shard = "model-00001-of-00002.safetensors";
  auto running = std::make_shared<Collector>();
  running->on_token = [&] {
    if (running->tokens().size() == 3) fs::resize_file(directory / shard, 4096);
  };
  ASSERT_TRUE((*engine)->Submit(Request(1000), running).ok());
  const FinishEvent finish = running->Wait();
  EXPECT_EQ(finish.reason, FinishReason::kError);
  EXPECT_EQ(finish.error.code(), StatusCode::kDataLoss);
  EXPECT_NE(finish.error.message().find(shard), std::string::npos) << finish.error.message();
  EXPECT_EQ(running->tokens().size(), 3u) << "no token of damaged weights is delivered";

  auto later = (*engine)->Submit(Request(2), std::make_shared<Collector>());
  ASSERT_FALSE(later.ok());
  EXPECT_EQ(later.status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(later.status().message(), finish.error.message());
  engine->reset();
  fs::remove_all(directory);
}

INSTANTIATE_TEST_SUITE_P(Backends, LostWeights, ::testing::Values("cpu", "reference"));

TEST(LocalEngine, UnknownBackendIsRefusedByName) {
  auto checkpoint = Checkpoint::Open(FATHOM_SOURCE_DIR "/models/fathom-nano");
  ASSERT_TRUE(checkpoint.ok());
  LocalEngineOptions options;
  options.backend = "abacus";
  auto engine = LocalEngine::Create(std::move(checkpoint).value(), {1}, options);
  ASSERT_FALSE(engine.ok());
  EXPECT_NE(engine.status().message().find("abacus"), std::string::npos);
}

}  // namespace
}  // namespace fathom
