#include "cli/serve_options.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "cache/retention.h"
#include "chat/chat_request.h"
#include "cli/arguments.h"
#include "cli/vllm_json_flags.h"
#include "server/model_names.h"

namespace fathom::cli {
namespace {

using Json = nlohmann::json;

constexpr const char* kQuote = " (in a shell it needs quotes: '{\"key\": 1}')";

// Puts options of one group into the help under its title.
class Group {
 public:
  Group(CLI::App& command, std::string title) : command_(command), title_(std::move(title)) {}

  // Options that several commands share.
  void Take(std::initializer_list<const char*> names) {
    for (const char* name : names) command_.get_option(name)->group(title_);
  }
  template <typename T>
  CLI::Option* Value(const std::string& names, T& value, const std::string& help) {
    return command_.add_option(names, value, help)->group(title_);
  }
  CLI::Option* Json(const std::string& names, std::string& value, const std::string& help) {
    return Value(names, value, help)->type_name(kJsonType);
  }
  // Each value needs the option again, so that a model behind it is not taken for one.
  CLI::Option* Repeated(const std::string& names, std::vector<std::string>& values,
                        const std::string& help) {
    return Value(names, values, help)->allow_extra_args(false);
  }
  // On or off; --no-x turns it off.
  CLI::Option* Switch(const std::string& name, bool& value, const std::string& help) {
    const std::string names = "--" + name + ",!--no-" + name;
    CLI::Option* option = command_.add_flag(names, value, help)->group(title_);
    // Asked for by --print-config only: the help would show it behind the names.
    option->default_function([value] { return std::string(value ? "true" : "false"); });
    return option;
  }

 private:
  CLI::App& command_;
  const std::string title_;
};

CLI::Validator OneOf(std::initializer_list<const char*> words) {
  return CLI::IsMember(std::vector<std::string>(words.begin(), words.end()), CLI::ignore_case);
}

// deepseek_v4 in any spelling, or none.
CLI::Validator ParserName(const char* what) {
  return CLI::Validator(
      [what](std::string& name) -> std::string {
        if (IsOurParser(name)) name = "deepseek_v4";
        if (name == "deepseek_v4" || name == "none") return {};
        return "'" + name + "' is no " + what + "; there are deepseek_v4 and none";
      },
      "deepseek_v4|none");
}

CLI::Validator NotEmpty(const std::string& message) {
  return CLI::Validator(
      [message](const std::string& text) -> std::string { return text.empty() ? message : ""; },
      "");
}

void AddModelGroup(CLI::App& command, ServeOptions& o) {
  AddModelOptions(command, o.model);
  Group group(command, "Model");
  group.Take({"--model", "--backend", "--backend-plugin", "--threads", "--cpu-isa",
              "--cpu-activations", "--cpu-dense", "--o-proj-activations", "--numa", "--weights",
              "--max-model-len"});
  group.Value("--tokenizer", o.tokenizer, "Directory or id with another tokenizer");
  group.Value("--revision", o.revision, "Branch, tag or commit of a model named by an id");
  group.Value("--tokenizer-revision", o.tokenizer_revision, "The same of --tokenizer");
  group.Value("--download-dir", o.download_dir,
              "Where to look ids up (default: the local Hugging Face cache)");
  group
      .Value("--generation-config", o.generation_config,
             "Sampling defaults: auto (the model's), vllm (none), or a directory with a "
             "generation_config.json")
      ->capture_default_str();
  group
      .Json("--override-generation-config", o.generation_overrides,
            "Over those: temperature, top_p, top_k")
      ->check(Parses(ParseSamplingOverrides));
  group
      .Json("--hf-overrides", o.model_overrides,
            "Over config.json: max_position_embeddings, which counts as --max-model-len")
      ->check(Parses(ParseModelOverrides));
  group
      .Value("--seed", o.seed,
             "What requests without a seed derive theirs from, in order of arrival (default: "
             "random)")
      ->check(WholeNumber());
  group
      .Value("--replay", o.replay,
             "Answer from this file instead of computing (docs/replay.md); of the model only the "
             "tokenizer and settings are read; - is standard input")
      ->type_name("FILE");
}

void AddCacheGroup(CLI::App& command, ServeOptions& o) {
  AddCacheOptions(command, o.cache);
  Group group(command, "Memory and cache");
  group.Take({"--kv-cache-memory-bytes", "--kv-cache-memory-fraction", "--gpu-memory-utilization",
              "--kv-cache-dtype", "--indexer-cache-dtype", "--expert-offload", "--expert-profile",
              "--record-expert-use"});
  group
      .Json("--attention-config", o.attention_config,
            "use_fp4_indexer_cache: true is --indexer-cache-dtype fp4")
      ->check(CLI::Validator(
          [](const std::string& text) -> std::string {
            bool fp4 = false;
            const Judgement judgement = JudgeAttention(text, &fp4);
            return judgement.verdict == Verdict::kRefuse ? judgement.text : "";
          },
          ""));
  group.Switch("enable-prefix-caching", o.prefix_caching,
               "Reuse what is cached of earlier prompts and answers (default: on)");
  group
      .Value("--prefix-cache-retention-interval", o.retention_interval,
             "Keep a place to continue every so many tokens of a prompt: a multiple of 256, 0 "
             "(only at ends and where prompts diverged) or none (every 256; default 16384)")
      ->check(Parses(ParseRetentionInterval));
  group.Value("--block-size", o.block_size, "Positions of a block of the cache; V4 needs 256")
      ->check(CLI::Validator(
          [](const std::string& text) -> std::string {
            return text == "256" ? "" : "V4 needs blocks of 256 positions";
          },
          ""))
      ->capture_default_str();
}

void AddSchedulingGroup(CLI::App& command, ServeOptions& o) {
  Group group(command, "Scheduling");
  group.Take({"--max-num-batched-tokens"});
  group
      .Value("--max-num-seqs", o.max_num_seqs,
             "Requests computed together; at most --max-num-batched-tokens (default: 16)")
      ->transform(Count(1, 65536));
  group
      .Value("--max-queued-requests", o.max_queued_requests,
             "Requests that may wait; more are refused with 503")
      ->transform(Count(1, INT32_MAX))
      ->capture_default_str();
  group
      .Value("--scheduling-policy", o.scheduling_policy,
             "fcfs: in order of arrival; priority: smaller `priority` of the request first")
      ->transform(OneOf({"fcfs", "priority"}))
      ->capture_default_str();
  AddAsyncOption(command, o.async_scheduling)->group("Scheduling");
}

void AddChatGroup(CLI::App& command, ServeOptions& o) {
  Group group(command, "Parsers and chat");
  group
      .Value("--tokenizer-mode", o.tokenizer_mode,
             "auto and deepseek_v4 are the same: the built-in encoder writes prompts")
      ->check(CLI::Validator(
          [](std::string& name) -> std::string {
            if (IsOurParser(name)) name = "deepseek_v4";
            if (name == "deepseek_v4" || name == "auto") return {};
            return "'" + name + "' is no tokenizer mode; there are auto and deepseek_v4";
          },
          "auto|deepseek_v4"))
      ->capture_default_str();
  group
      .Value("--tool-call-parser", o.tool_call_parser,
             "Reads calls out of answers; none leaves their markup in the text")
      ->transform(ParserName("tool call parser"))
      ->capture_default_str();
  group.Switch("enable-auto-tool-choice", o.api.auto_tool_choice,
               "Let the model choose tools (default: on); without, tool_choice auto is refused");
  group
      .Value("--reasoning-parser", o.reasoning_parser,
             "Splits reasoning from answers; none leaves it in the text")
      ->transform(ParserName("reasoning parser"))
      ->capture_default_str();
  group.Value("--reasoning-field", o.reasoning_field, "Name of the reasoning in answers")
      ->check(CLI::IsMember({"both", "reasoning", "reasoning_content"}))
      ->capture_default_str();
  group
      .Value("--reasoning-effort-profile", o.effort_profile,
             "Texts for the efforts: of the preview checkpoints or of 0731 and later; auto looks "
             "at the model")
      ->check(CLI::IsMember({"auto", "preview", "0731"}))
      ->capture_default_str();
  group
      .Json("--default-chat-template-kwargs", o.chat_defaults,
            "What chat requests get that say nothing, e.g. {\"thinking\": false}")
      ->check(Parses(ParseChatDefaults));
  group.Switch("official-user-content", o.official_user_content,
               "Let control tokens in what clients send take effect, as the official code does");
  group.Value("--response-role", o.api.response_role, "Role of answers")
      ->check(NotEmpty("a role cannot be empty"))
      ->capture_default_str();
  group
      .Value("--max-logprobs", o.api.max_logprobs,
             "Largest top_logprobs that a request may ask for")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  group.Switch("return-tokens-as-token-ids", o.api.return_tokens_as_token_ids,
               "Show tokens of logprobs as token_id:N");
  group.Switch("enable-force-include-usage", o.api.force_include_usage,
               "End every stream with usage, asked for or not");
}

void AddHttpGroup(CLI::App& command, ServeOptions& o) {
  Group group(command, "HTTP");
  group
      .Value("--stream-interval", o.api.stream_interval,
             "Tokens between two writes of a stream, the first one apart")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  group.Value("--host", o.api.host, "Address to listen on")->capture_default_str();
  group.Value("--port", o.api.port, "Port to listen on; 0 takes a free one")->capture_default_str();
  group.Value("--uds", o.api.unix_socket, "Unix socket to listen at, in place of host and port");
  group.Value("--root-path", o.api.root_path, "Path in front of all routes, behind a proxy");
  group.Value("--served-model-name", o.api.served_model_names,
              "Name (or names) of the model in the API (default: the directory's name or the id)");
  group
      .Repeated("--model-alias", o.aliases,
                "NAME or NAME={...}: another name, with default chat_template_kwargs (may be "
                "given several times)")
      ->check(Parses(ModelNames::ParseAlias));
  group
      .Repeated("--api-key", o.api.api_keys,
                "Key that clients must send (may be given several times)")
      ->check(NotEmpty("a key cannot be empty"));
  group.Value("--api-key-file", o.api_key_file,
              "File with more keys, one a line; lines that begin with # are left out");
  group.Repeated("--allowed-origins", o.api.cors.allowed_origins,
                 "Origins whose pages may call the API, or * (default: none)");
  group.Repeated("--allowed-methods", o.api.cors.allowed_methods, "Methods that they may use")
      ->default_str("*");
  group.Repeated("--allowed-headers", o.api.cors.allowed_headers, "Headers that they may send")
      ->default_str("*");
  group.Switch("allow-credentials", o.api.cors.allow_credentials,
               "Whether they may send credentials");
  group.Value("--ssl-certfile", o.api.tls.certificate_file, "Certificate (PEM): serve HTTPS");
  group.Value("--ssl-keyfile", o.api.tls.key_file, "Its key (PEM)");
  group.Value("--ssl-ca-certs", o.api.tls.client_ca_file,
              "Clients must show a certificate of this authority (PEM)");
  group.Switch("enable-request-id-headers", o.api.request_id_headers, "Answers carry X-Request-Id");
  group.Switch("enable-server-load-tracking", o.api.track_load, "Count what /load tells");
  group.Switch("enable-dev-endpoints", o.api.dev_endpoints,
               "Answer POST /reset_prefix_cache, which forgets all cached prefixes");
  group
      .Value("--requests-per-minute", o.api.requests_per_minute,
             "Requests that one API key may make in a minute; 0: no limit")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  group
      .Value("--max-total-body-bytes", o.api.max_total_body_bytes,
             "Bodies of all requests that are being read or parsed")
      ->check(CLI::Range(size_t{1}, size_t{1} << 40))
      ->capture_default_str();
  group.Value("--max-body-bytes", o.api.max_body_bytes, "Largest request body")
      ->check(CLI::Range(size_t{1}, size_t{1} << 40))
      ->capture_default_str();
  group
      .Value("--shutdown-timeout", o.shutdown_timeout_s,
             "Seconds that running requests get to finish after SIGTERM or Ctrl-C")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str();
  group
      .Value("--engine-watchdog-timeout", o.watchdog_timeout_s,
             "Seconds with work but without the end of a step after which /health answers 503; a "
             "step is up to --max-num-batched-tokens tokens")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  group
      .Value("--engine-ready-timeout", o.ready_timeout_s,
             "Seconds after which a start that is not done fails; 0 waits")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str();
}

void AddLoggingGroup(CLI::App& command, ServeOptions& o) {
  Group group(command, "Logging");
  group
      .Value("--log-format", o.log_format,
             "text, or json: an object a line with time, level, message and fields")
      ->transform(OneOf({"text", "json"}))
      ->capture_default_str();
  group.Switch("enable-log-requests", o.api.log_requests,
               "A line for each request, with ids and times");
  group
      .Value("--max-log-len", o.api.max_log_len,
             "Characters of the prompt in that line; 0: prompts are not logged")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str();
  group.Switch("disable-uvicorn-access-log", o.disable_access_log, "No line for each HTTP request");
  group
      .Value("--uvicorn-log-level", o.http_log_level,
             "warning and above is --disable-uvicorn-access-log")
      ->transform(OneOf({"trace", "debug", "info", "warning", "error", "critical"}))
      ->capture_default_str();
  group.Switch("disable-log-stats", o.disable_stats_log,
               "No line of throughput, load and cache use");
  group.Value("--log-stats-interval", o.stats_interval_s, "Seconds between such lines")
      ->check(RealNumber(0.0, 86400.0, false, "above 0, at most 86400"))
      ->capture_default_str();
}

void AddSourcesGroup(CLI::App& command, ServeOptions& o) {
  Group group(command, "Options from elsewhere");
  group.Value("--config", o.config_file,
              "YAML file: option names without dashes, lists for several values");
  command
      .add_flag("--print-config", o.print_config,
                "Print all options with where each value comes from, as such a file, and exit")
      ->group("Options from elsewhere");
}

}  // namespace

void AddServeOptions(CLI::App& command, ServeOptions& options) {
  AddModelGroup(command, options);
  AddCacheGroup(command, options);
  AddSchedulingGroup(command, options);
  AddChatGroup(command, options);
  AddHttpGroup(command, options);
  AddLoggingGroup(command, options);
  AddSourcesGroup(command, options);
}

ServeChecks CheckServeOptions(const ServeOptions& o) {
  ServeChecks checks;
  std::vector<std::string>& problems = checks.problems;
  const TlsOptions& tls = o.api.tls;
  if (tls.certificate_file.empty() != tls.key_file.empty()) {
    problems.emplace_back("--ssl-certfile and --ssl-keyfile need each other");
  }
  if (!tls.client_ca_file.empty() && tls.certificate_file.empty()) {
    problems.emplace_back("--ssl-ca-certs needs --ssl-certfile and --ssl-keyfile");
  }
  if (!o.tokenizer_revision.empty() && o.tokenizer.empty()) {
    problems.emplace_back("--tokenizer-revision needs --tokenizer");
  }
  const std::string backend = BackendName(o.model.backend, o.model.backend_plugin);
  if (const Status cache = CheckCacheOptions(o.cache, backend); !cache.ok()) {
    problems.push_back(cache.message());
  }
  if (o.model.cuda_device != 0 && backend != "cuda") {
    problems.push_back("--cuda-device " + std::to_string(o.model.cuda_device) +
                       ": is a GPU of --backend cuda");
  }
  if (const Status offload = CheckOffloadOptions(o.model); !offload.ok()) {
    problems.push_back(offload.message());
  }
  bool fp4 = false;
  if (!o.attention_config.empty()) (void)JudgeAttention(o.attention_config, &fp4);
  if (fp4 && o.cache.indexer_dtype != "auto" && o.cache.indexer_dtype != "fp4") {
    problems.push_back(
        "--attention-config: use_fp4_indexer_cache contradicts "
        "--indexer-cache-dtype " +
        o.cache.indexer_dtype);
  }
  if (!o.api_key_file.empty()) {
    if (const auto keys = ReadApiKeys(o.api_key_file); !keys.ok()) {
      problems.push_back("--api-key-file: " + keys.status().message());
    }
  }
  // vLLM's command lines start on other backends, too. What of them has no effect on cuda's is said
  // by ToEngineOptions.
  if (backend != "cuda") {
    checks.warnings = GraphWarnings(o.model.graphs, backend);
  } else if (const auto graphs = ToGraphOptions(o.model.graphs); !graphs.ok()) {
    problems.push_back(graphs.status().message());
  }
  if (o.async_scheduling.value_or(false) && !SamplesByItself(backend)) {
    checks.warnings.push_back("--async-scheduling: no effect; tokens of the " + backend +
                              " backend are sampled on the host, which waits for each step");
  }
  return checks;
}

Result<SamplingOverrides> ParseSamplingOverrides(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return InvalidArgument(std::string("no JSON object") + kQuote);
  SamplingOverrides overrides;
  for (const auto& [key, value] : json.items()) {
    if (value.is_null()) continue;
    const double number = value.is_number() ? value.get<double>() : std::nan("");
    bool good = false;
    if (key == "temperature") {
      good = number >= 0.0 && number <= 2.0;
      overrides.temperature = number;
    } else if (key == "top_p") {
      good = number > 0.0 && number <= 1.0;
      overrides.top_p = number;
    } else if (key == "top_k") {
      good = value.is_number_integer() && number >= -1.0 && number <= 1e9;
      overrides.top_k = good && number > 0.0 ? value.get<int>() : 0;
    } else {
      return InvalidArgument("'" + key.substr(0, 64) +
                             "' has no default here; there are temperature, top_p, top_k");
    }
    if (!good) return InvalidArgument(key + " is out of range");
  }
  return overrides;
}

Result<int64_t> ParseModelOverrides(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return InvalidArgument(std::string("no JSON object") + kQuote);
  int64_t length = 0;
  for (const auto& [key, value] : json.items()) {
    if (key != "max_position_embeddings") {
      return InvalidArgument("'" + key.substr(0, 64) +
                             "' cannot be overridden; change the model's config.json, or use "
                             "max_position_embeddings");
    }
    if (!value.is_number_integer() || value.get<double>() < 1 || value.get<double>() > INT32_MAX) {
      return InvalidArgument("max_position_embeddings is out of range");
    }
    length = value.get<int64_t>();
  }
  return length;
}

Result<std::vector<std::string>> ReadApiKeys(const std::string& path) {
  FATHOM_ASSIGN_OR_RETURN(const std::string text, ReadInput(path));
  std::vector<std::string> keys;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line(text.data() + begin, end - begin);
    constexpr std::string_view kBlank = " \t\r";
    line.remove_prefix(std::min(line.find_first_not_of(kBlank), line.size()));
    line = line.substr(0, line.find_last_not_of(kBlank) + 1);
    if (!line.empty() && line.front() != '#') keys.emplace_back(line);
    begin = end + 1;
  }
  // A file without keys would open the API to everyone.
  if (keys.empty()) return InvalidArgument(path + ": holds no key");
  return keys;
}

}  // namespace fathom::cli
