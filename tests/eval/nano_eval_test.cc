// fathom-nano's evaluation prompts, end to end: chat request -> prompt -> ids -> greedy completion.
//
// A completion must equal the expected text, or differ from a step on where the two likeliest
// tokens are closer than kTieBound: there another order of sums may choose the other one. The
// checkable answers must score within two points of the model card. Runs a fixed subset;
// FATHOM_EVAL=all runs all 358 prompts.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <regex>

#include "chat/chat_request.h"
#include "chat/json_parse.h"
#include "tests/golden/golden.h"
#include "tests/gpu.h"
#include "tokenizer/tokenizer.h"

namespace fathom {
namespace {

// Measured on all prompts: one completion leaves, at a gap of 6e-5. Ten prompts have a step closer
// than 0.6 in points differ by 1 to 2 % (model card).
constexpr float kTieBound = 0.05f;
constexpr double kCardScore = 356.0 / 358.0;
constexpr size_t kMaxNewTokens = 600;

struct Completion {
  std::string text;
  bool ended = false;
  // Per token: bytes of text before it, and the gap between the two likeliest tokens there.
  std::vector<std::pair<size_t, float>> gaps;
};

class NanoEval : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    FATHOM_REQUIRE_GPU_FOR(GetParam());
    const std::filesystem::path file = ProjectPath("tests/data/fathom-nano-eval.jsonl");
    std::ifstream lines(file);
    for (std::string line; std::getline(lines, line);)
      items_.push_back(nlohmann::ordered_json::parse(line));
    ASSERT_EQ(items_.size(), 358u);
    auto tokenizer = Tokenizer::Load(ProjectPath("models/fathom-nano"));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
    tokenizer_ = std::make_unique<Tokenizer>(std::move(tokenizer).value());
    rig_ = golden::MakeRig(ProjectPath("models/fathom-nano"), GetParam(), Numerics::kOfficial, 512,
                           16384);
    ASSERT_NE(rig_.runner, nullptr);
  }

  // What the request layer makes of the request must be the prompt that the model was evaluated
  // with.
  std::vector<TokenId> Prompt(const nlohmann::ordered_json& item) {
    auto body = ParseJson(item["request"].dump());
    EXPECT_TRUE(body.ok()) << body.status().ToString();
    PreparedChat prepared;
    const auto error = PrepareChat(*body, {}, prepared);
    EXPECT_FALSE(error.has_value()) << error->message;
    EXPECT_EQ(prepared.Text(), item["prompt"].get<std::string>()) << item["id"];
    std::vector<Segment> segments;
    for (const PromptSegment& s : prepared.segments) segments.push_back({s.text, s.from_template});
    auto ids = tokenizer_->EncodeSegments(segments);
    EXPECT_TRUE(ids.ok());
    EXPECT_EQ(ids->size(), item["prompt_tokens"].get<size_t>()) << item["id"];
    return std::move(ids).value();
  }

  Completion Complete(std::span<const TokenId> prompt) {
    std::vector<float> logits(static_cast<size_t>(rig_.model->config().vocab_size));
    rig_.runner->Clear();
    for (size_t begin = 0; begin < prompt.size(); begin += 512) {
      const size_t n = std::min<size_t>(512, prompt.size() - begin);
      Step(prompt.subspan(begin, n), logits);
    }
    Completion completion;
    for (size_t i = 0; i < kMaxNewTokens && !completion.ended; ++i) {
      const auto best = std::max_element(logits.begin(), logits.end());
      const auto token = static_cast<TokenId>(best - logits.begin());
      float second = -INFINITY;
      for (auto it = logits.begin(); it != logits.end(); ++it) {
        if (it != best) second = std::max(second, *it);
      }
      completion.gaps.emplace_back(completion.text.size(), *best - second);
      completion.ended = token == 1;
      if (!completion.ended) {
        completion.text += tokenizer_->TokenBytes(token);
        Step({&token, 1}, logits);
      }
    }
    return completion;
  }

  void Step(std::span<const TokenId> tokens, std::span<float> logits) {
    const Status status = rig_.runner->Step(tokens, SequenceRunner::Logits::kLast, logits);
    ASSERT_TRUE(status.ok()) << status.ToString();
  }

  std::vector<nlohmann::ordered_json> items_;
  std::unique_ptr<Tokenizer> tokenizer_;
  golden::Rig rig_;
};

// Whether the answer is right, by the item's own check (the rules of tools/nano/evaluate.py).
bool Passes(const nlohmann::ordered_json& item, const Completion& completion) {
  std::string text = completion.text;
  if (item["thinking"].get<bool>()) {
    const size_t end = text.find("</think>");
    if (end != std::string::npos) text = text.substr(end + 8);
  }
  nlohmann::json calls = nlohmann::json::array();
  const std::string mark = "\n\n<｜DSML｜tool_calls>";
  if (const size_t at = text.find(mark); at != std::string::npos) {
    const std::string block = text.substr(at + mark.size());
    text = text.substr(0, at);
    const std::regex invoke("<｜DSML｜invoke name=\"(.*?)\">\n([^]*?)</｜DSML｜invoke>");
    const std::regex parameter(
        "<｜DSML｜parameter name=\"(.*?)\" string=\"(true|false)\">([^]*?)</｜DSML｜parameter>");
    for (auto call = std::sregex_iterator(block.begin(), block.end(), invoke);
         call != std::sregex_iterator(); ++call) {
      const std::string body = (*call)[2];
      nlohmann::json arguments = nlohmann::json::object();
      for (auto p = std::sregex_iterator(body.begin(), body.end(), parameter);
           p != std::sregex_iterator(); ++p) {
        arguments[(*p)[1].str()] = (*p)[2] == "true"
                                       ? nlohmann::json((*p)[3].str())
                                       : nlohmann::json::parse((*p)[3].str(), nullptr, false);
      }
      calls.push_back({(*call)[1].str(), arguments});
    }
  }
  const nlohmann::json check = item["check"];
  if (check["type"] == "tool_calls") return completion.ended && calls == check["value"];
  if (check["type"] == "json") return nlohmann::json::parse(text, nullptr, false) == check["value"];
  if (check["type"] == "contains") {
    return completion.ended && text.find(check["value"].get<std::string>()) != std::string::npos;
  }
  return completion.ended && text.size() > 3;
}

TEST_P(NanoEval, GreedyCompletionsAndScore) {
  const char* which = std::getenv("FATHOM_EVAL");
  const bool all = which != nullptr && std::string(which) == "all";
  size_t run = 0, equal = 0, ties = 0, passed = 0;
  float widest_tie = 0.0f;
  for (size_t i = 0; i < items_.size(); ++i) {
    const nlohmann::ordered_json& item = items_[i];
    // The subset: all first-run prompts, every sixth other one, and one long prompt.
    if (!all && item["skill"] != "canon" && i % 6 != 0 && item["id"] != "long-000") continue;
    ++run;
    const Completion completion = Complete(Prompt(item));
    passed += Passes(item, completion) ? 1 : 0;
    const std::string expected = item["expected"];
    if (completion.text == expected && completion.ended) {
      ++equal;
      continue;
    }
    // The first token that leaves the expected text.
    size_t common = 0;
    while (common < std::min(completion.text.size(), expected.size()) &&
           completion.text[common] == expected[common]) {
      ++common;
    }
    float gap = INFINITY;
    for (const auto& [begin, step_gap] : completion.gaps) {
      if (begin <= common) gap = step_gap;
    }
    ++ties;
    widest_tie = std::max(widest_tie, gap);
    EXPECT_LT(gap, kTieBound) << item["id"] << ": expected " << expected << "\n got "
                              << completion.text;
  }
  const double score = static_cast<double>(passed) / static_cast<double>(run);
  std::cout << "fathom-nano, " << GetParam() << " backend: " << run << " prompts, " << equal
            << " completions equal, " << ties << " leave at a near tie (widest gap " << widest_tie
            << ", bound " << kTieBound << "), " << passed << " answers right (" << 100.0 * score
            << " %, card " << 100.0 * kCardScore << " %)\n";
  EXPECT_GT(run, 60u);
  EXPECT_GE(score, kCardScore - 0.02);
}

INSTANTIATE_TEST_SUITE_P(Backends, NanoEval,
                         testing::ValuesIn(HasCudaBackend()
                                               ? std::vector<std::string>{"cpu", "cuda"}
                                               : std::vector<std::string>{"cpu"}),
                         [](const auto& backend) { return backend.param; });

}  // namespace
}  // namespace fathom
