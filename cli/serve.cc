// fathom serve: the OpenAI-compatible HTTP API.
#include <pthread.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <future>
#include <iostream>
#include <memory>

#include "cache/retention.h"
#include "checkpoint/generation_config.h"
#include "cli/command.h"
#include "cli/loaded_model.h"
#include "cli/log_format.h"
#include "cli/ready_deadline.h"
#include "cli/replay_model.h"
#include "cli/serve_arguments.h"
#include "cli/serve_options.h"
#include "cli/stats_log.h"
#include "cli/version.h"
#include "cli/vllm_json_flags.h"
#include "server/api_server.h"

namespace fathom::cli {
namespace {

// What the options are and what was said on the way to them.
struct Serve {
  ServeOptions options;
  ServeArguments given;
};

// SIGINT and SIGTERM, taken by the main thread with sigwait; blocked before any thread starts, so
// that all inherit the mask.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set_, &previous_);
  }
  // Waits for one.
  void Wait() const {
    int signal = 0;
    sigwait(&set_, &signal);
  }
  // Takes one that has come; does not wait.
  [[nodiscard]] bool Poll() const {
    const timespec none{};
    return sigtimedwait(&set_, nullptr, &none) > 0;
  }
  // From here on a signal ends the process at once.
  void Release() const { pthread_sigmask(SIG_SETMASK, &previous_, nullptr); }

 private:
  sigset_t set_{};
  sigset_t previous_{};
};

// An id with its revision; paths have none.
std::string WithRevision(const char* option, const std::string& model,
                         const std::string& revision) {
  if (revision.empty()) return model;
  std::error_code error;
  if (model.empty() || std::filesystem::exists(model, error)) {
    spdlog::warn("{} {}: no effect; the files are local", option, revision);
    return model;
  }
  return model + "@" + revision;
}

// Sampling defaults of requests, in the order in which they win: overrides, then what
// --generation-config names.
Result<ModelDefaults> SamplingDefaults(const ServeOptions& o, const SamplingParams& of_model) {
  ModelDefaults defaults{of_model.temperature, of_model.top_p, of_model.top_k};
  if (o.generation_config != "auto") {
    GenerationConfig config;
    if (o.generation_config != "vllm") {
      const std::filesystem::path folder(o.generation_config);
      std::error_code error;
      if (!std::filesystem::exists(folder / "generation_config.json", error)) {
        return NotFound("--generation-config: there is no " +
                        (folder / "generation_config.json").string());
      }
      FATHOM_ASSIGN_OR_RETURN(config, LoadGenerationConfig(folder));
    }
    defaults = {config.temperature, config.top_p, config.top_k};
  }
  if (!o.generation_overrides.empty()) {
    FATHOM_ASSIGN_OR_RETURN(const SamplingOverrides overrides,
                            ParseSamplingOverrides(o.generation_overrides));
    defaults.temperature = overrides.temperature.value_or(defaults.temperature);
    defaults.top_p = overrides.top_p.value_or(defaults.top_p);
    defaults.top_k = overrides.top_k.value_or(defaults.top_k);
  }
  return defaults;
}

// What of the API's options is not one option of the command line.
Status FillApiOptions(ServeOptions& o) {
  for (const std::string& text : o.aliases) {
    FATHOM_ASSIGN_OR_RETURN(ModelAlias alias, ModelNames::ParseAlias(text));
    o.api.model_aliases.push_back(std::move(alias));
  }
  if (!o.api_key_file.empty()) {
    FATHOM_ASSIGN_OR_RETURN(const std::vector<std::string> keys, ReadApiKeys(o.api_key_file));
    o.api.api_keys.insert(o.api.api_keys.end(), keys.begin(), keys.end());
  }
  o.api.reasoning_field = o.reasoning_field == "reasoning" ? ReasoningField::kReasoning
                          : o.reasoning_field == "reasoning_content"
                              ? ReasoningField::kReasoningContent
                              : ReasoningField::kBoth;
  o.api.parse_tools = o.tool_call_parser != "none";
  o.api.parse_reasoning = o.reasoning_parser != "none";
  const bool quiet = o.http_log_level == "warning" || o.http_log_level == "error" ||
                     o.http_log_level == "critical";
  o.api.access_log = !o.disable_access_log && !quiet;
  o.api.version = kVersion;
  o.api.watchdog_timeout = std::chrono::seconds(o.watchdog_timeout_s);
  return {};
}

Result<FrontEndOptions> ToFrontEndOptions(const ServeOptions& o,
                                          const std::filesystem::path& hub_cache) {
  FrontEndOptions front_end;
  if (!o.chat_defaults.empty()) {
    FATHOM_ASSIGN_OR_RETURN(front_end.chat_defaults, ParseChatDefaults(o.chat_defaults));
  }
  if (o.effort_profile != "auto") {
    front_end.effort_profile =
        o.effort_profile == "0731" ? EffortProfile::k0731 : EffortProfile::kPreview;
  }
  front_end.official_user_content = o.official_user_content;
  if (!o.tokenizer.empty()) {
    const std::string name =
        WithRevision("--tokenizer-revision", o.tokenizer, o.tokenizer_revision);
    FATHOM_ASSIGN_OR_RETURN(const ModelLocation location,
                            FindModel(name, ModelNeed::kDirectory, hub_cache));
    front_end.tokenizer_directory = location.directory;
  }
  return front_end;
}

Result<LocalEngineOptions> ToServeEngineOptions(ServeOptions& o) {
  if (!o.attention_config.empty()) {
    bool fp4 = false;
    if (const Judgement judgement = JudgeAttention(o.attention_config, &fp4);
        judgement.verdict == Verdict::kWarn) {
      spdlog::warn("--attention-config: no effect; {}", judgement.text);
    }
    if (fp4) o.cache.indexer_dtype = "fp4";
  }
  if (!o.model_overrides.empty()) {
    FATHOM_ASSIGN_OR_RETURN(const int64_t length, ParseModelOverrides(o.model_overrides));
    if (o.model.max_model_len == 0) o.model.max_model_len = length;
    if (length > 0 && o.model.max_model_len > length) {
      return InvalidArgument("--max-model-len " + std::to_string(o.model.max_model_len) +
                             " is above max_position_embeddings of --hf-overrides, " +
                             std::to_string(length));
    }
  }
  // Other backends record none; that was said (CheckServeOptions).
  if (BackendName(o.model.backend, o.model.backend_plugin) != "cuda") o.model.graphs = {};
  FATHOM_ASSIGN_OR_RETURN(LocalEngineOptions engine, ToEngineOptions(o.model, o.cache));
  engine.max_num_seqs =
      o.max_num_seqs > 0 ? o.max_num_seqs : std::min(16, o.model.max_batched_tokens);
  engine.max_queued_requests = o.max_queued_requests;
  engine.priority_scheduling = o.scheduling_policy == "priority";
  engine.prefix_caching = o.prefix_caching;
  engine.seed = o.seed;
  // On others it has no effect; that was said (CheckServeOptions).
  if (SamplesByItself(engine.backend)) engine.async_scheduling = o.async_scheduling;
  if (!o.retention_interval.empty()) {
    FATHOM_ASSIGN_OR_RETURN(engine.retention_interval,
                            ParseRetentionInterval(o.retention_interval));
    if (!o.prefix_caching) {
      spdlog::warn("--prefix-cache-retention-interval has no effect: prefix caching is off");
    }
  }
  return engine;
}

// What answers, and the text around it.
struct Served {
  std::unique_ptr<TextFrontEnd> front_end;  // a replay engine uses it, so it goes last
  std::unique_ptr<Engine> engine;
  SamplingParams sampling_defaults;
};

Result<Served> LoadModel(ServeOptions& o, const ModelLocation& location,
                         const FrontEndOptions& front_end) {
  FATHOM_ASSIGN_OR_RETURN(const LocalEngineOptions engine, ToServeEngineOptions(o));
  FATHOM_ASSIGN_OR_RETURN(LoadedModel loaded, LoadedModel::Load(location, engine, front_end));
  return Served{std::move(loaded.front_end), std::move(loaded.engine), loaded.sampling_defaults};
}

Result<Served> LoadReplay(const ServeOptions& o, const ModelLocation& location,
                          const FrontEndOptions& front_end, const CLI::App& command) {
  for (const char* name : {"--backend",
                           "--backend-plugin",
                           "--threads",
                           "--cpu-isa",
                           "--cpu-activations",
                           "--cpu-dense",
                           "--o-proj-activations",
                           "--numa",
                           "--weights",
                           "--max-num-batched-tokens",
                           "--kv-cache-memory-bytes",
                           "--kv-cache-memory-fraction",
                           "--gpu-memory-utilization",
                           "--kv-cache-dtype",
                           "--indexer-cache-dtype",
                           "--enable-prefix-caching",
                           "--prefix-cache-retention-interval",
                           "--block-size",
                           "--expert-offload",
                           "--expert-profile",
                           "--record-expert-use",
                           "--compilation-config",
                           "--enforce-eager",
                           "--cudagraph-capture-sizes",
                           "--max-cudagraph-capture-size",
                           "--serial-streams",
                           "--cuda-device",
                           "--async-scheduling"}) {
    const CLI::Option* option = command.get_option_no_throw(name);
    if (option != nullptr && option->count() > 0) {
      spdlog::warn("{} has no effect: --replay computes nothing", name);
    }
  }
  ReplayModelOptions options;
  options.file = o.replay;
  options.max_model_len = o.model.max_model_len;
  options.max_num_seqs = o.max_num_seqs;
  options.max_queued_requests = o.max_queued_requests;
  options.priority_scheduling = o.scheduling_policy == "priority";
  FATHOM_ASSIGN_OR_RETURN(ReplayModel replay,
                          ReplayModel::Load(location.directory, options, front_end));
  return Served{std::move(replay.front_end), std::move(replay.engine), replay.sampling_defaults};
}

// Loads on another thread, so that a signal is heard meanwhile: it ends the process from here,
// because reading weights cannot be interrupted and leaves nothing to tidy up.
Result<Served> LoadUnlessStopped(const std::function<Result<Served>()>& load,
                                 const StopSignals& signals, ApiServer& server) {
  auto loading = std::async(std::launch::async, [&load] {
    pthread_setname_np(pthread_self(), "fathom-load");
    return load();
  });
  do {
    if (!signals.Poll()) continue;
    spdlog::info("stopped by a signal while the model was loading");
    server.Shutdown(std::chrono::milliseconds(0));
    spdlog::default_logger()->flush();
    std::_Exit(0);
  } while (loading.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready);
  return loading.get();
}

int Run(Serve& serve, const CLI::App& command) {
  const StopSignals signals;
  ServeOptions& o = serve.options;
  if (o.log_format == "json") SetLogFormat(LogFormat::kJson);
  for (const std::string& warning : serve.given.warnings) spdlog::warn("{}", warning);
  for (const std::string& note : serve.given.notes) spdlog::debug("{}", note);
  if (Status filled = FillApiOptions(o); !filled.ok()) return Fail(filled);
  std::optional<ReadyDeadline> deadline(std::chrono::seconds(o.ready_timeout_s));
  const std::filesystem::path hub_cache =
      o.download_dir.empty() ? HubCacheFromEnvironment() : std::filesystem::path(o.download_dir);
  auto location =
      FindModel(WithRevision("--revision", o.model.model, o.revision),
                o.replay.empty() ? ModelNeed::kWeights : ModelNeed::kDirectory, hub_cache);
  if (!location.ok()) return Fail(location.status());
  if (o.api.served_model_names.empty()) o.api.served_model_names.push_back(location->name);

  auto front_end = ToFrontEndOptions(o, hub_cache);
  if (!front_end.ok()) return Fail(front_end.status());
  // Before the model is loaded, which may take minutes: a port that is taken is said at once, and
  // who asks meanwhile is told to wait.
  auto server = ApiServer::Start(o.api);
  if (!server.ok()) return Fail(server.status());
  spdlog::info("listening at {}; answers 503 until the model is loaded", (*server)->url());
  auto loaded = LoadUnlessStopped(
      [&] {
        return o.replay.empty() ? LoadModel(o, *location, *front_end)
                                : LoadReplay(o, *location, *front_end, command);
      },
      signals, **server);
  if (!loaded.ok()) return Fail(loaded.status());
  const auto defaults = SamplingDefaults(o, loaded->sampling_defaults);
  if (!defaults.ok()) return Fail(defaults.status());
  (*server)->Serve(loaded->engine.get(), loaded->front_end.get(), *defaults);
  deadline.reset();
  std::optional<StatsLog> stats_log;
  if (!o.disable_stats_log) {
    stats_log.emplace(loaded->engine.get(), std::chrono::duration<double>(o.stats_interval_s));
  }
  std::cout << "fathom serves " << o.api.served_model_names.front() << " at " << (*server)->url()
            << " (Ctrl-C stops)" << std::endl;
  std::cout.clear();  // a closed standard output is no reason to fail at the end

  signals.Wait();
  spdlog::info("shutting down; requests may finish within {} s, a second signal ends at once",
               o.shutdown_timeout_s);
  signals.Release();
  (*server)->Shutdown(std::chrono::seconds(o.shutdown_timeout_s));
  // The server uses the engine, so it goes first.
  server->reset();
  return 0;
}

PreparedArguments Prepare(CLI::App& command, Serve& serve,
                          const std::vector<std::string>& arguments) {
  serve.given = PrepareServeArguments(command, arguments, ProcessEnvironment(),
                                      [&serve] { return CheckServeOptions(serve.options); });
  ServeArguments& given = serve.given;
  if (!given.problems.empty()) {
    std::cerr << "fathom: ";
    if (given.problems.size() > 1) {
      std::cerr << given.problems.size() << " problems with the arguments:\n  ";
    }
    for (const std::string& problem : given.problems) {
      std::cerr << (&problem == &given.problems.front() ? "" : "  ") << problem << "\n";
    }
    std::cerr << "Run 'fathom serve --help' for what it takes.\n";
    return {{}, kExitUsage};
  }
  switch (given.next) {
    case ServeArguments::Next::kHelp:
      return {{"serve", "--help"}, {}};
    case ServeArguments::Next::kHelpAll:
      std::cout << command.help() << "\nFlags of vLLM:\n" << DescribeFlags();
      return {{}, 0};
    case ServeArguments::Next::kPrintConfig:
      std::cout << ConfigText(command, given.settings);
      return {{}, 0};
    case ServeArguments::Next::kRun:
      break;
  }
  given.arguments.insert(given.arguments.begin(), "serve");
  return {given.arguments, {}};
}

}  // namespace

PrepareArguments AddServeCommand(CLI::App& app, Action& action) {
  auto serve = std::make_shared<Serve>();
  CLI::App* command = app.add_subcommand("serve", "Serve a model over HTTP, OpenAI-compatible");
  command->add_option("model_tag", serve->options.model.model, "Model, as --model")
      ->type_name("MODEL");
  AddServeOptions(*command, serve->options);
  command->footer(
      "Compatibility with vLLM (--help-all says more)\n"
      "Each option is also read from FATHOM_<NAME>, e.g. FATHOM_MAX_MODEL_LEN, and from --config.\n"
      "Accepted without effect, with a warning:\n" +
      ListFlags(Verdict::kWarn) + "Refused, unless they ask for what fathom does anyway:\n" +
      ListFlags(Verdict::kRefuse) +
      "\nExample:\n"
      "  fathom serve --port 8000\n"
      "  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\\n"
      "    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}]}'");
  command->callback(
      [serve, command, &action] { action = [serve, command] { return Run(*serve, *command); }; });
  return [serve, command](const std::vector<std::string>& arguments) {
    return Prepare(*command, *serve, arguments);
  };
}

}  // namespace fathom::cli
