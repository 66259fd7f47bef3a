// GET /metrics: when it answers, and what requests leave on it.
#include "server/metrics.h"

#include <thread>

#include "server/metrics_fixture.h"

namespace fathom {
namespace {

using namespace std::chrono_literals;
using http::TestClient;

TEST_F(Metrics, AnswerInEveryStateWithoutAKey) {
  options_.api_keys = {"secret"};
  Bind();
  const Reply loading = Get("/metrics");
  EXPECT_EQ(loading.status, 200);
  EXPECT_EQ(loading.headers.at("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_EQ(Finished(ReadExposition(loading.body), "stop"), 0);
  EXPECT_FALSE(ReadExposition(loading.body).Find("vllm:num_requests_running"));
  server_->Serve(&engine_, &front_end_);
  EXPECT_EQ(Scrape().Value("vllm:num_requests_running"), 0);
  EXPECT_EQ(Post("/metrics", "{}").status, 405);

  // Draining: no connection is accepted, but a request on its way is answered.
  TestClient scraper(port()), running(port());
  engine_.SetGate(false);
  engine_.Script(IdsAndEos("x"));
  running.SendRequest("POST", "/v1/chat/completions", ChatBody(""),
                      "Authorization: Bearer secret\r\n");
  scraper.SendRaw("GET /metrics HTTP/1.1\r\nHost: x\r\n");
  ASSERT_TRUE(engine_.WaitFor(1, 0, 20s));
  std::thread shutdown([this] { server_->Shutdown(20s); });
  while (TestClient(server_->port()).connected()) std::this_thread::yield();
  scraper.SendRaw("\r\n");
  const Reply draining = scraper.ReadReply();
  EXPECT_EQ(draining.status, 200);
  EXPECT_EQ(ReadExposition(draining.body).Value("vllm:num_requests_running"), 1);
  engine_.SetGate(true);
  EXPECT_EQ(running.ReadReply().status, 200);
  shutdown.join();
}

TEST_F(Metrics, CountRequestsByWhatTheirClientsGot) {
  engine_.SetStats(Distinct());
  engine_.SetCachedTokens(2);
  engine_.Script(IdsAndEos("</think>abcd"));
  EXPECT_EQ(Chat(R"("max_tokens": 100)").status, 200);                // 6 tokens
  EXPECT_EQ(Chat(R"("max_tokens": 3, "stream": true)").status, 200);  // 3
  const auto num_prompt = static_cast<double>(engine_.requests()[0].prompt.size());
  MetricPage page = Scrape();
  EXPECT_EQ(Finished(page, "stop"), 1);
  EXPECT_EQ(Finished(page, "length"), 1);
  EXPECT_EQ(Finished(page, "abort"), 0);
  EXPECT_EQ(Finished(page, "error"), 0);
  EXPECT_EQ(page.Value("vllm:generation_tokens_total"), 15 + 9);
  EXPECT_EQ(page.Value("vllm:prompt_tokens_total"), 1330 + 2 * num_prompt);
  EXPECT_EQ(page.Value("vllm:time_to_first_token_seconds_count"), 2);
  EXPECT_EQ(page.Value("vllm:inter_token_latency_seconds_count"), 5 + 2);
  EXPECT_EQ(page.Value("vllm:request_time_per_output_token_seconds_count"), 2);
  EXPECT_EQ(page.Value("vllm:request_prompt_tokens_sum"), 2 * num_prompt);
  EXPECT_EQ(page.Value("vllm:request_prefill_kv_computed_tokens_sum"), 2 * (num_prompt - 2));
  EXPECT_EQ(page.Value("vllm:request_generation_tokens_sum"), 9);
  EXPECT_EQ(page.Value("vllm:request_max_num_generation_tokens_sum"), 9);
  EXPECT_EQ(page.Value("vllm:request_params_max_tokens_sum"), 103);
  EXPECT_EQ(page.Value("vllm:request_params_n_sum"), 2);
  for (const char* name : {"e2e_request_latency", "request_queue_time", "request_inference_time",
                           "request_prefill_time", "request_decode_time"}) {
    EXPECT_EQ(page.Value("vllm:" + std::string(name) + "_seconds_count"), 2) << name;
  }

  // A stop string: the engine would say "abort", and may have run ahead of it.
  EXPECT_EQ(Chat(R"("stop": "b", "max_tokens": 100)").status, 200);
  page = ScrapeUntil("vllm:request_success_total", {{"finished_reason", "stop"}}, 2);
  EXPECT_EQ(page.Value("vllm:request_generation_tokens_sum"), 9 + 3);
  EXPECT_EQ(page.Value("vllm:inter_token_latency_seconds_count"), 7 + 2);
  EXPECT_EQ(Finished(page, "abort"), 0);

  engine_.ScriptError(Ids("</think>a"), Internal("exploded"));
  EXPECT_EQ(Chat().status, 500);
  page = Scrape();
  EXPECT_EQ(Finished(page, "error"), 1);
  EXPECT_EQ(page.Value("vllm:time_to_first_token_seconds_count"), 4);
  EXPECT_EQ(page.Value("vllm:e2e_request_latency_seconds_count"), 3);

  // Two prompts are two requests of the engine; an echo without tokens is none.
  engine_.Script(IdsAndEos("x"));
  Complete(R"("prompt": [[5], [6]])");
  Complete(R"("prompt": [5], "echo": true, "max_tokens": 0)");
  EXPECT_EQ(Finished(Scrape(), "stop"), 4);
}

TEST_F(Metrics, TimesAreOfThePhasesOfARequest) {
  const RequestRecord::Clock::time_point start(1h);
  RequestRecord record;
  record.reason = FinishReason::kLength;
  record.num_prompt_tokens = 7;
  record.num_generated_tokens = 5;
  record.max_tokens = 5;
  record.arrival = start;
  record.timings.arrival = start + 1s;
  record.timings.first_scheduled = start + 3s;
  record.timings.first_token = start + 7s;
  record.timings.last_token = start + 15s;
  record.last_token = start + 15s;
  record.end = start + 31s;
  ServerMetrics metrics("m");
  metrics.Attach(&engine_);
  metrics.ObserveFirstToken(7s);
  metrics.ObserveNextToken(2s);
  metrics.ObserveFinish(record);
  auto sum = [&metrics](const std::string& name) {
    return ReadExposition(metrics.Expose()).Value("vllm:" + name + "_seconds_sum");
  };
  EXPECT_EQ(sum("time_to_first_token"), 7);
  EXPECT_EQ(sum("inter_token_latency"), 2);
  EXPECT_EQ(sum("e2e_request_latency"), 31);
  EXPECT_EQ(sum("request_queue_time"), 2);
  EXPECT_EQ(sum("request_prefill_time"), 4);
  EXPECT_EQ(sum("request_inference_time"), 12);
  EXPECT_EQ(sum("request_decode_time"), 8);
  EXPECT_EQ(sum("request_time_per_output_token"), 2);

  // A stop string at 11 s; the engine went on to 15 s.
  record.reason = FinishReason::kStop;
  record.num_generated_tokens = 3;
  record.last_token = start + 11s;
  metrics.ObserveFinish(record);
  EXPECT_EQ(sum("request_inference_time"), 12 + 8);
  EXPECT_EQ(sum("request_decode_time"), 8 + 4);
  EXPECT_EQ(sum("request_time_per_output_token"), 2 + 2);

  // An engine without times, and requests that did not come to their end, have none.
  record.timings = {};
  metrics.ObserveFinish(record);
  record.reason = FinishReason::kAborted;
  metrics.ObserveFinish(record);
  record.reason = FinishReason::kError;
  metrics.ObserveFinish(record);
  const MetricPage page = ReadExposition(metrics.Expose());
  EXPECT_EQ(page.Value("vllm:e2e_request_latency_seconds_count"), 3);
  EXPECT_EQ(page.Value("vllm:request_queue_time_seconds_count"), 2);
  EXPECT_EQ(page.Value("vllm:request_decode_time_seconds_count"), 2);
  EXPECT_EQ(page.Value("vllm:request_time_per_output_token_seconds_count"), 2);
}

TEST_F(Metrics, CountClientsThatLeft) {
  engine_.ScriptEndless(Ids("a")[0]);
  TestClient running(port()), waiting(port());
  running.SendRequest("POST", "/v1/chat/completions", ChatBody(R"("stream": true)"));
  EXPECT_EQ(running.ReadHead().status, 200);
  ASSERT_TRUE(engine_.WaitFor(1, 0, 20s));
  waiting.SendRequest("POST", "/v1/chat/completions", ChatBody(""));
  ASSERT_TRUE(engine_.WaitFor(1, 1, 20s));
  EXPECT_EQ(Scrape().Value("vllm:num_requests_waiting"), 1);
  running.Close();
  waiting.Close();
  const auto page = ScrapeUntil("vllm:request_success_total", {{"finished_reason", "abort"}}, 2);
  EXPECT_EQ(page.Value("vllm:e2e_request_latency_seconds_count"), 0);
  EXPECT_EQ(Finished(page, "stop") + Finished(page, "length") + Finished(page, "error"), 0);
}

TEST_F(Metrics, CountRequestsThatAFullQueueRefused) {
  engine_.SetSubmitStatus(Unavailable("the queue is full"));
  for (const char* fields : {"", R"("stream": true)"}) {
    const Reply reply = Chat(fields);
    ExpectError(reply, 503, "Service Unavailable", nullptr);
    EXPECT_EQ(reply.headers.at("Retry-After"), "1");
  }
  engine_.SetSubmitStatus(InvalidArgument("top_p: wrong"));
  EXPECT_EQ(Chat().status, 400);
  const MetricPage page = Scrape();
  EXPECT_EQ(page.Value("vllm:admission_rejections_total", {{"reason", "max_num_queued_reqs"}}), 2);
  for (const char* reason : {"stop", "length", "abort", "error"}) {
    EXPECT_EQ(Finished(page, reason), 0);
  }
}

TEST_F(Metrics, AScrapeWhileFiftyStreamsRunIsConsistent) {
  constexpr int kStreams = 50;
  constexpr int kTokens = 30;
  engine_.AddThreads(kStreams - 1);
  engine_.Script(std::vector<TokenId>(1000, Ids("a")[0]));
  engine_.SetGate(false);
  Start();
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.push_back(std::make_unique<TestClient>(port()));
    clients.back()->SendRequest(
        "POST", "/v1/chat/completions",
        ChatBody(R"("stream": true, "max_tokens": )" + std::to_string(kTokens)));
  }
  ASSERT_TRUE(engine_.WaitFor(kStreams, 0, 20s));
  EXPECT_EQ(Scrape().Value("vllm:num_requests_running"), kStreams);

  std::thread reader([&clients] {
    for (const auto& client : clients) EXPECT_TRUE(client->ReadReply().complete);
  });
  engine_.SetGate(true);
  double tokens = 0;
  MetricPage page;
  do {
    page = Scrape();
    for (const auto& [name, family] : page.families) {
      if (family.type != "histogram") continue;
      double last_bucket = 0, count = 0;
      for (const MetricSample& sample : family.samples) {
        if (sample.name == name + "_count") count += sample.value;
        if (sample.name == name + "_bucket" && sample.labels.at("le") == "+Inf") {
          last_bucket += sample.value;
        }
      }
      EXPECT_EQ(last_bucket, count) << name;
    }
    EXPECT_GE(page.Value("vllm:generation_tokens_total"), tokens);
    tokens = page.Value("vllm:generation_tokens_total");
  } while (Finished(page, "length") < kStreams && !HasFailure());
  reader.join();
  EXPECT_EQ(tokens, kStreams * kTokens);
  EXPECT_EQ(page.Value("vllm:time_to_first_token_seconds_count"), kStreams);
  EXPECT_EQ(page.Value("vllm:inter_token_latency_seconds_count"), kStreams * (kTokens - 1));
  EXPECT_EQ(page.Value("vllm:e2e_request_latency_seconds_count"), kStreams);
  EXPECT_TRUE(engine_.WaitFor(0, 0, 20s));
}

}  // namespace
}  // namespace fathom
