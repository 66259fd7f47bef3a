// Field reports about the cache and its memory, from outside: the program and its HTTP API
// (tests/reports/README.md).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "server/http/test_client.h"
#include "tests/cli/program.h"
#include "tests/reports/report_files.h"

namespace fathom::cli_test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;
using http::TestClient;

// A random checkpoint as small as one with all kinds of layers and the bundled tokenizer can be.
std::string WriteTiny(const TempFolder& folder) {
  const std::string model = (folder.path() / "tiny").string();
  const Outcome outcome = RunFathom({"synth",
                                     model,
                                     "--preset",
                                     "tiny",
                                     "--ratios",
                                     "0,4,128",
                                     "--no-mtp",
                                     "--hidden",
                                     "128",
                                     "--heads",
                                     "1",
                                     "--o-groups",
                                     "1",
                                     "--index-heads",
                                     "1",
                                     "--index-head-dim",
                                     "64",
                                     "--index-topk",
                                     "8",
                                     "--experts",
                                     "2",
                                     "--experts-per-token",
                                     "1",
                                     "--tokenizer",
                                     ProjectPath("models/fathom-nano").string()});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return model;
}

int64_t NumberBehind(const std::string& words, const std::string& text) {
  const size_t at = text.find(words);
  EXPECT_NE(at, std::string::npos) << words << "<number> is not in " << text;
  return at == std::string::npos ? -1 : std::atoll(text.c_str() + at + words.size());
}

// R090. --kv-memory is --kv-cache-memory-bytes here.
TEST(CacheReports, AContextThatDoesNotFitIsRefusedWithWhatWould) {
  const Json report = reports::ReadReport("R090");
  const TempFolder folder;
  auto argv = report.at("input").at("argv").get<std::vector<std::string>>();
  for (std::string& argument : argv) {
    if (argument == "$TINY") argument = WriteTiny(folder);
    if (argument == "--kv-memory") argument = "--kv-cache-memory-bytes";
  }
  argv.insert(argv.end(), {"--port", "0"});
  const Outcome outcome = RunFathom(argv);
  EXPECT_EQ(outcome.status, 1);
  for (const Json& word : report.at("expect").at("stderr_mentions")) {
    EXPECT_THAT(outcome.err, HasSubstr(word.get<std::string>()));
  }
  // Numbers that help. The memory that it names is enough for something, and the length that it
  // names then does start.
  const int64_t least = NumberBehind("to at least ", outcome.err);
  ASSERT_GT(least, 1 << 20);
  std::replace(argv.begin(), argv.end(), std::string("1MiB"), std::to_string(least));
  const int64_t fits = NumberBehind("what fits is ", RunFathom(argv).err);
  ASSERT_GT(fits, 1);
  const auto length = std::find(argv.begin(), argv.end(), "131072");
  ASSERT_NE(length, argv.end());
  *length = std::to_string(fits + 1);
  EXPECT_EQ(RunFathom(argv).status, 1);
  *length = std::to_string(fits);
  Program program(argv);
  EXPECT_TRUE(program.WaitForOutput("/v1"));
  program.Signal(SIGTERM);
  EXPECT_EQ(program.Finish().status, 0);
}

// R162
TEST(CacheReports, TheLogOfAServerTellsHowPrefixesHit) {
  const Json report = reports::ReadReport("R162");
  const TempFolder folder;
  Program program({"serve", "--model", WriteTiny(folder), "--port", "0"});
  ASSERT_TRUE(program.WaitForOutput("/v1"));
  program.Signal(SIGTERM);
  const Outcome outcome = program.Finish();
  EXPECT_EQ(outcome.status, 0);
  const size_t begin = outcome.err.find("prefix cache:");
  ASSERT_NE(begin, std::string::npos) << outcome.err;
  const std::string line = outcome.err.substr(begin, outcome.err.find('\n', begin) - begin);
  for (const Json& word : report.at("expect").at("log_mentions")) {
    EXPECT_THAT(line, HasSubstr(word.get<std::string>()));
  }
}

// R070, on the real engine; server/chat_completions_test.cc has the ends of answers.
TEST(CacheReports, UsageTellsHitsOfARepeatedPrompt) {
  const Json report = reports::ReadReport("R070");
  std::string text;
  for (int i = 0; i < 1300; ++i) text += i % 7 == 0 ? " the" : " a";
  Program program({"serve", "--port", "0", "--served-model-name", "m", "--max-model-len", "4096"});
  const std::string before = "http://127.0.0.1:";
  ASSERT_TRUE(program.WaitForOutput(before) && program.WaitForOutput("/v1"));
  const int port =
      std::atoi(program.output().c_str() + program.output().find(before) + before.size());
  const auto ask = [&](Json body, bool stream) {
    body["messages"][0]["content"] = text;
    body["stream"] = stream;
    const auto reply = TestClient(port).Ask("POST", "/v1/chat/completions", body.dump());
    EXPECT_EQ(reply.status, 200) << reply.body;
    std::string json = reply.body;
    if (stream) {
      // The last event before [DONE] has the usage.
      const size_t done = json.rfind("data: [DONE]");
      const size_t at = json.rfind("data: ", done - 1);
      EXPECT_NE(at, std::string::npos) << json;
      json = json.substr(at + 6, done - at - 6);
    }
    const Json parsed = Json::parse(json, nullptr, false);
    EXPECT_TRUE(parsed.is_object()) << json;
    return parsed.value("usage", Json::object());
  };
  const Json& requests = report.at("input").at("requests");
  const auto expect_usage = [](const Json& usage, int64_t least_cached, int64_t most_cached) {
    const int64_t cached = usage.at("prompt_tokens_details").at("cached_tokens");
    EXPECT_GE(cached, least_cached) << usage;
    EXPECT_LE(cached, most_cached) << usage;
    EXPECT_GE(usage.at("prompt_tokens"), 1200);
    EXPECT_EQ(usage.at("prompt_cache_hit_tokens"), cached);
    EXPECT_EQ(cached + usage.at("prompt_cache_miss_tokens").get<int64_t>(),
              usage.at("prompt_tokens"));
  };
  const Json& second = report.at("expect").at("second_usage");
  const int64_t least = second.at("prompt_tokens_details.cached_tokens_min");
  expect_usage(ask(requests.at(0).at("body"), false), 0, 0);
  ASSERT_TRUE(requests.at(1).at("body").at("stream"));
  expect_usage(ask(requests.at(1).at("body"), true), least, 10'000);
  expect_usage(ask(requests.at(0).at("body"), false), least, 10'000);
  program.Signal(SIGTERM);
  EXPECT_EQ(program.Finish().status, 0);
}

// R093. Of the whole process, the pages that the cache fills taken off.
TEST(CacheReports, WorkingMemoryDoesNotGrowWithThePrompt) {
  const Json report = reports::ReadReport("R093");
  const TempFolder folder;
  const std::string model = WriteTiny(folder);
  std::vector<int64_t> working;
  for (const Json& run : report.at("input").at("runs")) {
    const int64_t num_tokens = run.at("pattern").at(1);
    std::string text;
    for (int64_t i = 0; i < num_tokens; ++i) text += " a";
    const Outcome outcome = RunFathom({"generate", "--model", model, "--raw", "--json", "-n", "1",
                                       "--ignore-eos", "--threads", "2", "--max-model-len", "30400",
                                       "--file", folder.Write("prompt", text)});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const Json answer = Json::parse(outcome.out, nullptr, false);
    ASSERT_TRUE(answer.is_object()) << outcome.out;
    EXPECT_NEAR(answer.at("usage").at("prompt_tokens").get<double>(),
                static_cast<double>(num_tokens), 2);
    const Outcome plan =
        RunFathom({"plan", model, "--lengths", std::to_string(num_tokens), "--json"});
    const Json planned = Json::parse(plan.out, nullptr, false);
    ASSERT_TRUE(planned.is_object()) << plan.out << plan.err;
    const int64_t cache = planned.at("lengths").at(0).at("page_block_bytes");
    working.push_back(outcome.peak_bytes - cache);
    RecordProperty("working_bytes_" + std::to_string(num_tokens), std::to_string(working.back()));
  }
  ASSERT_EQ(working.size(), 2u);
  ASSERT_GT(working[0], 0);
  EXPECT_LE(working[1], 2 * working[0]);
  // Program and weights are most of that, so more sharply: what the longer prompt takes besides is
  // its text and ids, a few times over. Scores of one step over its entries would be 15 MB.
  EXPECT_LE(working[1] - working[0], 4 << 20);
}

}  // namespace
}  // namespace fathom::cli_test
