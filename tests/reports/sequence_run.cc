#include "tests/reports/sequence_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "engine/sequence_runner.h"

namespace fathom::reports {
namespace {

using Json = nlohmann::json;
using invariance::Answer;
using invariance::Case;
using Clock = std::chrono::steady_clock;

constexpr int kNoLength = 0;  // the report has no lengths

// Every member is one of `known`.
void ExpectKnown(const Json& object, const std::vector<std::string>& known) {
  for (const auto& [name, value] : object.items()) {
    EXPECT_NE(std::find(known.begin(), known.end(), name), known.end())
        << "the report says \"" << name << "\", which is not understood";
  }
}

int64_t PromptLength(const Json& generate, int64_t length) {
  const Json& n = generate.at("pattern").at(1);
  return n == "$LEN" ? length : n.get<int64_t>();
}

// All generate objects of the steps, those that run together included.
std::vector<const Json*> Generates(const Json& steps) {
  std::vector<const Json*> all;
  for (const Json& step : steps) {
    if (step.contains("generate")) all.push_back(&step.at("generate"));
    for (const Json& part : step.value("parallel", Json::array())) {
      EXPECT_TRUE(part.contains("generate"));
    }
    if (!step.contains("parallel")) continue;
    for (const Json& part : step.at("parallel")) all.push_back(&part.at("generate"));
  }
  return all;
}

std::vector<int64_t> Lengths(const Json& input) {
  if (!input.contains("for_each_length")) return {kNoLength};
  return input.at("for_each_length").get<std::vector<int64_t>>();
}

}  // namespace

SequenceRun::SequenceRun(const Json& report, std::filesystem::path model)
    : input_(report.at("input")),
      expect_(report.at("expect")),
      wants_hits_(report.at("class") == "prefix cache"),
      model_(std::move(model)) {
  ExpectKnown(input_, {"kind", "model", "steps", "options", "pool_blocks", "for_each_length"});
  EXPECT_EQ(input_.at("model"), "tiny");
  setting_.model = model_;
  setting_.num_threads = 2;
  if (input_.contains("options")) {
    ExpectKnown(input_.at("options"), {"prefill_chunk"});
    setting_.max_batched_tokens = input_.at("options").value("prefill_chunk", 512);
  }
  int64_t longest = 0;
  for (const int64_t length : Lengths(input_)) {
    for (const Json* generate : Generates(input_.at("steps"))) {
      longest =
          std::max(longest, PromptLength(*generate, length) + generate->at("n").get<int64_t>());
    }
  }
  setting_.max_model_len = longest;
  if (!input_.contains("pool_blocks")) return;
  auto checkpoint = Checkpoint::Open(model_);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  if (!checkpoint.ok()) return;
  const CachePlanner planner(
      CacheLayout(CacheGeometryOf(checkpoint->config()), DefaultCacheDTypes(setting_.numerics)));
  if (const Json& blocks = input_.at("pool_blocks"); blocks.is_number()) {
    setting_.cache_bytes = planner.BytesFor(1, blocks.get<int64_t>() * kBlockPositions);
  } else {
    EXPECT_EQ(blocks, "enough for 4 prompts");
    setting_.cache_bytes = planner.BytesFor(4, longest);
  }
}

std::unique_ptr<invariance::Engine> SequenceRun::NewEngine() const {
  return std::make_unique<invariance::Engine>(setting_);
}

void SequenceRun::Run() {
  engine_ = NewEngine();
  ASSERT_TRUE(engine_->ok());
  for (const int64_t length : Lengths(input_)) {
    SCOPED_TRACE(length == kNoLength ? "" : "length " + std::to_string(length));
    saved_.clear();
    RunSteps(length);
    ExpectOfAnswers(length);
  }
  ExpectOfEngine();
}

void SequenceRun::RunSteps(int64_t length) {
  for (const Json& step : input_.at("steps")) {
    if (step.contains("parallel")) {
      ExpectKnown(step, {"parallel"});
      std::vector<const Json*> parts;
      for (const Json& part : step.at("parallel")) parts.push_back(&part);
      RunRequests(parts, length, false);
    } else if (step.contains("reset_cache")) {
      ExpectKnown(step, {"reset_cache"});
      engine_->core().cache().ClearPrefixes();
    } else {
      RunRequests({&step}, length, step.value("alone", false));
    }
  }
}

// `alone` is taken literally: in an engine where nothing ever ran, so that the comparison is not
// with what the others left in the cache.
void SequenceRun::RunRequests(const std::vector<const Json*>& steps, int64_t length, bool alone) {
  std::vector<Case> cases;
  for (const Json* step : steps) {
    ExpectKnown(*step, {"generate", "save", "alone"});
    const Json& generate = step->at("generate");
    ExpectKnown(generate, {"pattern", "n", "temperature"});
    Case c;
    c.prompt = invariance::Pattern(generate.at("pattern").at(0).get<int64_t>(),
                                   PromptLength(generate, length), engine_->vocab());
    c.max_tokens = generate.at("n").get<int64_t>();
    c.temperature = generate.at("temperature").get<double>();
    cases.push_back(std::move(c));
  }
  const std::unique_ptr<invariance::Engine> own = alone ? NewEngine() : nullptr;
  const auto begin = Clock::now();
  const std::vector<Answer> answers = (alone ? *own : *engine_).Run(cases, {});
  const std::chrono::duration<double> took = Clock::now() - begin;
  longest_seconds_ = std::max(longest_seconds_, took.count());
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_TRUE(answers[i].finished) << "request " << i << " of the step";
    EXPECT_EQ(static_cast<int64_t>(answers[i].tokens.size()), cases[i].max_tokens);
    if (steps[i]->contains("save")) saved_[steps[i]->at("save")] = answers[i];
  }
}

void SequenceRun::ExpectEqual(const std::string& a, const std::string& b) const {
  ASSERT_EQ(saved_.count(a), 1u) << a;
  ASSERT_EQ(saved_.count(b), 1u) << b;
  EXPECT_TRUE(saved_.at(a).SameResult(saved_.at(b)))
      << a << " and " << b << " (" << saved_.at(b).cached_tokens
      << " cached): " << invariance::Difference(saved_.at(a), saved_.at(b));
}

void SequenceRun::ExpectCached(const Json& at_least) const {
  for (const auto& [name, least] : at_least.items()) {
    ASSERT_EQ(saved_.count(name), 1u) << name;
    EXPECT_GE(saved_.at(name).cached_tokens, least.get<int>()) << name;
  }
}

void SequenceRun::ExpectOfAnswers(int64_t length) const {
  ExpectKnown(expect_, {"equal", "pairs_equal", "cached_tokens_min", "cached_tokens_min_by_length",
                        "status_all", "evictions_min", "each_finishes_within_s", "finishes"});
  // Equal answers say nothing of reuse that did not happen.
  const auto is_hit = [](const auto& saved) { return saved.second.cached_tokens > 0; };
  EXPECT_TRUE(!wants_hits_ || std::any_of(saved_.begin(), saved_.end(), is_hit)) << "no hit";
  if (expect_.contains("equal")) {
    const auto names = expect_.at("equal").get<std::vector<std::string>>();
    for (size_t i = 1; i < names.size(); ++i) ExpectEqual(names[0], names[i]);
  }
  if (expect_.contains("pairs_equal")) {
    for (const Json& pair : expect_.at("pairs_equal")) ExpectEqual(pair.at(0), pair.at(1));
  }
  if (expect_.contains("cached_tokens_min")) ExpectCached(expect_.at("cached_tokens_min"));
  if (expect_.contains("cached_tokens_min_by_length")) {
    // Of the second, warm request.
    const int least = expect_.at("cached_tokens_min_by_length").at(std::to_string(length));
    ExpectCached({{expect_.at("equal").at(1).get<std::string>(), least}});
  }
}

// "finishes" and "status_all" are what RunRequests asks of every request.
void SequenceRun::ExpectOfEngine() const {
  if (expect_.contains("status_all")) {
    EXPECT_EQ(expect_.at("status_all"), 200);
  }
  if (expect_.contains("finishes")) {
    EXPECT_EQ(expect_.at("finishes"), true);
  }
  if (expect_.contains("evictions_min")) {
    EXPECT_GE(engine_->core().cache().num_evictions(), expect_.at("evictions_min").get<int64_t>());
  }
  if (expect_.contains("each_finishes_within_s")) {
    EXPECT_LE(longest_seconds_, expect_.at("each_finishes_within_s").get<double>());
  }
}

}  // namespace fathom::reports
