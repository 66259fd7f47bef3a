#include "bench/load/load_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "bench/load/fake_server.h"
#include "bench/load/model_query.h"

namespace fathom::load {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using Json = nlohmann::json;
using Answer = FakeServer::Answer;
using Then = FakeServer::Answer::Then;

const std::string kHello = "data: {\"choices\":[{\"delta\":{\"content\":\"Hello\"}}]}\n\n";
const std::string kUsage =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":4,"
    "\"prompt_tokens_details\":{\"cached_tokens\":6}}}\n\n";
const std::string kEnd = "data: [DONE]\n\n";
const std::string kGood = StreamOf({kHello, kHello, kUsage, kEnd});

Workload Chats(int turns = 1) {
  WorkloadOptions options;
  options.model = "m";
  options.input_tokens = 4;
  options.max_tokens = 4;
  options.turns = turns;
  auto workload = Workload::Create(options);
  EXPECT_TRUE(workload.ok());
  return std::move(workload).value();
}

LoadOptions Load(const std::string& url, int64_t number, int concurrency) {
  LoadOptions options;
  options.url = ParseBaseUrl(url).value();
  options.num_conversations = number;
  options.max_concurrency = concurrency;
  options.timeout = milliseconds(20'000);
  return options;
}

LoadResult Send(const LoadOptions& options, const Workload& workload) {
  auto result = RunLoad(options, workload);
  EXPECT_TRUE(result.ok()) << result.status().ToString();
  return result.ok() ? std::move(result).value() : LoadResult();
}

TEST(LoadRun, CountsAnswersAndKeepsConnections) {
  FakeServer server([](const auto&) { return Answer{kGood}; });
  LoadOptions options = Load(server.url() + "/v1", 9, 3);
  options.api_key = "secret";
  const LoadResult result = Send(options, Chats());
  EXPECT_EQ(result.num_ok, 9);
  EXPECT_EQ(result.num_failed, 0);
  EXPECT_EQ(result.most_at_once, 3);
  EXPECT_EQ(result.prompt_tokens, 90);
  EXPECT_EQ(result.cached_tokens, 54);
  EXPECT_EQ(result.output_tokens, 36);
  EXPECT_EQ(result.num_chunks, 18);
  EXPECT_EQ(result.chunk_times.count(), 9);
  EXPECT_EQ(result.by_status, (std::map<int, int64_t>{{200, 9}}));
  EXPECT_GT(result.duration.count(), 0);
  std::set<int> connections;
  for (const auto& request : server.requests()) {
    connections.insert(request.connection);
    EXPECT_THAT(request.head, HasSubstr("POST /v1/chat/completions HTTP/1.1"));
    EXPECT_THAT(request.head, HasSubstr("Authorization: Bearer secret"));
    EXPECT_TRUE(Json::parse(request.body, nullptr, false).at("stream"));
  }
  EXPECT_EQ(connections.size(), 3U);
}

TEST(LoadRun, CountsEveryWayToFail) {
  const std::string no_length = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
  const std::string bad_body = R"({"error":{"message":"queue full"}})";
  struct Case {
    Answer answer;
    const char *error, *message;
  };
  const std::vector<Case> cases = {
      {{WholeAnswer("503 Busy", "application/json", bad_body)}, "status 503", "queue full"},
      {{WholeAnswer("404 No", "text/plain", ""), Then::kClose}, "status 404", ""},
      {{WholeAnswer("200 OK", "application/json", "{}")}, "malformed", "application/json"},
      {{StreamOf({kHello, "data: nonsense\n\n"}), Then::kClose}, "malformed", "no JSON object"},
      {{"HELLO\r\n\r\n", Then::kClose}, "malformed", ""},
      {{StreamOf({kHello}, false) + "zz\r\n", Then::kClose}, "malformed", ""},
      {{StreamOf({kHello}), Then::kKeep}, "disconnected", "before the stream's end mark"},
      {{StreamOf({kHello, "data: {"}, false), Then::kClose}, "disconnected", "middle of an event"},
      {{no_length + kHello, Then::kClose}, "disconnected", "before the stream's end mark"},
      {{"HTTP/1.1 200 OK\r\nCont", Then::kClose}, "disconnected", "before an answer began"},
      {{"", Then::kClose}, "disconnected", "before an answer began"},
      {{StreamOf({kHello, "data: {\"error\":{\"message\":\"broke\"}}\n\n", kEnd})},
       "error in stream",
       "broke"},
      {{StreamOf({kHello}, false), Then::kSilence}, "timeout", "nothing came"},
      {{"", Then::kSilence}, "timeout", "nothing came"},
  };
  for (const Case& c : cases) {
    // An answer that fails does not harm the next one.
    FakeServer server(
        [&c](const auto& request) { return request.number == 0 ? c.answer : Answer{kGood}; });
    LoadOptions options = Load(server.url(), 2, 1);
    if (c.answer.then == Then::kSilence) options.timeout = milliseconds(200);
    const LoadResult result = Send(options, Chats());
    EXPECT_EQ(result.num_failed, 1) << c.error << c.message;
    EXPECT_EQ(result.num_ok, 1) << c.error << c.message;
    ASSERT_EQ(result.errors.size(), 1U);
    EXPECT_EQ(result.errors.begin()->first, c.error) << c.message;
    EXPECT_EQ(result.errors.begin()->second.count, 1);
    EXPECT_THAT(result.errors.begin()->second.example, HasSubstr(c.message));
  }
}

TEST(LoadRun, AStreamMayEndWithItsConnection) {
  FakeServer server([](const auto&) {
    return Answer{"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + kHello + kEnd,
                  Then::kClose};
  });
  const LoadResult result = Send(Load(server.url(), 3, 1), Chats());
  EXPECT_EQ(result.num_ok, 3);
  EXPECT_EQ(result.num_without_usage, 3);
  EXPECT_EQ(result.output_tokens, 3) << "chunks count where no usage comes";
}

// What came of a stream that stands still has its time, and its chunks are counted.
TEST(LoadRun, ChunksAreSeenAsTheyCome) {
  FakeServer server([](const auto&) {
    return Answer{StreamOf({kHello, kHello, kHello}, false), Then::kSilence};
  });
  LoadOptions options = Load(server.url(), 1, 1);
  options.timeout = milliseconds(200);
  const LoadResult result = Send(options, Chats());
  EXPECT_EQ(result.errors.count("timeout"), 1U);
  EXPECT_EQ(result.num_chunks, 3);
}

// A server that closes a connection after its answer is none that fails.
TEST(LoadRun, AKeptConnectionThatWasClosedIsOpenedAnew) {
  FakeServer server([](const auto&) { return Answer{kGood, Then::kClose}; });
  const LoadResult result = Send(Load(server.url(), 5, 1), Chats());
  EXPECT_EQ(result.num_ok, 5) << (result.errors.empty() ? "" : result.errors.begin()->first);
}

TEST(LoadRun, RefusedConnectionsAreCounted) {
  std::string url;
  {
    const FakeServer gone([](const auto&) { return Answer{}; });
    url = gone.url();
  }
  const LoadResult result = Send(Load(url, 7, 2), Chats());
  EXPECT_EQ(result.num_failed, 7);
  EXPECT_EQ(result.errors.at("connect").count, 7);
  EXPECT_THAT(result.errors.at("connect").example, HasSubstr("refused"));
  EXPECT_EQ(result.by_status, (std::map<int, int64_t>{{0, 7}}));
}

TEST(LoadRun, TurnsSendTheAnswersBack) {
  FakeServer server([](const auto&) { return Answer{kGood}; });
  const LoadResult result = Send(Load(server.url(), 2, 1), Chats(/*turns=*/3));
  EXPECT_EQ(result.num_ok, 6);
  EXPECT_EQ(result.most_at_once, 1);
  const auto requests = server.requests();
  ASSERT_EQ(requests.size(), 6U);
  const Json last = Json::parse(requests[2].body, nullptr, false);
  ASSERT_EQ(last["messages"].size(), 5U);
  EXPECT_EQ(last["messages"][1]["content"], "HelloHello");
  EXPECT_EQ(Json::parse(requests[3].body, nullptr, false)["messages"].size(), 1U);
}

TEST(LoadRun, AConversationEndsWithAnAnswerThatFails) {
  FakeServer server([](const auto&) {
    return Answer{WholeAnswer("500 Internal Server Error", "text/plain", "x")};
  });
  EXPECT_EQ(Send(Load(server.url(), 2, 2), Chats(/*turns=*/3)).num_failed, 2);
}

TEST(LoadRun, MessagesHaveTheirOwnHeadersAndEvents) {
  FakeServer server([](const auto&) {
    return Answer{
        StreamOf({"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":"
                  "{\"input_tokens\":5}}}\n\n",
                  "event: content_block_delta\ndata: {\"delta\":{\"text\":\"Hi\"}}\n\n",
                  "event: message_delta\ndata: {\"usage\":{\"output_tokens\":2}}\n\n",
                  "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"})};
  });
  WorkloadOptions options;
  options.endpoint = Endpoint::kMessages;
  options.input_tokens = 3;
  LoadOptions load = Load(server.url(), 1, 1);
  load.api_key = "k";
  const LoadResult result = Send(load, Workload::Create(options).value());
  EXPECT_EQ(result.num_ok, 1);
  EXPECT_EQ(result.prompt_tokens, 5);
  EXPECT_EQ(result.output_tokens, 2);
  const std::string head = server.requests().at(0).head;
  EXPECT_THAT(head, HasSubstr("POST /v1/messages"));
  EXPECT_THAT(head, HasSubstr("x-api-key: k"));
  EXPECT_THAT(head, HasSubstr("anthropic-version: "));
}

TEST(LoadRun, AnInterruptCancelsWhatRunsAndKeepsWhatWas) {
  std::atomic<bool> interrupt = false;
  FakeServer server([&interrupt](const auto& request) {
    if (request.number == 4) interrupt = true;
    return request.number < 3 ? Answer{kGood} : Answer{StreamOf({kHello}, false), Then::kSilence};
  });
  LoadOptions options = Load(server.url(), 0, 2);
  options.num_conversations.reset();
  options.interrupt = &interrupt;
  const LoadResult result = Send(options, Chats());
  EXPECT_EQ(result.num_ok, 3);
  EXPECT_EQ(result.num_cancelled, 2);
  EXPECT_EQ(result.num_failed, 0);
  EXPECT_TRUE(result.was_stopped);
}

TEST(LoadRun, ArrivalsAtARateAllCome) {
  FakeServer server([](const auto&) { return Answer{kGood}; });
  LoadOptions options = Load(server.url(), 40, 1);
  options.request_rate = 1000.0;
  EXPECT_EQ(Send(options, Chats()).num_ok, 40);
}

TEST(LoadRun, ADurationEndsIt) {
  FakeServer server([](const auto&) { return Answer{kGood}; });
  LoadOptions options = Load(server.url(), 0, 2);
  options.num_conversations.reset();
  options.duration = milliseconds(100);
  const LoadResult result = Send(options, Chats());
  EXPECT_GT(result.num_ok, 0);
  EXPECT_EQ(result.num_failed + result.num_cancelled, 0);
}

TEST(LoadRun, SaysWhyNothingCanBeSent) {
  LoadOptions options;
  options.url = {"127.0.0.1", "1", ""};
  EXPECT_EQ(RunLoad(options, Chats()).status().code(), StatusCode::kInvalidArgument);
  options.num_conversations = 1;
  options.api_key = "a\r\nb: c";
  EXPECT_EQ(RunLoad(options, Chats()).status().code(), StatusCode::kInvalidArgument);
}

TEST(FirstModel, AsksTheServer) {
  std::string answer =
      WholeAnswer("200 OK", "application/json", R"({"data":[{"id":"one"},{"id":"two"}]})");
  FakeServer server([&answer](const auto&) { return Answer{answer, Then::kClose}; });
  const auto ask = [&server] {
    return FirstModel(ParseBaseUrl(server.url()).value(), "key", milliseconds(20'000));
  };
  const auto model = ask();
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  EXPECT_EQ(*model, "one");
  EXPECT_THAT(server.requests().at(0).head, HasSubstr("GET /v1/models"));
  EXPECT_THAT(server.requests().at(0).head, HasSubstr("Bearer key"));
  answer = WholeAnswer("401 No", "application/json", R"({"error":{"message":"bad key"}})");
  EXPECT_THAT(ask().status().message(), HasSubstr("401, bad key"));
  for (const char* body : {"", "x", "[]", "{}", R"({"data":[]})", R"({"data":[{"id":1}]})"}) {
    answer = WholeAnswer("200 OK", "application/json", body);
    EXPECT_THAT(ask().status().message(), HasSubstr("no list of models")) << body;
  }
  answer = "";
  EXPECT_EQ(ask().status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace fathom::load
