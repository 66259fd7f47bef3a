// fathom bench serve against fathom serve --replay: what is counted, not how fast anything is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <map>
#include <optional>

#include "tests/cli/server.h"

namespace fathom::cli_test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

class BenchServe : public ::testing::Test {
 protected:
  // Begins a server that answers as the file says.
  void Serve(std::string_view replay, std::vector<std::string> options = {}) {
    options.insert(options.begin(), {"--replay", folder_.Write("r.json", replay)});
    server_.emplace(std::move(options));
    ASSERT_NE(server_->port(), 0);
  }
  std::vector<std::string> Arguments(std::vector<std::string> options) const {
    options.insert(options.begin(), {"bench", "serve", "--base-url",
                                     "http://127.0.0.1:" + std::to_string(server_->port())});
    return options;
  }
  Json Bench(std::vector<std::string> options) {
    options.emplace_back("--json");
    const Outcome outcome = RunFathom(Arguments(std::move(options)));
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    Json json = Json::parse(outcome.out, nullptr, false);
    EXPECT_TRUE(json.is_object()) << outcome.out;
    return json.is_object() ? json : Json::object();
  }

  TempFolder folder_;
  std::optional<Server> server_;
};

TEST_F(BenchServe, CountsTokensOfEveryEndpoint) {
  Serve(R"([{"tokens": ["a", " b", " c", " d"], "endless": true, "cached_tokens": 3}])");
  for (const char* endpoint : {"chat", "completions", "messages"}) {
    const Json json =
        Bench({"--endpoint", endpoint, "--num-prompts", "6", "--max-concurrency", "2",
               "--random-input-len", "8", "--random-output-len", "5", "--num-warmups", "1"});
    const Json& summary = json["summary"];
    EXPECT_EQ(summary["requests_ok"], 6) << endpoint;
    EXPECT_EQ(summary["requests_failed"], 0) << endpoint;
    EXPECT_EQ(summary["output_tokens"], 30) << endpoint;
    EXPECT_EQ(summary["cached_tokens"], 18) << endpoint;
    EXPECT_EQ(summary["most_at_once"], 2) << endpoint;
    EXPECT_GT(summary["prefix_hit_rate"], 0.0) << endpoint;
    EXPECT_GT(summary["output_tokens_per_s"], 0.0) << endpoint;
    EXPECT_FALSE(summary.contains("requests_without_usage")) << endpoint;
    EXPECT_EQ(json["conditions"]["model"], "fathom-nano");
    EXPECT_EQ(json["conditions"]["endpoint"], endpoint);
    for (const Json& row : json["tables"]["times of requests"]) {
      EXPECT_LE(row["p50_ms"], row["p99_ms"]) << endpoint;
      EXPECT_LE(row["p99_ms"], row["max_ms"]) << endpoint;
    }
  }
}

TEST_F(BenchServe, AWordIsAToken) {
  Serve(R"([{"text": "a"}])");
  const auto prompt_tokens = [this](const char* words) {
    return Bench({"--endpoint", "/v1/completions", "--num-requests", "1", "--input-len",
                  words})["summary"]["prompt_tokens"]
        .get<int>();
  };
  // The first word has no space in front.
  EXPECT_EQ(prompt_tokens("500") - prompt_tokens("100"), 400);
}

TEST_F(BenchServe, TurnsPrefixesRatesAndFiles) {
  Serve(R"([{"text": "one two"}])", {"--api-key", "secret"});
  const std::vector<std::string> key = {"--api-key", "secret", "--input-len", "5"};
  const auto bench = [&](std::vector<std::string> options) {
    options.insert(options.end(), key.begin(), key.end());
    return Bench(std::move(options))["summary"];
  };
  EXPECT_EQ(bench({"--num-requests", "2", "--turns", "3"})["requests_ok"], 6);
  EXPECT_EQ(bench({"--num-requests", "4", "--shared-prefix", "20", "--prefix-groups",
                   "2"})["requests_ok"],
            4);
  EXPECT_EQ(bench({"--num-requests", "5", "--request-rate", "500", "--seed", "3"})["requests_ok"],
            5);
  EXPECT_GE(bench({"--duration", "0.1", "--concurrency", "2"})["requests_ok"], 1);
  const std::string file =
      folder_.Write("bodies.jsonl",
                    "{\"prompt\": \"a\"}\n{\"messages\": [{\"role\": \"user\", "
                    "\"content\": \"b\"}], \"n\": 2}\n");
  const Json json = Bench({"--api-key", "secret", "--dataset-path", file});
  EXPECT_EQ(json["summary"]["requests_ok"], 2);
}

TEST_F(BenchServe, CountsFailuresAndShowsTheServersTime) {
  Serve(R"({"repeat": "cycle", "answers": [
    {"text": "good"}, {"submit_error": "queue_full"}, {"text": "a b", "fail_after_tokens": 1}]})");
  const Json json = Bench({"--num-requests", "9", "--concurrency", "1", "--input-len", "3",
                           "--server-pid", std::to_string(getpid())});
  EXPECT_EQ(json["summary"]["requests_ok"], 3);
  EXPECT_EQ(json["summary"]["requests_failed"], 6);
  EXPECT_TRUE(json["summary"]["server_cpu_s"].is_number());
  EXPECT_TRUE(json["summary"]["server_cpu_us_per_token"].is_number());
  std::map<std::string, int> errors;
  for (const Json& row : json["tables"]["errors"]) errors[row["kind"]] = row["requests"];
  EXPECT_EQ(errors, (std::map<std::string, int>{{"error in stream", 3}, {"status 503", 3}}));
}

TEST_F(BenchServe, CtrlCPrintsWhatThereIs) {
  Serve(R"([{"text": "one"}, {"text": "one two", "stall_after_tokens": 1}])");
  Program program(Arguments({"--concurrency", "1", "--input-len", "3", "--num-requests", "5"}));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const std::string stalled =
      "vllm:num_requests_running{model_name=\"fathom-nano\",engine=\"0\"} 1";
  for (std::string page; std::chrono::steady_clock::now() < deadline;) {
    page = http::TestClient(server_->port()).Ask("GET", "/metrics").body;
    if (page.find(stalled) != std::string::npos &&
        page.find("finished_reason=\"stop\"} 1") != std::string::npos) {
      break;
    }
  }
  program.Signal(SIGINT);
  const Outcome outcome = program.Finish();
  EXPECT_EQ(outcome.status, 130);
  EXPECT_THAT(outcome.out, HasSubstr("interrupted"));
  EXPECT_THAT(outcome.out, ::testing::ContainsRegex("requests_ok +1\n"));
  EXPECT_THAT(outcome.out, ::testing::ContainsRegex("requests_cancelled +1\n"));
}

TEST(BenchServeArguments, MistakesAreSaid) {
  const auto expect = [](std::vector<std::string> options, int status, const char* message) {
    options.insert(options.begin(), {"bench", "serve"});
    const Outcome outcome = RunFathom(options);
    EXPECT_EQ(outcome.status, status) << message;
    EXPECT_THAT(outcome.err, HasSubstr(message));
  };
  expect({"--base-url", "127.0.0.1:1"}, 2, "does not begin with http://");
  expect({"--base-url", "https://h"}, 1, "no TLS");
  expect({"--request-rate", "0"}, 2, "--request-rate");
  expect({"--request-rate", "nan"}, 2, "--request-rate");
  expect({"--dataset-name", "custom"}, 2, "needs --dataset-path");
  expect({"--dataset-name", "sharegpt"}, 2, "--dataset-name");
  expect({"--duration", "5"}, 2, "--duration needs");
  expect({"--token-ids", "5-", "--endpoint", "completions"}, 2, "--token-ids");
  expect({"--prefix-groups", "2"}, 2, "needs --shared-prefix");
  expect({"--endpoint", "/v1/embeddings"}, 2, "--endpoint");
  expect({"--dataset-path", "/no/such/file"}, 1, "/no/such/file");
  expect({"--base-url", "http://h", "--port", "1"}, 2, "--port");
  expect({"--concurrency", "0"}, 2, "--concurrency");
  expect({"--model", "m", "--extra-body", "[]"}, 1, "no JSON object");
  // Port 1 of the own machine: nobody listens there.
  expect({"--base-url", "http://127.0.0.1:1"}, 1, "127.0.0.1:1/v1/models");
  expect({"--base-url", "http://127.0.0.1:1", "--model", "m", "--num-requests", "2"}, 1,
         "no request succeeded");
}

}  // namespace
}  // namespace fathom::cli_test
