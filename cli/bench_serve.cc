// fathom bench serve: load on a running server. Options have the names of `vllm bench serve` where
// it has them; shorter ones stand beside.
#include "cli/bench_serve.h"

#include <charconv>
#include <cmath>
#include <iostream>
#include <limits>
#include <memory>
#include <utility>

#include "bench/serve_bench.h"
#include "cli/arguments.h"
#include "cli/terminal.h"

namespace fathom::cli {
namespace {

constexpr int64_t kMostTokens = 100'000'000;

struct Options {
  std::string base_url;
  std::string host = "127.0.0.1";
  int port = 8000;
  std::string endpoint = "chat";
  std::string dataset = "random";
  std::string file;
  std::string token_ids;
  std::string rate = "inf";
  std::optional<int64_t> num_requests, input_tokens, output_tokens, prefix_tokens, num_prefixes;
  std::optional<int> concurrency;
  std::optional<double> duration_s;
  int64_t timeout_s = 600;
  bool json = false;
  bench::ServeBenchOptions bench;
};

// "inf" is none.
Result<std::optional<double>> ParseRate(const std::string& text) {
  if (text == "inf") return std::optional<double>();
  double rate = 0.0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, rate);
  if (error != std::errc() || rest != end || !(rate > 0.0) || !(rate <= 1e6)) {
    return InvalidArgument("--request-rate '" + text + "' is neither inf nor in (0, 1000000]");
  }
  return std::optional<double>(rate);
}

Result<std::pair<int64_t, int64_t>> ParseRange(const std::string& text) {
  std::pair<int64_t, int64_t> range{0, 0};
  const char* end = text.data() + text.size();
  const auto low = std::from_chars(text.data(), end, range.first);
  if (low.ec == std::errc() && low.ptr != end && *low.ptr == '-') {
    const auto high = std::from_chars(low.ptr + 1, end, range.second);
    if (high.ec == std::errc() && high.ptr == end) return range;
  }
  return InvalidArgument("--token-ids '" + text + "' is no range such as 1000-30000");
}

// Fills in what depends on other options; the defaults are those of vLLM's datasets.
Status Complete(Options& o) {
  load::WorkloadOptions& work = o.bench.workload;
  load::LoadOptions& load = o.bench.load;
  if (o.base_url.empty()) {
    const bool is_ipv6 = o.host.find(':') != std::string::npos && !o.host.starts_with('[');
    o.base_url = "http://" + (is_ipv6 ? "[" + o.host + "]" : o.host) + ":" + std::to_string(o.port);
  }
  FATHOM_ASSIGN_OR_RETURN(load.url, load::ParseBaseUrl(o.base_url));
  FATHOM_ASSIGN_OR_RETURN(load.request_rate, ParseRate(o.rate));
  for (const load::Endpoint endpoint :
       {load::Endpoint::kChat, load::Endpoint::kCompletions, load::Endpoint::kMessages}) {
    const bool is_it =
        o.endpoint == load::EndpointName(endpoint) || o.endpoint == load::EndpointPath(endpoint);
    if (is_it) work.endpoint = endpoint;
  }
  if (!o.token_ids.empty()) {
    FATHOM_ASSIGN_OR_RETURN(work.token_ids, ParseRange(o.token_ids));
  }
  const bool is_file = !o.file.empty();
  if (o.dataset == "custom" && !is_file) {
    return InvalidArgument("--dataset-name custom needs --dataset-path");
  }
  const bool has_prefixes = o.dataset == "prefix_repetition";
  const bool has_lengths = o.input_tokens || o.prefix_tokens || o.num_prefixes ||
                           work.range_ratio > 0.0 || work.token_ids || has_prefixes;
  if (is_file && has_lengths) {
    return InvalidArgument(
        "the bodies of --dataset-path have their texts: lengths, prefixes and "
        "token ids have no meaning beside it");
  }
  if (o.num_prefixes && !o.prefix_tokens && !has_prefixes) {
    return InvalidArgument("--prefix-groups needs --shared-prefix");
  }
  if (is_file) {
    FATHOM_ASSIGN_OR_RETURN(work.bodies, ReadInput(o.file));
    work.max_tokens = o.output_tokens;
    o.dataset = "custom";
  } else {
    work.input_tokens = o.input_tokens.value_or(has_prefixes ? 256 : 1024);
    work.max_tokens = o.output_tokens.value_or(128);
    work.prefix_tokens = o.prefix_tokens.value_or(has_prefixes ? 256 : 0);
    work.num_prefixes = static_cast<int>(o.num_prefixes.value_or(has_prefixes ? 10 : 1));
  }
  o.bench.workload_name = is_file ? o.file : o.dataset;
  load.seed = work.seed;
  load.max_concurrency = o.concurrency;
  load.timeout = std::chrono::seconds(o.timeout_s);
  load.num_conversations = o.num_requests;
  if (o.duration_s) {
    load.duration = std::chrono::milliseconds(std::llround(*o.duration_s * 1000.0));
    if (!load.max_concurrency && !load.request_rate && !o.num_requests) {
      return InvalidArgument(
          "--duration needs --concurrency, --request-rate or --num-requests: without end, "
          "everything would begin at once");
    }
  } else if (!load.num_conversations) {
    // A file's bodies once each; else what vLLM sends.
    load.num_conversations = 1000;
    if (work.bodies) {
      FATHOM_ASSIGN_OR_RETURN(const load::Workload workload, load::Workload::Create(work));
      load.num_conversations = workload.num_bodies();
    }
  }
  return {};
}

int Run(Options& o) {
  if (const Status status = Complete(o); !status.ok()) {
    const int exit_status = Fail(status);
    return status.code() == StatusCode::kInvalidArgument ? kExitUsage : exit_status;
  }
  const InterruptGuard interrupt;
  o.bench.load.interrupt = &interrupt.flag();
  const Result<bench::ServeBenchResult> result = bench::BenchServe(o.bench);
  if (!result.ok()) return interrupt.flag() ? kExitInterrupted : Fail(result.status());
  if (o.json) {
    std::cout << bench::ReportJson(result->report) << "\n";
  } else {
    bench::PrintReport(std::cout, result->report);
  }
  if (result->load.was_stopped) return kExitInterrupted;
  if (result->load.num_ok > 0) return 0;
  return Fail(Unavailable("no request succeeded"));
}

void AddServer(CLI::App& command, Options& o) {
  auto* url = command.add_option("--base-url", o.base_url,
                                 "Server, http://host:port (default: of --host and --port)");
  command.add_option("--host", o.host, "Server's host")->capture_default_str()->excludes(url);
  command.add_option("--port", o.port, "Server's port")
      ->check(CLI::Range(1, 65535))
      ->capture_default_str()
      ->excludes(url);
  command
      .add_option("--endpoint", o.endpoint,
                  "OpenAI's chat or completions, or Anthropic's messages; by name or path")
      ->check(CLI::IsMember({"chat", "completions", "messages", "/v1/chat/completions",
                             "/v1/completions", "/v1/messages"}))
      ->capture_default_str();
  command.add_option("--model", o.bench.workload.model,
                     "Model in the requests (default: the first one that the server lists)");
  command.add_option("--api-key", o.bench.load.api_key, "Key to send")->envname("OPENAI_API_KEY");
  command
      .add_option("--server-pid", o.bench.server_pid,
                  "Process of the server on this machine: its CPU time per token is shown")
      ->check(CLI::Range(int64_t{1}, std::numeric_limits<int64_t>::max()));
  command.add_option("--timeout", o.timeout_s, "Seconds without a byte that end a request")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
}

void AddLoad(CLI::App& command, Options& o) {
  command
      .add_option("--num-requests,--num-prompts", o.num_requests,
                  "Requests; with --turns: conversations (default: 1000, or a file's lines; with "
                  "--duration: no limit)")
      ->transform(Count(1, kMostTokens));
  command
      .add_option("--duration", o.duration_s,
                  "Seconds after which no request begins; those that run may finish")
      ->check(CLI::Range(0.001, 1e7));
  command
      .add_option("--concurrency,--max-concurrency", o.concurrency,
                  "Most requests at once (default: no limit)")
      ->transform(Count(1, 1'000'000));
  command
      .add_option("--request-rate", o.rate,
                  "Requests that arrive per second, with exponential times between them; inf: all "
                  "at once, as many as --concurrency allows")
      ->capture_default_str();
  command
      .add_option("--num-warmups", o.bench.num_warmups, "Requests before those that are measured")
      ->transform(Count(1, kMostTokens));
  command.add_option("--seed", o.bench.workload.seed, "Of texts, lengths and arrivals")
      ->capture_default_str();
}

void AddWorkload(CLI::App& command, Options& o) {
  load::WorkloadOptions& work = o.bench.workload;
  command
      .add_option("--dataset-name", o.dataset,
                  "random; prefix_repetition: random with 10 prefixes of 256 tokens and 256 behind "
                  "them; custom: --dataset-path")
      ->check(CLI::IsMember({"random", "prefix_repetition", "custom"}))
      ->capture_default_str();
  command.add_option("--dataset-path", o.file,
                     "Request bodies, a JSON object a line, with messages or prompt; - is standard "
                     "input");
  command
      .add_option("--input-len,--random-input-len,--prefix-repetition-suffix-len", o.input_tokens,
                  "Tokens of a question, made of common words (default: 1024)")
      ->transform(Count(1, kMostTokens));
  command
      .add_option("--max-tokens,--output-len,--random-output-len,--prefix-repetition-output-len",
                  o.output_tokens,
                  "Most tokens of an answer (default: 128, or what a file's bodies say)")
      ->transform(Count(1, kMostTokens));
  command
      .add_option("--random-range-ratio", work.range_ratio,
                  "Lengths are drawn from within this share below and above")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command
      .add_option("--shared-prefix,--random-prefix-len,--prefix-repetition-prefix-len",
                  o.prefix_tokens, "Tokens in front of each question, the same for its group")
      ->transform(Count(1, kMostTokens));
  command
      .add_option("--prefix-groups,--prefix-repetition-num-prefixes", o.num_prefixes,
                  "Groups, each with a prefix of its own (default: 1)")
      ->transform(Count(1, 1'000'000));
  command
      .add_option("--multi-turn,--turns", work.turns,
                  "Questions of a conversation, one after the other; answers are sent back")
      ->transform(Count(1, 10'000));
  command.add_option("--token-ids", o.token_ids,
                     "Completions: prompts are ids of this range, such as 1000-30000");
  command.add_flag("--ignore-eos", work.ignore_eos, "Ask for answers that end at their limit only");
  command
      .add_option("--extra-body", work.extra_body,
                  "JSON object: further members of every body, such as tools")
      ->type_name("JSON");
}

}  // namespace

void AddBenchServe(CLI::App& bench, Action& action) {
  auto o = std::make_shared<Options>();
  CLI::App* command =
      bench.add_subcommand("serve", "Load on a running server, as its clients see it");
  AddServer(*command, *o);
  AddLoad(*command, *o);
  AddWorkload(*command, *o);
  command->add_flag("--json", o->json, "Print one JSON object");
  command->footer(
      "Answers are always streamed. Ctrl-C prints what there is.\n"
      "Examples:\n"
      "  fathom bench serve --base-url http://127.0.0.1:8000 --concurrency 32 --num-requests 200\n"
      "  fathom bench serve --request-rate 4 --duration 60 --shared-prefix 2048 "
      "--prefix-groups 4");
  command->callback([o, &action] { action = [o] { return Run(*o); }; });
}

}  // namespace fathom::cli
