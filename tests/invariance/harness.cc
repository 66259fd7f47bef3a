#include "tests/invariance/harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "tests/device/guarded_backend.h"

namespace fathom::invariance {
namespace {

class Recorder final : public RequestSink {
 public:
  explicit Recorder(Answer* answer) : answer_(answer) {}
  void OnToken(const TokenEvent& event) override {
    answer_->tokens.push_back(event.token);
    answer_->logprob_bits.push_back(std::bit_cast<uint32_t>(event.logprob));
    for (const TokenLogprob& top : event.top) {
      answer_->logprob_bits.push_back(static_cast<uint32_t>(top.token));
      answer_->logprob_bits.push_back(std::bit_cast<uint32_t>(top.logprob));
    }
  }
  void OnFinish(const FinishEvent& event) override {
    EXPECT_EQ(event.reason, FinishReason::kLength) << event.error.ToString();
    answer_->finished = true;
    answer_->cached_tokens = event.cached_tokens;
    answer_->num_preemptions = event.timings.num_preemptions;
  }

 private:
  Answer* answer_;
};

GenerateRequest RequestOf(const Case& c) {
  GenerateRequest request;
  request.prompt = c.prompt;
  request.max_tokens = c.max_tokens;
  request.sampling.temperature = c.temperature;
  request.sampling.seed = c.seed;
  request.ignore_eos = true;
  request.num_logprobs = 3;
  return request;
}

}  // namespace

std::vector<TokenId> Pattern(int64_t s, int64_t n, int vocab) {
  std::vector<TokenId> ids;
  ids.reserve(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    ids.push_back(static_cast<TokenId>(16 + (7 * i + 131 * s + i * i % 97) % (vocab - 32)));
  }
  return ids;
}

Engine::Engine(const Setting& setting) {
  auto checkpoint = Checkpoint::Open(setting.model);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  if (!checkpoint.ok()) return;
  LocalEngineOptions options;
  if (setting.backend == "guarded") {
    options.make_backend = [](Numerics numerics) {
      return Result<std::unique_ptr<Backend>>(std::make_unique<GuardedBackend>(numerics));
    };
  } else {
    options.backend = setting.backend;
    options.backend_plugin = setting.backend_plugin;
  }
  options.numerics = setting.numerics;
  if (setting.backend != "cuda" && setting.backend != "plugin") {  // they take none
    options.num_threads = setting.num_threads;
  }
  options.cache_dtypes = setting.dtypes;
  options.prefix_caching = setting.prefix_caching;
  options.max_batched_tokens = setting.max_batched_tokens;
  options.max_num_seqs = std::min(setting.max_num_seqs, setting.max_batched_tokens);
  options.max_model_len = setting.max_model_len;
  options.cache_budget.bytes = setting.cache_bytes;
  options.retention_interval = setting.retention_interval;
  auto core = EngineCore::Create(std::move(checkpoint).value(), {}, options);
  EXPECT_TRUE(core.ok()) << core.status().ToString();
  if (core.ok()) core_ = std::move(core).value();
}

std::vector<Answer> Engine::Run(const std::vector<Case>& cases, const Disturbance& disturbance) {
  std::vector<Answer> answers(cases.size());
  std::mt19937_64 random(disturbance.seed);
  const auto chance = [&random](double p) {
    return static_cast<double>(random() >> 11) * 0x1p-53 < p;
  };
  const int budget = core_->options().max_batched_tokens;
  const RequestId first = next_id_;
  next_id_ += static_cast<RequestId>(cases.size());
  for (size_t arrived = 0; arrived < cases.size() || !core_->idle();) {
    while (arrived < cases.size() && (core_->idle() || chance(disturbance.arrive_chance))) {
      auto job = core_->Prepare(first + static_cast<RequestId>(arrived), RequestOf(cases[arrived]),
                                std::make_shared<Recorder>(&answers[arrived]));
      EXPECT_TRUE(job.ok()) << job.status().ToString();
      if (!job.ok()) return answers;
      core_->Add(std::move(job).value());
      ++arrived;
    }
    if (disturbance.random_budgets) {
      // Small ones as often as large ones.
      const auto limit = static_cast<uint64_t>(budget) >> random() % 9;
      core_->scheduler().SetStepBudget(
          static_cast<int>(1 + random() % std::max<uint64_t>(limit, 1)));
    }
    core_->Step();
    if (chance(disturbance.preempt_chance)) {
      core_->Preempt(first + static_cast<RequestId>(random() % cases.size()));
    }
  }
  core_->scheduler().SetStepBudget(budget);
  return answers;
}

std::vector<Answer> Engine::RunAlone(const std::vector<Case>& cases) {
  std::vector<Answer> answers;
  for (const Case& c : cases) answers.push_back(Run({c}, {}).front());
  return answers;
}

std::string Difference(const Answer& want, const Answer& got) {
  if (want.SameResult(got)) return "";
  if (got.tokens.size() != want.tokens.size()) {
    return std::to_string(got.tokens.size()) + " tokens, not " + std::to_string(want.tokens.size());
  }
  for (size_t i = 0; i < want.tokens.size(); ++i) {
    if (got.tokens[i] == want.tokens[i]) continue;
    return "token " + std::to_string(i) + " is " + std::to_string(got.tokens[i]) + ", not " +
           std::to_string(want.tokens[i]);
  }
  const auto [a, b] = std::mismatch(want.logprob_bits.begin(), want.logprob_bits.end(),
                                    got.logprob_bits.begin(), got.logprob_bits.end());
  const auto index = static_cast<size_t>(a - want.logprob_bits.begin());
  return "log-probabilities of token " +
         std::to_string(index / (want.logprob_bits.size() / want.tokens.size())) + " differ";
}

}  // namespace fathom::invariance
