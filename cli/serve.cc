// fathom serve: the OpenAI-compatible HTTP API.
#include <pthread.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <future>
#include <iostream>
#include <memory>

#include "cli/arguments.h"
#include "cli/command.h"
#include "cli/loaded_model.h"
#include "cli/version.h"
#include "server/api_server.h"

namespace fathom::cli {
namespace {

// Whether `parse` takes the value, so that a bad one is a mistake in the arguments.
template <typename Parse>
CLI::Validator Parses(Parse parse) {
  return CLI::Validator(
      [parse](const std::string& text) -> std::string {
        const auto parsed = parse(text);
        return parsed.ok() ? "" : parsed.status().message();
      },
      "");
}

struct Options {
  ModelOptions model;
  ApiServerOptions api;
  std::vector<std::string> aliases;
  std::string reasoning_field = "both";
  std::string chat_defaults;
  int shutdown_timeout_s = 30;
  int watchdog_timeout_s = 60;
  CacheOptions cache;
  int max_num_seqs = 0;  // 0: 16, or --max-num-batched-tokens if that is less
  int max_queued_requests = 1024;
  std::string scheduling_policy = "fcfs";
  bool prefix_caching = true;
  std::string retention_interval;
  int block_size = kBlockPositions;
};

void AddSchedulingOptions(CLI::App& command, Options& o) {
  command
      .add_option("--max-num-seqs", o.max_num_seqs,
                  "Requests computed together; at most --max-num-batched-tokens (default: 16)")
      ->transform(Count(1, 65536))
      ->group("Scheduling");
  command
      .add_option("--max-queued-requests", o.max_queued_requests,
                  "Requests that may wait; more are refused with 503")
      ->transform(Count(1, INT32_MAX))
      ->capture_default_str()
      ->group("Scheduling");
  command
      .add_option("--scheduling-policy", o.scheduling_policy,
                  "fcfs: in order of arrival; priority: smaller `priority` of the request first")
      ->check(CLI::IsMember({"fcfs", "priority"}))
      ->capture_default_str()
      ->group("Scheduling");
  command
      .add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", o.prefix_caching,
                "Reuse what is cached of earlier prompts and answers (default: on)")
      ->group("Cache");
  command
      .add_option("--prefix-cache-retention-interval", o.retention_interval,
                  "Keep a place to continue every so many tokens of a prompt: a multiple of 256, 0 "
                  "(only at ends and where prompts diverged) or none (every 256; default 16384)")
      ->check(Parses(ParseRetentionInterval))
      ->group("Cache");
  command
      .add_option("--block-size", o.block_size, "Positions of a block of the cache; V4 needs 256")
      ->check(CLI::Validator(
          [](const std::string& text) -> std::string {
            return text == "256" ? "" : "V4 needs blocks of 256 positions";
          },
          ""))
      ->capture_default_str()
      ->group("Cache");
}

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

// Loads on another thread, so that a signal is heard meanwhile: it ends the process from here,
// because reading weights cannot be interrupted and leaves nothing to tidy up.
Result<LoadedModel> LoadUnlessStopped(const std::string& model, const LocalEngineOptions& engine,
                                      const ChatDefaults& chat_defaults, const StopSignals& signals,
                                      ApiServer& server) {
  auto loading = std::async(std::launch::async, [&] {
    pthread_setname_np(pthread_self(), "fathom-load");
    return LoadedModel::Load(model, engine, chat_defaults);
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

int Run(Options& o) {
  const StopSignals signals;
  ChatDefaults chat_defaults;
  if (!o.chat_defaults.empty()) {
    auto parsed = ParseChatDefaults(o.chat_defaults);
    if (!parsed.ok()) return Fail(parsed.status());
    chat_defaults = std::move(parsed).value();
  }
  for (const std::string& text : o.aliases) {
    auto alias = ModelNames::ParseAlias(text);
    if (!alias.ok()) return Fail(alias.status());
    o.api.model_aliases.push_back(std::move(alias).value());
  }
  o.api.reasoning_field = o.reasoning_field == "reasoning" ? ReasoningField::kReasoning
                          : o.reasoning_field == "reasoning_content"
                              ? ReasoningField::kReasoningContent
                              : ReasoningField::kBoth;
  o.api.version = kVersion;
  o.api.watchdog_timeout = std::chrono::seconds(o.watchdog_timeout_s);
  auto location = FindModel(o.model.model);
  if (!location.ok()) return Fail(location.status());
  if (o.api.served_model_names.empty()) o.api.served_model_names.push_back(location->name);

  auto engine = ToEngineOptions(o.model, o.cache);
  if (!engine.ok()) return Fail(engine.status());
  engine->max_num_seqs =
      o.max_num_seqs > 0 ? o.max_num_seqs : std::min(16, o.model.max_batched_tokens);
  engine->max_queued_requests = o.max_queued_requests;
  engine->priority_scheduling = o.scheduling_policy == "priority";
  engine->prefix_caching = o.prefix_caching;
  if (!o.retention_interval.empty()) {
    auto interval = ParseRetentionInterval(o.retention_interval);
    if (!interval.ok()) return Fail(interval.status());
    engine->retention_interval = *interval;
    if (!o.prefix_caching) {
      spdlog::warn("--prefix-cache-retention-interval has no effect: prefix caching is off");
    }
  }
  // Before the model is loaded, which may take minutes: a port that is taken is said at once, and
  // who asks meanwhile is told to wait.
  auto server = ApiServer::Start(o.api);
  if (!server.ok()) return Fail(server.status());
  spdlog::info("listening at {}; answers 503 until the model is loaded", (*server)->url());
  auto loaded = LoadUnlessStopped(o.model.model, *engine, chat_defaults, signals, **server);
  if (!loaded.ok()) return Fail(loaded.status());
  const SamplingParams& defaults = loaded->sampling_defaults;
  (*server)->Serve(loaded->engine.get(), loaded->front_end.get(),
                   {defaults.temperature, defaults.top_p, defaults.top_k});
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

}  // namespace

void AddServeCommand(CLI::App& app, Action& action) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("serve", "Serve a model over HTTP, OpenAI-compatible");
  auto* positional =
      command->add_option("model_tag", o->model.model, "Model, as --model")->type_name("MODEL");
  AddModelOptions(*command, o->model);
  AddCacheOptions(*command, o->cache);
  AddSchedulingOptions(*command, *o);
  command->get_option("--model")->excludes(positional);
  command->add_option("--host", o->api.host, "Address to listen on")->capture_default_str();
  command->add_option("--port", o->api.port, "Port to listen on; 0 takes a free one")
      ->capture_default_str();
  command->add_option(
      "--served-model-name", o->api.served_model_names,
      "Name (or names) of the model in the API (default: the directory's name or the id)");
  command
      ->add_option("--model-alias", o->aliases,
                   "NAME or NAME={...}: another name, with default chat_template_kwargs (may be "
                   "given several times)")
      ->allow_extra_args(false)
      ->check(Parses(ModelNames::ParseAlias));
  command
      ->add_option("--api-key", o->api.api_keys,
                   "Key that clients must send (may be given several times)")
      ->allow_extra_args(false)  // a model directory may follow; it must not become a key
      ->envname("VLLM_API_KEY");
  command
      ->add_option("--default-chat-template-kwargs", o->chat_defaults,
                   "JSON: what chat requests get that say nothing, e.g. {\"thinking\": false}")
      ->check(Parses(ParseChatDefaults));
  command->add_option("--reasoning-field", o->reasoning_field, "Name of the reasoning in answers")
      ->check(CLI::IsMember({"both", "reasoning", "reasoning_content"}))
      ->capture_default_str();
  command
      ->add_option("--max-logprobs", o->api.max_logprobs,
                   "Largest top_logprobs that a request may ask for")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  command->add_flag("--enable-force-include-usage,!--no-enable-force-include-usage",
                    o->api.force_include_usage, "End every stream with usage, asked for or not");
  command
      ->add_flag("--enable-dev-endpoints", o->api.dev_endpoints,
                 "Answer POST /reset_prefix_cache, which forgets all cached prefixes")
      ->envname("VLLM_SERVER_DEV_MODE");
  command->add_option("--max-body-bytes", o->api.max_body_bytes, "Largest request body")
      ->check(CLI::Range(size_t{1}, size_t{1} << 40))
      ->capture_default_str();
  command
      ->add_option("--shutdown-timeout", o->shutdown_timeout_s,
                   "Seconds that running requests get to finish after SIGTERM or Ctrl-C")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str();
  command
      ->add_option("--engine-watchdog-timeout", o->watchdog_timeout_s,
                   "Seconds with work but without the end of a step after which /health answers "
                   "503; a step is up to --max-num-batched-tokens tokens")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  command->footer(
      "Example:\n"
      "  fathom serve --port 8000\n"
      "  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\\n"
      "    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}]}'");
  command->callback([o, &action] { action = [o] { return Run(*o); }; });
}

}  // namespace fathom::cli
