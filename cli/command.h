// What the commands of the `fathom` program share: how one is added, and the options that several
// have.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "cli/graph_options.h"
#include "engine/local_engine.h"
#include "engine/request.h"

namespace fathom::cli {

// The chosen command's body; returns the exit status. Set by the parser, run after it.
using Action = std::function<int()>;

// Arguments for the parser, or how the program ends without it.
struct PreparedArguments {
  std::vector<std::string> arguments;
  std::optional<int> exit_status;
};

void AddGenerateCommand(CLI::App& app, Action& action);
void AddChatCommand(CLI::App& app, Action& action);
// What stands behind "serve" goes through PrepareArguments before the parser sees it.
using PrepareArguments = std::function<PreparedArguments(const std::vector<std::string>&)>;
PrepareArguments AddServeCommand(CLI::App& app, Action& action);
void AddTokenizeCommand(CLI::App& app, Action& action);
void AddTemplateCommand(CLI::App& app, Action& action);
void AddParseCommand(CLI::App& app, Action& action);
void AddLogitsCommand(CLI::App& app, Action& action);
void AddInspectCommand(CLI::App& app, Action& action);
void AddPlanCommand(CLI::App& app, Action& action);
void AddSynthCommand(CLI::App& app, Action& action);
void AddBenchCommand(CLI::App& app, Action& action);

// Exit statuses: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;

// Prints "fathom: <message>" to standard error and returns kExitFailed.
int Fail(const Status& status);

// --model and how to run it.
struct ModelOptions {
  std::string model;  // empty: the bundled model
  std::string backend = "cpu";
  std::string backend_plugin;
  int num_threads = 0;
  std::string weights = "mmap";
  std::string numa = "auto";
  std::string cpu_isa = "auto";
  std::string cpu_activations = "official";
  std::string cpu_dense = "stored";
  std::string o_proj_activations = "bf16";
  int64_t max_model_len = 0;
  int max_batched_tokens = 512;
  std::string expert_offload;                     // "auto" or GiB; empty: not given
  std::string expert_profile, record_expert_use;  // files; empty: none
  GraphFlags graphs;
  bool serial_streams = false;
  int cuda_device = 0;
};
void AddModelOption(CLI::App& command, std::string& model);
// --backend, --backend-plugin, --threads, --cpu-isa.
void AddComputeOptions(CLI::App& command, std::string& backend, std::string& plugin,
                       int& num_threads, std::string& isa);
// The backend's name for the engine: "plugin" where one is named.
std::string BackendName(const std::string& backend, const std::string& plugin);
// --cpu-activations.
void AddActivationsOption(CLI::App& command, std::string& activations);
// --o-proj-activations.
void AddOProjActivationsOption(CLI::App& command, std::string& activations);
// Makes the process compute with that instruction set ("auto": the best one). kInvalidArgument for
// one that is not there, and for any but "auto" with another backend than the cpu's.
Status UseIsa(const std::string& isa, const std::string& backend);
// --expert-offload: "auto", or GiB as in 20 or 0.5.
Result<ExpertOffload> ParseExpertOffload(std::string_view text);
void AddExpertOffloadOption(CLI::App& command, std::string& offload);
// Refuses, naming the option, experts outside of the memory of a backend that has only one.
Status CheckOffloadOptions(const ModelOptions& options);
// Those, --cpu-activations, --cpu-dense, --o-proj-activations, --numa, --weights,
// --max-num-batched-tokens, where experts lie, which steps are recorded, --cuda-device
// and --serial-streams.
void AddBackendOptions(CLI::App& command, ModelOptions& options);
// All of them.
void AddModelOptions(CLI::App& command, ModelOptions& options);

// --async-scheduling and --no-async-scheduling, for commands that serve requests together.
CLI::Option* AddAsyncOption(CLI::App& command, std::optional<bool>& async);
// Whether that backend samples tokens itself, without which steps cannot begin early.
bool SamplesByItself(const std::string& backend);

// Memory and formats of the cache, for commands that run an engine.
struct CacheOptions {
  int64_t memory_bytes = 0;  // 0: the share below
  double memory_share = CacheBudget{}.fraction;
  std::optional<double> gpu_memory_share;  // of all of a GPU's memory
  std::string attention_dtype = "auto";
  std::string indexer_dtype = "auto";
};
void AddCacheOptions(CLI::App& command, CacheOptions& options);
// The formats alone, for commands that size the cache themselves.
void AddCacheFormatOptions(CLI::App& command, CacheOptions& options);
// Refuses, naming the option, what sizes the cache on another backend than this.
Status CheckCacheOptions(const CacheOptions& options, const std::string& backend);
// The engine that the options describe; the rest as in LocalEngineOptions.
Result<LocalEngineOptions> ToEngineOptions(const ModelOptions& model, const CacheOptions& cache);
// The same without a cache, for what runs a model alone. Both call UseIsa; keys of
// --compilation-config that have no effect go to the log.
Result<LocalEngineOptions> ToEngineOptions(const ModelOptions& model);

// Sampling; what is absent comes from the model's generation_config.json.
struct SamplingOptions {
  std::optional<double> temperature, top_p, min_p, presence_penalty, frequency_penalty,
      repetition_penalty;
  std::optional<int> top_k;
  std::optional<int64_t> seed;
};
void AddSamplingOptions(CLI::App& command, SamplingOptions& options);
SamplingParams ToSamplingParams(const SamplingOptions& options, const SamplingParams& defaults);

// --thinking off|high|max.
void AddThinkingOption(CLI::App& command, std::string& thinking);

// The whole of a file, or of standard input for "-".
Result<std::string> ReadInput(const std::string& path);

// A JSON array of token ids of a vocabulary.
Result<std::vector<TokenId>> ParseTokenIds(std::string_view json, int vocab_size);

}  // namespace fathom::cli
