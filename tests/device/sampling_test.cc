// Steps whose tokens are chosen where logits are computed, against logits that are brought to the
// host and sampled there: the same answers, and no logits that come back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <memory>
#include <utility>
#include <vector>

#include "backend/choose_token.h"
#include "engine/engine_core.h"
#include "engine/test_constraints.h"
#include "tests/device/guarded_backend.h"
#include "tests/device/planned_step.h"
#include "tests/device/sink.h"

namespace fathom {
namespace {

using ::testing::HasSubstr;

// The same without the operation.
class LogitsOnlyBackend final : public GuardedBackend {
 public:
  explicit LogitsOnlyBackend(Numerics numerics) : GuardedBackend(numerics) {}
  [[nodiscard]] bool samples() const override { return false; }
};

// More rows than a device has logits of at once, some for the host.
template <typename AnyBackend>
void SampleManyRows() {
  constexpr int kRows = 90;
  AnyBackend backend(Numerics::kOfficial);
  PlannedStep step(backend, kRows);
  const auto vocab = static_cast<size_t>(step.vocab());
  std::vector<int> wanted;
  for (int i = 0; i < kRows; ++i) {
    if (i % 10 != 3) wanted.push_back(i);
  }
  step.plan.logits_rows = wanted;
  std::vector<float> all(wanted.size() * vocab);
  const auto num_wanted = static_cast<int64_t>(wanted.size());
  ASSERT_TRUE(
      step.model().Forward(step.plan, {all.data(), num_wanted, static_cast<int64_t>(vocab)}).ok());

  std::vector<int> indices;
  std::vector<SampleRow> rows;
  std::vector<float> want_logits;
  std::vector<SampledToken> want;
  std::vector<TokenCandidate> scratch;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const std::span<float> logits = std::span(all).subspan(i * vocab, vocab);
    if (i % 7 == 2) {
      want_logits.insert(want_logits.end(), logits.begin(), logits.end());
      continue;
    }
    indices.push_back(static_cast<int>(i));
    SampleRow row;
    row.temperature = i % 2 == 0 ? 0.0 : 1.0;
    row.top_p = 0.9;
    row.random = 0x9E3779B97F4A7C15u * i;
    row.logprob = i % 3 == 0;
    rows.push_back(row);
    const LogitSum sum = SumLogits(logits);
    const std::vector<float> raw(logits.begin(), logits.end());
    const TokenId token = ChooseToken(row, logits, scratch);
    want.push_back(
        {token, row.logprob ? sum.LogProbability(raw[static_cast<size_t>(token)]) : 0.0f});
  }
  std::vector<float> got_logits(want_logits.size());
  std::vector<SampledToken> got(rows.size());
  const Status status = step.model().ForwardAndSample(
      step.plan, {indices, rows, got},
      {got_logits.data(), static_cast<int64_t>(got_logits.size() / vocab),
       static_cast<int64_t>(vocab)});
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(got_logits, want_logits);
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].token, want[i].token) << i;
    EXPECT_EQ(got[i].logprob, want[i].logprob) << i;
  }
}

TEST(ForwardAndSample, GivesTokensOfSomeRowsAndLogitsOfTheOthers) {
  SampleManyRows<GuardedBackend>();    // a memory of its own
  SampleManyRows<ReferenceBackend>();  // the host's
}

TEST(ForwardAndSample, RefusesWhatIsNotOfTheStep) {
  GuardedBackend backend(Numerics::kOfficial);
  PlannedStep step(backend, 8);
  const std::vector<int> wanted = {1, 5, 7};
  step.plan.logits_rows = wanted;
  std::vector<SampleRow> rows(2);
  std::vector<SampledToken> tokens(2);
  std::vector<float> logits(3 * static_cast<size_t>(step.vocab()));
  const auto run = [&](const std::vector<int>& indices, size_t num_rows, size_t num_tokens) {
    return step.model().ForwardAndSample(
        step.plan, {indices, std::span(rows).first(num_rows), std::span(tokens).first(num_tokens)},
        {logits.data(), 1, step.vocab()});
  };
  EXPECT_TRUE(run({0, 2}, 2, 2).ok());
  for (const std::vector<int>& indices :
       std::vector<std::vector<int>>{{0, 3}, {-1, 0}, {1, 1}, {2, 1}}) {
    const Status status = run(indices, 2, 2);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("ascending"));
  }
  EXPECT_EQ(run({0, 2}, 1, 2).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(run({0, 2}, 2, 1).code(), StatusCode::kInvalidArgument);
  rows[1].top_p = 2.0;
  const Status status = run({0, 2}, 2, 2);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("top_p"));

  LogitsOnlyBackend without(Numerics::kOfficial);
  PlannedStep other(without, 8);
  other.plan.logits_rows = wanted;
  rows[1].top_p = 1.0;
  const std::vector<int> indices = {0, 2};
  EXPECT_EQ(
      other.model()
          .ForwardAndSample(other.plan, {indices, rows, tokens}, {logits.data(), 1, other.vocab()})
          .code(),
      StatusCode::kUnimplemented);
}

std::vector<GenerateRequest> Requests(int vocab) {
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 12; ++i) {
    GenerateRequest request;
    for (int t = 0; t < 5 + 3 * i; ++t) request.prompt.push_back((t * 13 + i * 57 + 2) % vocab);
    request.max_tokens = 6;
    request.num_logprobs = i % 4 - 1;  // 1 and 2: the host's
    if (i % 5 == 0) request.num_prompt_logprobs = 1;
    SamplingParams& sampling = request.sampling;
    sampling.seed = i;
    sampling.temperature = i % 3 == 0 ? 0.0 : 0.5 * i;
    sampling.top_p = i % 2 == 0 ? 0.8 : 1.0;
    sampling.top_k = i % 4 == 1 ? 20 : 0;
    sampling.min_p = i == 7 ? 0.3 : 0.0;
    if (i % 3 == 1) sampling.logit_bias = {{9, 2.5f}, {4, -1.0f}, {9, 1.25f}};
    if (i % 4 == 2) sampling.repetition_penalty = 1.3;
    if (i % 6 == 5) sampling.frequency_penalty = 0.7;
    if (i % 6 == 4) sampling.presence_penalty = -0.4;
    if (i % 2 == 1) request.constraint = std::make_shared<HistoryConstraint>();
    if (i == 8) request.stop_token_ids = {1, 2, 3, 5, 8, 13, 21, 34};
    if (i == 8) request.min_tokens = 3;
    requests.push_back(std::move(request));
  }
  return requests;
}

template <typename AnyBackend>
LocalEngineOptions Options(AnyBackend** made) {
  LocalEngineOptions options;
  options.make_backend = [made](Numerics numerics) {
    auto backend = std::make_unique<AnyBackend>(numerics);
    *made = backend.get();
    return Result<std::unique_ptr<Backend>>(std::move(backend));
  };
  options.max_batched_tokens = 64;
  options.max_num_seqs = 5;
  options.max_model_len = 512;
  options.cache_budget.bytes = int64_t{8} << 20;
  return options;
}

template <typename AnyBackend>
std::vector<std::shared_ptr<Sink>> Answers() {
  AnyBackend* backend = nullptr;
  auto core = EngineCore::Create(TinyA(), {1}, Options(&backend));
  EXPECT_TRUE(core.ok()) << core.status().ToString();
  std::vector<std::shared_ptr<Sink>> sinks;
  for (GenerateRequest& request : Requests((*core)->info().vocab_size)) {
    sinks.push_back(std::make_shared<Sink>());
    auto job =
        (*core)->Prepare(static_cast<RequestId>(sinks.size()), std::move(request), sinks.back());
    EXPECT_TRUE(job.ok()) << job.status().ToString();
    (*core)->Add(std::move(job).value());
  }
  for (int step = 0; (*core)->Step(); ++step) {
    if (step % 4 == 3) (*core)->Preempt(static_cast<RequestId>(step / 4 % 12 + 1));
  }
  return sinks;
}

TEST(EngineSampling, AnswersAreThoseOfTheHostsSampler) {
  const auto want = Answers<LogitsOnlyBackend>();
  const auto got = Answers<GuardedBackend>();
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_TRUE(got[i]->finished && want[i]->finished);
    EXPECT_EQ(got[i]->seen, want[i]->seen);
    EXPECT_EQ(got[i]->finish.reason, want[i]->finish.reason);
    EXPECT_EQ(got[i]->finish.stop_token, want[i]->finish.stop_token);
  }
}

TEST(EngineSampling, LogitsStayWhereTheyAreUnlessTheyAreAskedFor) {
  GuardedBackend* backend = nullptr;
  auto core = EngineCore::Create(TinyA(), {}, Options(&backend));
  ASSERT_TRUE(core.ok()) << core.status().ToString();
  const int vocab = (*core)->info().vocab_size;
  const auto run = [&](int num_logprobs) {
    const int64_t before = backend->memory().bytes_out();
    for (RequestId id = 1; id <= 3; ++id) {
      GenerateRequest request;
      request.prompt = {3, 5, static_cast<TokenId>(id)};
      request.max_tokens = 4;
      request.num_logprobs = num_logprobs;
      auto job = (*core)->Prepare(id, std::move(request), std::make_shared<Sink>());
      EXPECT_TRUE(job.ok());
      (*core)->Add(std::move(job).value());
    }
    while ((*core)->Step()) {
    }
    return backend->memory().bytes_out() - before;
  };
  constexpr int kTokens = 3 * 4;
  EXPECT_EQ(run(-1), kTokens * 4);
  EXPECT_EQ(run(0), kTokens * (4 + 4));
  EXPECT_EQ(run(1), int64_t{kTokens} * 4 * vocab);
}

}  // namespace
}  // namespace fathom
