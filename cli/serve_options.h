// The options of `fathom serve`, by the names that vLLM gives them where it has them.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/command.h"
#include "cli/serve_arguments.h"
#include "server/api_server.h"

namespace fathom::cli {

struct ServeOptions {
  // Model.
  ModelOptions model;
  std::string tokenizer;  // directory or id; empty: the model's
  std::string revision, tokenizer_revision;
  std::string download_dir;  // empty: where Hugging Face keeps downloads
  std::string generation_config = "auto";
  std::string generation_overrides;  // JSON
  std::string model_overrides;       // JSON
  std::optional<int64_t> seed;

  std::string replay;  // a file; empty: the model answers

  // Memory and cache.
  CacheOptions cache;
  std::string attention_config;  // JSON
  bool prefix_caching = true;
  std::string retention_interval;
  int block_size = kBlockPositions;

  // Scheduling.
  int max_num_seqs = 0;  // 0: 16, or --max-num-batched-tokens if that is less
  int max_queued_requests = 1024;
  std::string scheduling_policy = "fcfs";
  std::optional<bool> async_scheduling;  // absent: where the backend can

  // Parsers and chat.
  std::string tokenizer_mode = "auto";
  std::string tool_call_parser = "deepseek_v4";
  std::string reasoning_parser = "deepseek_v4";
  std::string effort_profile = "auto";
  std::string chat_defaults;  // JSON
  bool official_user_content = false;
  std::string reasoning_field = "both";

  // HTTP.
  ApiServerOptions api;
  std::vector<std::string> aliases;
  std::string api_key_file;
  int shutdown_timeout_s = 30;
  int watchdog_timeout_s = 60;
  int ready_timeout_s = 0;  // 0: none

  // Logging.
  std::string log_format = "text";
  std::string http_log_level = "info";
  bool disable_access_log = false;
  bool disable_stats_log = false;
  double stats_interval_s = 10.0;

  // Where the options come from.
  std::string config_file;
  bool print_config = false;
};

void AddServeOptions(CLI::App& command, ServeOptions& options);

// What no single option can tell. One line for each problem, and for each option that has no effect
// beside the others.
ServeChecks CheckServeOptions(const ServeOptions& options);

// Sampling defaults in the form of generation_config.json, over those of the model.
struct SamplingOverrides {
  std::optional<double> temperature, top_p;
  std::optional<int> top_k;
};
Result<SamplingOverrides> ParseSamplingOverrides(const std::string& json);
// --hf-overrides: max_position_embeddings, the only key that is taken; 0 where there is none.
Result<int64_t> ParseModelOverrides(const std::string& json);

// The keys in a file: one a line, blank lines and lines that begin with # left out. Errors name the
// file and never a key.
Result<std::vector<std::string>> ReadApiKeys(const std::string& path);

}  // namespace fathom::cli
