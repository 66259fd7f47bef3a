#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <sstream>
#include <utility>
#include <vector>

#include "tokenizer/utf8.h"

namespace fathom {
namespace {

using Clock = RequestRecord::Clock;

constexpr std::array kFirstTokenBounds = {0.001, 0.005, 0.01, 0.02,  0.04,  0.06,  0.08, 0.1,
                                          0.25,  0.5,   0.75, 1.0,   2.5,   5.0,   7.5,  10.0,
                                          20.0,  40.0,  80.0, 160.0, 640.0, 2560.0};
constexpr std::array kNextTokenBounds = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,  0.3,  0.4, 0.5,
                                         0.75, 1.0,   2.5,  5.0,   7.5, 10.0, 20.0, 40.0, 80.0};
constexpr std::array kRequestBounds = {0.3,  0.5,   0.8,   1.0,   1.5,   2.0,    2.5,
                                       5.0,  10.0,  15.0,  20.0,  30.0,  40.0,   50.0,
                                       60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};
constexpr std::array kParamsNBounds = {1.0, 2.0, 5.0, 10.0, 20.0};
// By FinishReason.
constexpr std::array<std::string_view, 4> kReasonNames = {"stop", "length", "abort", "error"};

// 1, 2, 5, 10, 20, 50, ... up to `max`.
std::vector<double> LengthBounds(double max) {
  std::vector<double> bounds;
  for (double scale = 1;; scale *= 10) {
    for (const double digit : {1.0, 2.0, 5.0}) {
      if (digit * scale > max) return bounds;
      bounds.push_back(digit * scale);
    }
  }
}

// There are replicas of engines in vLLM; this server has one.
MetricLabels LabelsOf(std::string_view model_name) {
  return {{"model_name", LossyUtf8(model_name)}, {"engine", "0"}};
}

prometheus::Labels ToPrometheus(const MetricLabels& labels) {
  return {labels.begin(), labels.end()};
}

double Seconds(Clock::duration duration) {
  return std::max(std::chrono::duration<double>(duration).count(), 0.0);
}

void ObserveBetween(prometheus::Histogram* histogram, Clock::time_point from,
                    Clock::time_point to) {
  constexpr Clock::time_point kNever;
  if (from != kNever && to != kNever) histogram->Observe(Seconds(to - from));
}

}  // namespace

ServerMetrics::ServerMetrics(std::string_view model_name)
    : labels_(LabelsOf(model_name)), registry_(std::make_unique<prometheus::Registry>()) {
  auto& finished = prometheus::BuildCounter()
                       .Name("vllm:request_success_total")
                       .Help("Requests that ended, by how.")
                       .Labels(ToPrometheus(labels_))
                       .Register(*registry_);
  for (size_t i = 0; i < finished_.size(); ++i) {
    finished_[i] = &finished.Add({{"finished_reason", std::string(kReasonNames[i])}});
  }
  auto& repairs = prometheus::BuildCounter()
                      .Name("fathom:parser_repairs_total")
                      .Help("What was repaired in the text of answers, by kind.")
                      .Labels(ToPrometheus(labels_))
                      .Register(*registry_);
  for (size_t i = 0; i < repairs_.size(); ++i) {
    repairs_[i] = &repairs.Add({{"kind", std::string(kParserRepairNames[i])}});
  }
  params_n_ = NewHistogram("vllm:request_params_n", "Answers asked for.", kParamsNBounds);
  first_token_seconds_ =
      NewHistogram("vllm:time_to_first_token_seconds",
                   "From the arrival of a request to its first token.", kFirstTokenBounds);
  next_token_seconds_ =
      NewHistogram("vllm:inter_token_latency_seconds", "Between two tokens that follow each other.",
                   kNextTokenBounds);
  mean_next_token_seconds_ =
      NewHistogram("vllm:request_time_per_output_token_seconds",
                   "Mean time between the tokens of a request.", kNextTokenBounds);
  e2e_seconds_ = NewHistogram("vllm:e2e_request_latency_seconds",
                              "From the arrival of a request to its end.", kRequestBounds);
  queue_seconds_ = NewHistogram("vllm:request_queue_time_seconds",
                                "In the engine's queue, until the first step.", kRequestBounds);
  inference_seconds_ = NewHistogram("vllm:request_inference_time_seconds",
                                    "From the first step to the last token.", kRequestBounds);
  prefill_seconds_ = NewHistogram("vllm:request_prefill_time_seconds",
                                  "From the first step to the first token.", kRequestBounds);
  decode_seconds_ = NewHistogram("vllm:request_decode_time_seconds",
                                 "From the first token to the last token.", kRequestBounds);
}

ServerMetrics::~ServerMetrics() = default;

void ServerMetrics::Attach(const Engine* engine) {
  const auto bounds = LengthBounds(static_cast<double>(engine->info().max_model_len));
  prompt_tokens_ = NewHistogram("vllm:request_prompt_tokens", "Tokens of a prompt.", bounds);
  computed_tokens_ = NewHistogram("vllm:request_prefill_kv_computed_tokens",
                                  "Tokens of a prompt that were not cached.", bounds);
  generated_tokens_ =
      NewHistogram("vllm:request_generation_tokens", "Tokens of an answer.", bounds);
  max_generated_tokens_ = NewHistogram("vllm:request_max_num_generation_tokens",
                                       "Tokens of a request's longest answer.", bounds);
  params_max_tokens_ = NewHistogram("vllm:request_params_max_tokens",
                                    "Tokens that an answer was allowed to have.", bounds);
  engine_.store(engine, std::memory_order_release);
}

prometheus::Histogram* ServerMetrics::NewHistogram(const char* name, const char* help,
                                                   std::span<const double> bounds) {
  auto& family = prometheus::BuildHistogram()
                     .Name(name)
                     .Help(help)
                     .Labels(ToPrometheus(labels_))
                     .Register(*registry_);
  return &family.Add({}, std::vector<double>(bounds.begin(), bounds.end()));
}

void ServerMetrics::ObserveFirstToken(Clock::duration since_arrival) {
  first_token_seconds_->Observe(Seconds(since_arrival));
}

void ServerMetrics::ObserveNextToken(Clock::duration since_last_token) {
  next_token_seconds_->Observe(Seconds(since_last_token));
}

void ServerMetrics::ObserveFinish(const RequestRecord& record) {
  finished_[static_cast<size_t>(record.reason)]->Increment();
  if (record.reason == FinishReason::kAborted || record.reason == FinishReason::kError) return;
  prompt_tokens_->Observe(static_cast<double>(record.num_prompt_tokens));
  computed_tokens_->Observe(
      static_cast<double>(record.num_prompt_tokens - record.num_cached_tokens));
  generated_tokens_->Observe(static_cast<double>(record.num_generated_tokens));
  max_generated_tokens_->Observe(static_cast<double>(record.num_generated_tokens));
  params_max_tokens_->Observe(static_cast<double>(record.max_tokens));
  if (record.num_samples > 0) params_n_->Observe(record.num_samples);

  const RequestTimings& engine = record.timings;
  // The engine's last token, or the one that completed a stop string: the engine ran ahead of it.
  const Clock::time_point last_token = std::min(engine.last_token, record.last_token);
  ObserveBetween(e2e_seconds_, record.arrival, record.end);
  ObserveBetween(queue_seconds_, engine.arrival, engine.first_scheduled);
  ObserveBetween(prefill_seconds_, engine.first_scheduled, engine.first_token);
  ObserveBetween(inference_seconds_, engine.first_scheduled, last_token);
  ObserveBetween(decode_seconds_, engine.first_token, last_token);
  if (record.num_generated_tokens > 1 && last_token != Clock::time_point()) {
    mean_next_token_seconds_->Observe(Seconds(last_token - engine.first_token) /
                                      static_cast<double>(record.num_generated_tokens - 1));
  }
}

void ServerMetrics::ObserveRepairs(std::span<const int, kNumParserRepairs> counts) {
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) repairs_[i]->Increment(counts[i]);
  }
}

std::string ServerMetrics::Expose() const {
  std::vector<prometheus::MetricFamily> families;
  if (const Engine* engine = engine_.load(std::memory_order_acquire)) {
    families = EngineFamilies(engine->stats(), labels_);
  }
  auto requests = registry_->Collect();
  families.insert(families.end(), std::make_move_iterator(requests.begin()),
                  std::make_move_iterator(requests.end()));
  std::ostringstream page;
  prometheus::TextSerializer().Serialize(page, families);
  return std::move(page).str();
}

}  // namespace fathom
