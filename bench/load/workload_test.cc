#include "bench/load/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

namespace fathom::load {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

Workload Make(WorkloadOptions options) {
  auto workload = Workload::Create(std::move(options));
  EXPECT_TRUE(workload.ok()) << workload.status().ToString();
  return std::move(workload).value();
}

Json Body(const Workload& workload, int64_t index) {
  return Json::parse(workload.NewConversation(index).NextBody(), nullptr, false);
}

int64_t NumWords(const Json& text) {
  const std::string words = text.get<std::string>();
  return words.empty() ? 0 : std::count(words.begin(), words.end(), ' ') + 1;
}

WorkloadOptions Small() {
  WorkloadOptions options;
  options.model = "m";
  options.seed = 7;
  options.input_tokens = 20;
  options.max_tokens = 10;
  return options;
}

TEST(Workload, IsTheSameForASeedInAnyOrder) {
  const Workload a = Make(Small()), b = Make(Small());
  std::vector<std::string> bodies;
  for (int64_t i = 0; i < 50; ++i) bodies.push_back(a.NewConversation(i).NextBody());
  for (int64_t i = 49; i >= 0; --i) {
    EXPECT_EQ(b.NewConversation(i).NextBody(), bodies[static_cast<size_t>(i)]);
  }
  EXPECT_EQ(std::set<std::string>(bodies.begin(), bodies.end()).size(), bodies.size());
  WorkloadOptions other = Small();
  other.seed = 8;
  EXPECT_NE(Make(other).NewConversation(0).NextBody(), bodies[0]);
}

// What a seed means must not change between machines or versions: figures are compared.
TEST(Workload, IsWhatItAlwaysWas) {
  WorkloadOptions options = Small();
  options.input_tokens = 6;
  EXPECT_EQ(Body(Make(options), 0)["messages"][0]["content"], "in small long are data do");
}

TEST(Workload, LengthsStayInTheirRangeAndReachItsEnds) {
  WorkloadOptions options = Small();
  options.range_ratio = 0.5;
  const Workload workload = Make(options);
  std::set<int64_t> inputs, outputs;
  for (int64_t i = 0; i < 500; ++i) {
    const Json body = Body(workload, i);
    inputs.insert(NumWords(body["messages"][0]["content"]));
    outputs.insert(body["max_tokens"].get<int64_t>());
  }
  EXPECT_EQ(*inputs.begin(), 10);
  EXPECT_EQ(*inputs.rbegin(), 30);
  EXPECT_EQ(*outputs.begin(), 5);
  EXPECT_EQ(*outputs.rbegin(), 15);
}

TEST(Workload, GroupsShareTheirPrefixAndNothingElse) {
  WorkloadOptions options = Small();
  options.prefix_tokens = 40;
  options.num_prefixes = 3;
  const Workload workload = Make(options);
  std::set<std::string> prefixes, questions;
  for (int64_t i = 0; i < 9; ++i) {
    const Json body = Body(workload, i);
    EXPECT_EQ(body["messages"][0]["role"], "system");
    EXPECT_EQ(NumWords(body["messages"][0]["content"]), 40);
    EXPECT_EQ(body["messages"][0], Body(workload, i % 3)["messages"][0]);
    prefixes.insert(body["messages"][0].dump());
    questions.insert(body["messages"][1].dump());
  }
  EXPECT_EQ(prefixes.size(), 3U);
  EXPECT_EQ(questions.size(), 9U);

  options.endpoint = Endpoint::kMessages;
  const Json body = Body(Make(options), 0);
  EXPECT_EQ(NumWords(body["system"]), 40);
  EXPECT_FALSE(body.contains("stream_options"));
  options.endpoint = Endpoint::kCompletions;
  EXPECT_EQ(NumWords(Body(Make(options), 0)["prompt"]), 60);
}

TEST(Workload, ATurnRepeatsAllBeforeIt) {
  WorkloadOptions options = Small();
  options.turns = 3;
  Conversation conversation = Make(options).NewConversation(4);
  const Json first = Json::parse(conversation.NextBody());
  conversation.AddAnswer("one \xff");
  const Json second = Json::parse(conversation.NextBody());
  conversation.AddAnswer("two");
  EXPECT_FALSE(conversation.is_over());
  const Json third = Json::parse(conversation.NextBody());
  EXPECT_TRUE(conversation.is_over());
  ASSERT_EQ(first["messages"].size(), 1U);
  ASSERT_EQ(third["messages"].size(), 5U);
  EXPECT_EQ(second["messages"][0], first["messages"][0]);
  EXPECT_EQ(third["messages"][1]["content"], "one \xef\xbf\xbd");
  EXPECT_EQ(third["messages"][3]["content"], "two");
  EXPECT_EQ(third["messages"][3]["role"], "assistant");
  EXPECT_NE(third["messages"][4], third["messages"][2]);
}

TEST(Workload, CompletionsMayBeTokenIds) {
  WorkloadOptions options = Small();
  options.endpoint = Endpoint::kCompletions;
  options.token_ids = {100, 103};
  options.prefix_tokens = 4;
  std::set<int64_t> seen;
  const Json body = Body(Make(options), 1);
  for (const Json& id : body["prompt"]) seen.insert(id.get<int64_t>());
  EXPECT_EQ(body["prompt"].size(), 24U);
  EXPECT_EQ(seen, (std::set<int64_t>{100, 101, 102, 103}));
}

TEST(Workload, BodiesOfAFileAreSentAsTheyAreAsFarAsTheyCan) {
  WorkloadOptions options;
  options.bodies =
      "{\"messages\": [], \"model\": \"other\", \"max_completion_tokens\": 3, \"stream\": false}\n"
      "\n{\"prompt\": \"hello\", \"top_k\": 1}";
  options.extra_body = R"({"top_k": 5, "seed": 1})";
  const Workload workload = Make(options);
  EXPECT_EQ(workload.num_bodies(), 2);
  const Json first = Body(workload, 2);
  EXPECT_EQ(first["model"], "other");
  EXPECT_EQ(first["max_completion_tokens"], 3);
  EXPECT_EQ(first["stream"], true);
  EXPECT_EQ(first["top_k"], 5);
  const Json second = Body(workload, 1);
  EXPECT_EQ(second["messages"][0]["content"], "hello");
  EXPECT_FALSE(second.contains("prompt"));
  EXPECT_EQ(second["top_k"], 1) << "a line's own members count";
  EXPECT_EQ(second["seed"], 1);

  options.model = "m";
  options.max_tokens = 9;
  options.ignore_eos = true;
  const Json changed = Body(Make(options), 0);
  EXPECT_EQ(changed["model"], "m");
  EXPECT_EQ(changed["max_tokens"], 9);
  EXPECT_FALSE(changed.contains("max_completion_tokens"));
  EXPECT_EQ(changed["ignore_eos"], true);
}

TEST(Workload, SaysWhatIsWrong) {
  const auto expect = [](WorkloadOptions options, const char* message) {
    const auto workload = Workload::Create(std::move(options));
    ASSERT_FALSE(workload.ok()) << message;
    EXPECT_THAT(workload.status().message(), HasSubstr(message));
  };
  WorkloadOptions options;
  options.bodies = "{\"prompt\": \"a\"}\n[]\n";
  expect(options, "line 2: no JSON object");
  options.bodies = "\n{\"a\": 1}";
  expect(options, "line 2: neither messages nor prompt");
  options.bodies = "";
  expect(options, "no bodies");
  options.bodies = "{\"prompt\": \"a\"}";
  options.turns = 2;
  expect(options, "one turn each");
  options = {};
  options.turns = 2;
  options.endpoint = Endpoint::kCompletions;
  expect(options, "several turns");
  options = {};
  options.token_ids = {1, 2};
  expect(options, "need the endpoint completions");
  options.endpoint = Endpoint::kCompletions;
  options.token_ids = {3, 2};
  expect(options, "LOW-HIGH");
  options = {};
  options.extra_body = "[1]";
  expect(options, "no JSON object");
}

}  // namespace
}  // namespace fathom::load
