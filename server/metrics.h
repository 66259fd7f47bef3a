// ServerMetrics: what GET /metrics shows, in Prometheus' text format 0.0.4.
//
// Names, labels and buckets are vLLM's, so that its dashboards work; docs/metrics.md lists them.
// Requests are observed where the server sees their tokens and their end; the engine's own numbers
// (engine_metrics.h) are read at each scrape. Any thread may call any method.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "chat/parser_repairs.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "server/engine_metrics.h"

namespace prometheus {
class Counter;
class Histogram;
class Registry;
}  // namespace prometheus

namespace fathom {

// One request of the engine, at its end. Points in time that were not reached are at their default.
struct RequestRecord {
  using Clock = RequestTimings::Clock;
  FinishReason reason = FinishReason::kAborted;  // as the client was told
  int64_t num_prompt_tokens = 0;
  int64_t num_cached_tokens = 0;
  int64_t num_generated_tokens = 0;  // up to a stop string, although the engine may run ahead
  int64_t max_tokens = 0;
  int num_samples = 1;           // of the prompt (`n`); 0 for all but its first one
  Clock::time_point arrival;     // at the server, before its body was parsed
  Clock::time_point last_token;  // of num_generated_tokens
  Clock::time_point end;
  RequestTimings timings;  // the engine's
};

class ServerMetrics {
 public:
  // `model_name` is a label of everything. Bytes of it that are no UTF-8 become U+FFFD, because
  // Prometheus would refuse the whole page.
  explicit ServerMetrics(std::string_view model_name);
  ~ServerMetrics();

  // Once, before the first request. The engine must outlive the last Expose.
  void Attach(const Engine* engine);

  void ObserveFirstToken(RequestRecord::Clock::duration since_arrival);
  void ObserveNextToken(RequestRecord::Clock::duration since_last_token);
  // Once per request that the engine has taken. Those that were aborted or failed are counted by
  // their reason only: how long they took says nothing about the server.
  void ObserveFinish(const RequestRecord& record);
  // What was repaired in the text of an answer (chat/parser_repairs.h).
  void ObserveRepairs(std::span<const int, kNumParserRepairs> counts);

  // The page. Before Attach it has no engine in it.
  [[nodiscard]] std::string Expose() const;

 private:
  prometheus::Histogram* NewHistogram(const char* name, const char* help,
                                      std::span<const double> bounds);

  const MetricLabels labels_;
  const std::unique_ptr<prometheus::Registry> registry_;  // owns all that is pointed to below
  std::array<prometheus::Counter*, 4> finished_{};        // by FinishReason
  std::array<prometheus::Counter*, kNumParserRepairs> repairs_{};  // by ParserRepair
  prometheus::Histogram* params_n_;
  prometheus::Histogram* first_token_seconds_;
  prometheus::Histogram* next_token_seconds_;
  prometheus::Histogram* mean_next_token_seconds_;
  prometheus::Histogram* e2e_seconds_;
  prometheus::Histogram* queue_seconds_;
  prometheus::Histogram* inference_seconds_;
  prometheus::Histogram* prefill_seconds_;
  prometheus::Histogram* decode_seconds_;
  // Made by Attach: their buckets end at the model's length.
  prometheus::Histogram* prompt_tokens_ = nullptr;
  prometheus::Histogram* computed_tokens_ = nullptr;
  prometheus::Histogram* generated_tokens_ = nullptr;
  prometheus::Histogram* max_generated_tokens_ = nullptr;
  prometheus::Histogram* params_max_tokens_ = nullptr;
  // Null before Attach. Released after what Attach makes, for a scrape while the model loads.
  std::atomic<const Engine*> engine_{nullptr};
};

}  // namespace fathom
