#include "cli/stats_log.h"

#include <pthread.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include "base/log_fields.h"

namespace fathom::cli {

std::optional<std::string> StatsLine::Next(const EngineStats& stats, double seconds) {
  const int64_t prompt = stats.prompt_tokens_computed - last_.prompt_tokens_computed +
                         stats.prompt_tokens_cached - last_.prompt_tokens_cached;
  const int64_t generated = stats.generation_tokens - last_.generation_tokens;
  const int64_t queries = stats.prefix_cache_queries - last_.prefix_cache_queries;
  const int64_t hits = stats.prefix_cache_hits - last_.prefix_cache_hits;
  const bool idle = stats.num_running == 0 && stats.num_waiting == 0 && prompt == 0 &&
                    generated == 0 && queries == 0;
  last_ = stats;
  if (idle) return std::nullopt;
  const double prompt_rate = static_cast<double>(prompt) / seconds;
  const double generation_rate = static_cast<double>(generated) / seconds;
  std::string words = fmt::format(
      "Avg prompt throughput: {:.1f} tokens/s, Avg generation throughput: {:.1f} tokens/s, "
      "Running: {} reqs, Waiting: {} reqs, KV cache usage: {:.1f}%",
      prompt_rate, generation_rate, stats.num_running, stats.num_waiting,
      100.0 * stats.kv_cache_usage);
  LogFields fields = LogFields::ForPrograms();
  fields.Add("prompt_tokens_per_s", prompt_rate)
      .Add("generation_tokens_per_s", generation_rate)
      .Add("running", stats.num_running)
      .Add("waiting", stats.num_waiting)
      .Add("kv_cache_usage", stats.kv_cache_usage);
  // Of what was looked up in this interval; without look-ups there is no rate.
  if (queries > 0) {
    const double rate = static_cast<double>(hits) / static_cast<double>(queries);
    words += fmt::format(", Prefix cache hit rate: {:.1f}%", 100.0 * rate);
    fields.Add("prefix_cache_hit_rate", rate);
  }
  return words + fields.Text();
}

StatsLog::StatsLog(const Engine* engine, std::chrono::duration<double> interval)
    : engine_(engine), interval_(interval), thread_([this] { Loop(); }) {
  pthread_setname_np(thread_.native_handle(), "fathom-stats");
}

StatsLog::~StatsLog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void StatsLog::Loop() {
  StatsLine line;
  auto last = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, interval_, [this] { return stopping_; })) {
    lock.unlock();
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last).count();
    last = now;
    if (const auto message = line.Next(engine_->stats(), seconds)) spdlog::info("{}", *message);
    lock.lock();
  }
}

}  // namespace fathom::cli
