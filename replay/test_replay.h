// For tests of replay/: the bundled tokenizer, scripts from text, sinks that remember.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "replay/replay_engine.h"
#include "replay/replay_script.h"
#include "tokenizer/tokenizer.h"

namespace fathom::replay_testing {

inline Tokenizer Nano() {
  auto tokenizer = Tokenizer::Load(FATHOM_SOURCE_DIR "/models/fathom-nano");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  return std::move(tokenizer).value();
}

inline ReplayScript Script(std::string_view json, Tokenizer& tokenizer) {
  auto script = ParseReplayScript(json, "test.json", tokenizer);
  EXPECT_TRUE(script.ok()) << script.status().ToString();
  return script.ok() ? std::move(script).value() : ReplayScript{};
}

inline constexpr TokenId kEos = 1;

inline EngineInfo InfoFor(const Tokenizer& tokenizer) {
  EngineInfo info;
  info.vocab_size = tokenizer.vocab_size();
  info.max_model_len = int64_t{1} << 20;
  info.eos_token_ids = {kEos};
  return info;
}

inline GenerateRequest Ask(std::vector<TokenId> prompt, int64_t max_tokens = 100'000) {
  GenerateRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  return request;
}

// What a request got; Wait returns when it has finished. The engine's thread writes, any reads.
class Recorder final : public RequestSink {
 public:
  void OnToken(const TokenEvent& event) override {
    const std::lock_guard lock(mutex_);
    events_.push_back(event);
    changed_.notify_all();
  }
  void OnFinish(const FinishEvent& event) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(finish_.has_value()) << "nothing comes behind the end";
    finish_ = event;
    changed_.notify_all();
  }
  FinishEvent Wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kPatience, [this] { return finish_.has_value(); }));
    return finish_.value_or(FinishEvent{});
  }
  void WaitForTokens(size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kPatience, [&] { return events_.size() >= count; }));
  }
  [[nodiscard]] std::vector<TokenEvent> events() const {
    const std::lock_guard lock(mutex_);
    return events_;
  }
  [[nodiscard]] std::vector<TokenId> tokens() const {
    std::vector<TokenId> ids;
    for (const TokenEvent& event : events()) ids.push_back(event.token);
    return ids;
  }

 private:
  static constexpr std::chrono::seconds kPatience{60};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<TokenEvent> events_;
  std::optional<FinishEvent> finish_;
};

}  // namespace fathom::replay_testing
