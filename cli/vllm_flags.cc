#include "cli/vllm_flags.h"

#include <algorithm>
#include <array>

#include "cli/vllm_json_flags.h"

namespace fathom::cli {
namespace {

constexpr auto kSwitch = FlagKind::kSwitch;
constexpr auto kValue = FlagKind::kValue;
constexpr auto kRepeated = FlagKind::kRepeated;
constexpr auto kList = FlagKind::kList;
constexpr auto kJson = FlagKind::kJson;
constexpr auto kWarn = Verdict::kWarn;
constexpr auto kRefuse = Verdict::kRefuse;

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

bool IsOneOf(std::string_view word, std::string_view words) {
  while (true) {
    const size_t bar = words.find('|');
    if (word == words.substr(0, bar)) return true;
    if (bar == std::string_view::npos) return false;
    words.remove_prefix(bar + 1);
  }
}

Judgement JudgeExecutor(const std::string& value) {
  if (IsOneOf(Lower(value), "mp|uni")) {
    return {kWarn, "one process runs the engine"};
  }
  return {kRefuse, "there is no '" + value + "' executor; leave the flag out"};
}

Judgement JudgeLoadFormat(const std::string& value) {
  const std::string format = Lower(value);
  if (IsOneOf(format, "auto|safetensors|hf")) return {};
  if (format == "dummy") {
    return {kRefuse, "write a random checkpoint with 'fathom synth' and serve that"};
  }
  return {kWarn, "weights are read from the model's safetensors files (--weights)"};
}

// Templates that vLLM's documentation passes for V4 say what the built-in encoder does.
Judgement JudgeChatTemplate(const std::string& value) {
  std::string name = Lower(value.substr(value.rfind('/') + 1));
  name.erase(std::remove_if(name.begin(), name.end(), [](char c) { return c == '-' || c == '_'; }),
             name.end());
  if (name == "auto" || name.find("deepseekv4") != std::string::npos) {
    return {kWarn, "prompts are written by the built-in deepseek_v4 encoder"};
  }
  return {kRefuse,
          "templates are not run; prompts are written by the built-in deepseek_v4 encoder (fathom "
          "template shows them)"};
}

constexpr std::string_view kOneDevice = "this build computes on one device; leave the flag out";
constexpr std::string_view kNoNodes = "one process on one machine serves; leave the flag out";
constexpr std::string_view kTextOnly = "the model reads text only";
constexpr std::string_view kNoPython = "no Python is run";
constexpr std::string_view kAnyLength =
    "steps are recorded for sequences of all lengths (--compilation-config)";
constexpr std::string_view kKernels = "fathom picks its kernels itself (--backend)";
constexpr std::string_view kObsolete = "fathom has nothing that it could change";
constexpr std::string_view kNoLora = "adapters are not supported; serve a merged checkpoint";
constexpr std::string_view kSplit = "prompts and answers are computed by one process";

constexpr VllmFlag kFlags[] = {
    // Model.
    {"trust-remote-code", kSwitch, kWarn, "false", kNoPython},
    {"load-format", kValue, kWarn, "", "", JudgeLoadFormat},
    {"model-loader-extra-config", kJson, kWarn, "", "weights are used where --weights puts them"},
    {"safetensors-load-strategy", kValue, kWarn, "",
     "weights are mapped and read ahead (--weights)"},
    {"use-tqdm-on-load", kSwitch, kWarn, "", "a terminal gets a progress bar"},
    {"ignore-patterns", kList, kWarn, "", "nothing is downloaded"},
    {"max-parallel-loading-workers", kValue, kWarn, "", "all threads read weights (--threads)"},
    {"hf-token", kValue, kWarn, "", "nothing is downloaded"},
    {"code-revision", kValue, kWarn, "", kNoPython},
    {"hf-config-path", kValue, kRefuse, "", "config.json is read from the model's folder"},
    {"config-format", kValue, kRefuse, "auto|hf", "config.json has to be in the form of the Hub"},
    {"model-impl", kValue, kWarn, "auto", "fathom has one implementation"},
    {"dtype", kValue, kRefuse, "auto|bfloat16|bf16",
     "activations are bf16 between operations, as in the official code; leave the flag out"},
    {"quantization", kValue, kRefuse, "auto|none|fp8|deepseek_v4_fp8|deepseek-v4-fp8",
     "weights are used in the formats that the checkpoint has; leave the flag out"},
    {"allow-deprecated-quantization", kSwitch, kWarn, "false", kObsolete},
    {"skip-tokenizer-init", kSwitch, kRefuse, "false", "the API takes and gives text"},
    {"enable-prompt-embeds", kSwitch, kRefuse, "false", "prompts are text or token ids"},
    {"runner", kValue, kRefuse, "auto|generate", "fathom generates; it has no pooling models"},
    {"task", kValue, kRefuse, "auto|generate", "fathom generates; it has no pooling models"},
    {"convert", kValue, kRefuse, "auto|none", "fathom generates; it has no pooling models"},
    {"rope-scaling", kJson, kRefuse, "", "angles follow config.json"},
    {"rope-theta", kValue, kRefuse, "", "angles follow config.json"},
    {"disable-sliding-window", kSwitch, kRefuse, "false", "the model attends by window"},
    {"logprobs-mode", kValue, kRefuse, "raw_logprobs",
     "log-probabilities are those of the model, before penalties and temperature"},
    {"enable-return-routed-experts", kSwitch, kRefuse, "false", "answers do not show experts"},
    {"enable-lora", kSwitch, kRefuse, "false", kNoLora},
    {"lora-modules", kList, kRefuse, "", kNoLora},
    {"max-loras", kValue, kWarn, "", kNoLora},
    {"max-lora-rank", kValue, kWarn, "", kNoLora},
    {"limit-mm-per-prompt", kJson, kWarn, "", kTextOnly},
    {"allowed-local-media-path", kValue, kWarn, "", kTextOnly},
    {"allowed-media-domains", kList, kWarn, "", kTextOnly},
    {"media-io-kwargs", kJson, kWarn, "", kTextOnly},
    {"interleave-mm-strings", kSwitch, kWarn, "false", kTextOnly},
    {"skip-mm-profiling", kSwitch, kWarn, "", kTextOnly},
    {"disable-chunked-mm-input", kSwitch, kWarn, "", kTextOnly},
    {"language-model-only", kSwitch, kWarn, "false", kTextOnly},

    // Memory and cache.
    {"num-gpu-blocks-override", kValue, kRefuse, "",
     "classes of the cache have blocks of different sizes; use --kv-cache-memory-bytes"},
    {"prefix-caching-hash-algo", kValue, kWarn, "sha256|sha256_cbor",
     "prefixes are named by SHA-256"},
    {"prefix-match-unit", kValue, kRefuse, "256", "prefixes are matched in blocks of 256"},
    {"disable-hybrid-kv-cache-manager", kSwitch, kWarn, "", "", JudgeHybridCache},
    {"kv-offloading-size", kValue, kRefuse, "0|0.0",
     "the cache lies in one memory, that of --backend; give it more with --kv-cache-memory-bytes"},
    {"kv-offloading-backend", kValue, kRefuse, "native", "there is no such tier"},
    {"kv-cache-metrics", kSwitch, kWarn, "false", "/metrics has the state of all blocks"},
    {"kv-cache-metrics-sample", kValue, kWarn, "", "/metrics has the state of all blocks"},
    {"calculate-kv-scales", kSwitch, kWarn, "false", "entries carry their own scales"},
    {"kv-sharing-fast-prefill", kSwitch, kWarn, "false", kObsolete},
    {"swap-space", kValue, kWarn, "", "preempted requests are computed again from cached blocks"},
    {"kv-events-config", kJson, kWarn, "", "no events about cached blocks are published"},
    {"kv-transfer-config", kJson, kWarn, "", "", JudgeKvTransfer},

    // Scheduling.
    {"enable-chunked-prefill", kSwitch, kRefuse, "true",
     "prompts are always computed in chunks; results do not depend on it"},
    {"max-num-partial-prefills", kValue, kRefuse, "1",
     "prompts share a step's budget in order of arrival; use --max-num-batched-tokens"},
    {"max-long-partial-prefills", kValue, kRefuse, "1",
     "prompts share a step's budget in order of arrival; use --max-num-batched-tokens"},
    {"long-prefill-token-threshold", kValue, kRefuse, "0",
     "--max-num-batched-tokens bounds what a prompt gets of a step"},
    {"watermark", kValue, kRefuse, "0|0.0|0.01",
     "requests are admitted where they fit beside what running ones may need"},
    {"scheduler-reserve-full-isl", kSwitch, kRefuse, "true",
     "requests are admitted when their whole prompt fits"},
    {"scheduler-cls", kValue, kRefuse, "", kNoPython},
    {"scheduler-delay-factor", kValue, kWarn, "0|0.0", "requests start when they fit"},
    {"preemption-mode", kValue, kWarn, "recompute", "what is preempted is computed again"},
    {"num-lookahead-slots", kValue, kWarn, "0", "drafts (mtp, dspark) are not computed yet"},
    {"disable-async-output-proc", kSwitch, kWarn, "", kObsolete},
    {"speculative-model", kValue, kRefuse, "",
     "vLLM removed it; drafts (mtp, dspark) are not computed yet"},
    {"num-speculative-tokens", kValue, kRefuse, "0",
     "vLLM removed it; drafts (mtp, dspark) are not computed yet"},
    {"speculative-config", kJson, kWarn, "", "", JudgeSpeculative},
    {"use-v2-block-manager", kSwitch, kWarn, "", kObsolete},
    {"num-scheduler-steps", kValue, kWarn, "1", "every step is scheduled"},
    {"disable-cascade-attn", kSwitch, kWarn, "", kKernels},

    // Kernels and graphs; those about recorded steps are options (graph_options.h).
    {"optimization-level", kValue, kWarn, "", kKernels},
    {"batch-invariant", kSwitch, kWarn, "true",
     "results never depend on what runs beside a request"},
    {"max-seq-len-to-capture", kValue, kWarn, "", kAnyLength},
    {"attention-backend", kValue, kWarn, "auto", kKernels},
    {"moe-backend", kValue, kWarn, "auto", kKernels},
    {"linear-backend", kValue, kWarn, "auto", kKernels},
    {"all2all-backend", kValue, kWarn, "", kOneDevice},
    {"performance-mode", kValue, kWarn, "", kKernels},
    {"max-context-len-to-capture", kValue, kWarn, "", kAnyLength},
    {"cudagraph-metrics", kSwitch, kWarn, "false",
     "'fathom bench model --parts graphs' counts recorded steps"},
    {"enable-layerwise-nvtx-tracing", kSwitch, kWarn, "false", "no ranges are marked"},
    {"kernel-config", kJson, kWarn, "", kKernels},
    {"enable-flashinfer-autotune", kSwitch, kWarn, "", kKernels},
    {"disable-custom-all-reduce", kSwitch, kWarn, "", kOneDevice},
    {"additional-config", kJson, kWarn, "", kObsolete},
    {"enable-sleep-mode", kSwitch, kWarn, "false", "/sleep and /wake_up do not exist"},

    // Several devices and machines.
    {"device", kValue, kRefuse, "auto|cpu",
     "GPUs are chosen with --backend cuda; --device cpu is taken"},
    {"tensor-parallel-size", kValue, kRefuse, "1", kOneDevice},
    {"data-parallel-size", kValue, kRefuse, "1", kOneDevice},
    {"pipeline-parallel-size", kValue, kRefuse, "1", kOneDevice},
    {"decode-context-parallel-size", kValue, kRefuse, "1", kOneDevice},
    {"prefill-context-parallel-size", kValue, kRefuse, "1", kOneDevice},
    {"enable-expert-parallel", kSwitch, kWarn, "false", "one device computes all experts"},
    {"enable-eplb", kSwitch, kWarn, "false", "one device computes all experts"},
    {"eplb-config", kJson, kWarn, "", "one device computes all experts"},
    {"expert-placement-strategy", kValue, kWarn, "linear", "one device computes all experts"},
    {"enable-ep-weight-filter", kSwitch, kWarn, "", "one device computes all experts"},
    {"enable-elastic-ep", kSwitch, kWarn, "false", "one device computes all experts"},
    {"dbo-decode-token-threshold", kValue, kWarn, "", kOneDevice},
    {"dbo-prefill-token-threshold", kValue, kWarn, "", kOneDevice},
    {"ubatch-size", kValue, kWarn, "0", kOneDevice},
    {"enable-dbo", kSwitch, kWarn, "false", kOneDevice},
    {"distributed-executor-backend", kValue, kWarn, "", "", JudgeExecutor},
    {"worker-use-ray", kSwitch, kWarn, "false", "one process runs the engine"},
    {"disable-frontend-multiprocessing", kSwitch, kWarn, "",
     "the API's threads are in the engine's process"},
    {"api-server-count", kValue, kRefuse, "1", "one process serves; it has threads enough"},
    {"headless", kSwitch, kRefuse, "false", kNoNodes},
    {"data-parallel-rank", kValue, kRefuse, "0", kNoNodes},
    {"data-parallel-size-local", kValue, kRefuse, "1", kNoNodes},
    {"data-parallel-start-rank", kValue, kRefuse, "0", kNoNodes},
    {"data-parallel-address", kValue, kRefuse, "", kNoNodes},
    {"data-parallel-rpc-port", kValue, kRefuse, "", kNoNodes},
    {"data-parallel-backend", kValue, kRefuse, "mp", kNoNodes},
    {"data-parallel-hybrid-lb", kSwitch, kRefuse, "false", kNoNodes},
    {"data-parallel-external-lb", kSwitch, kRefuse, "false", kNoNodes},
    {"nnodes", kValue, kRefuse, "1", kNoNodes},
    {"node-rank", kValue, kRefuse, "0", kNoNodes},
    {"master-addr", kValue, kRefuse, "127.0.0.1|localhost", kNoNodes},
    {"master-port", kValue, kRefuse, "29501", kNoNodes},
    {"data-parallel-supervisor-port", kValue, kRefuse, "", kNoNodes},
    {"ray-workers-use-nsight", kSwitch, kWarn, "false", "one process runs the engine"},
    {"worker-cls", kValue, kRefuse, "auto", kNoPython},
    {"worker-extension-cls", kValue, kRefuse, "", kNoPython},

    // Parsers and chat.
    {"chat-template", kValue, kWarn, "", "", JudgeChatTemplate},
    {"chat-template-content-format", kValue, kWarn, "auto",
     "prompts are written by the built-in deepseek_v4 encoder"},
    {"trust-request-chat-template", kSwitch, kRefuse, "false", "templates are not run"},
    {"enable-reasoning", kSwitch, kWarn, "true", "use --reasoning-parser none to turn it off"},
    {"exclude-tools-when-tool-choice-none", kSwitch, kRefuse, "true",
     "with tool_choice none the prompt has no tools"},
    {"reasoning-config", kJson, kWarn, "", "", JudgeReasoning},
    {"structured-outputs-config", kJson, kWarn, "", "", JudgeStructuredOutputs},
    {"guided-decoding-backend", kValue, kRefuse, "",
     "vLLM removed it, too; fathom has one grammar engine, leave the flag out"},
    {"tool-parser-plugin", kValue, kRefuse, "", kNoPython},
    {"reasoning-parser-plugin", kValue, kRefuse, "", kNoPython},
    {"logits-processors", kList, kRefuse, "", kNoPython},
    {"tool-server", kValue, kRefuse, "", "tools are run by the client"},

    // HTTP and logs.
    {"enable-prompt-tokens-details", kSwitch, kWarn, "true",
     "usage always says how much of the prompt was cached"},
    {"disable-fastapi-docs", kSwitch, kWarn, "", "there are no such pages"},
    {"middleware", kRepeated, kRefuse, "", kNoPython},
    {"disable-access-log-for-endpoints", kValue, kWarn, "",
     "every HTTP request has a line, or none with --disable-uvicorn-access-log"},
    {"enable-per-request-metrics", kSwitch, kRefuse, "false",
     "times of requests are in /metrics and with --enable-log-requests in the log"},
    {"tokens-only", kSwitch, kRefuse, "false", "there is no such route; prompts may be token ids"},
    {"fingerprint-mode", kValue, kWarn, "none", "answers carry no fingerprint"},
    {"fingerprint-value", kValue, kWarn, "", "answers carry no fingerprint"},
    {"enable-offline-docs", kSwitch, kWarn, "false", "there are no such pages"},
    {"log-error-stack", kSwitch, kWarn, "false", "errors are logged with their cause"},
    {"aggregate-engine-logging", kSwitch, kWarn, "", "there is one engine"},
    {"enable-logging-iteration-details", kSwitch, kWarn, "false",
     "/metrics has the times of steps"},
    {"fail-on-environ-validation", kSwitch, kWarn, "", "--log-level debug names unused variables"},
    {"ssl-ciphers", kValue, kRefuse, "", "ciphers are those of the TLS library"},
    {"ssl-cert-reqs", kValue, kRefuse, "0", "give the CA of clients with --ssl-ca-certs"},
    {"enable-ssl-refresh", kSwitch, kRefuse, "false", "restart to load a new certificate"},
    {"h11-max-incomplete-event-size", kValue, kWarn, "", "heads of requests end at 16 KiB"},
    {"h11-max-header-count", kValue, kWarn, "", "heads of requests end at 16 KiB"},
    {"log-config-file", kValue, kWarn, "", "use --log-level and --log-format"},
    {"disable-log-requests", kSwitch, kWarn, "true", "use --enable-log-requests"},
    {"enable-log-outputs", kSwitch, kRefuse, "false", "answers are never logged"},
    {"enable-log-deltas", kSwitch, kWarn, "false|true", ""},
    {"enable-tokenizer-info-endpoint", kSwitch, kRefuse, "false", "there is no such route"},
    {"otlp-traces-endpoint", kValue, kWarn, "", "no traces are sent; use --enable-log-requests"},
    {"collect-detailed-traces", kValue, kWarn, "", "/metrics has the times of steps"},
    {"show-hidden-metrics-for-version", kValue, kWarn, "", "/metrics has no hidden metrics"},
    {"enable-mfu-metrics", kSwitch, kWarn, "false", "'fathom bench' measures speed"},
    {"profiler-config", kJson, kWarn, "", "'fathom bench' measures speed"},
};

struct ShortName {
  std::string_view name;
  std::string_view long_name;
};
constexpr ShortName kShortNames[] = {
    {"tp", "tensor-parallel-size"},
    {"dp", "data-parallel-size"},
    {"pp", "pipeline-parallel-size"},
    {"ep", "enable-expert-parallel"},
    {"dcp", "decode-context-parallel-size"},
    {"pcp", "prefill-context-parallel-size"},
    {"dpn", "data-parallel-rank"},
    {"dpr", "data-parallel-start-rank"},
    {"dpl", "data-parallel-size-local"},
    {"dpa", "data-parallel-address"},
    {"dpp", "data-parallel-rpc-port"},
    {"dpb", "data-parallel-backend"},
    {"dph", "data-parallel-hybrid-lb"},
    {"dpe", "data-parallel-external-lb"},
    {"cc", "compilation-config"},
    {"ac", "attention-config"},
    {"sc", "speculative-config"},
    {"q", "quantization"},
    {"n", "nnodes"},
    {"r", "node-rank"},
    {"O", "optimization-level"},
};

// Values that show what a flag does when it is given in earnest.
bool Reaches(const VllmFlag& flag, Verdict verdict) {
  return flag.judge == nullptr ? flag.otherwise == verdict && !flag.text.empty()
                               : verdict == Verdict::kRefuse;
}

}  // namespace

std::span<const VllmFlag> VllmFlags() { return kFlags; }

const VllmFlag* FindVllmFlag(std::string_view name) {
  const auto* found = std::find_if(std::begin(kFlags), std::end(kFlags),
                                   [&](const VllmFlag& flag) { return flag.name == name; });
  return found == std::end(kFlags) ? nullptr : found;
}

Judgement Judge(const VllmFlag& flag, const std::vector<std::string>& values) {
  Judgement worst;
  for (const std::string& value : values) {
    Judgement judgement;
    if (flag.judge != nullptr) {
      judgement = flag.judge(value);
    } else if (flag.kind == kJson) {
      judgement = JudgeAnyObject(value, flag.otherwise, flag.text);
    } else if (flag.fine.empty() || !IsOneOf(Lower(value), flag.fine)) {
      judgement = {flag.otherwise, std::string(flag.text)};
    }
    if (judgement.verdict > worst.verdict) worst = std::move(judgement);
  }
  return worst;
}

std::string_view LongNameOf(std::string_view short_name) {
  for (const ShortName& known : kShortNames) {
    if (known.name == short_name) return known.long_name;
  }
  return {};
}

std::string ListFlags(Verdict verdict) {
  constexpr size_t kWidth = 96;
  std::string text, line = "   ";
  for (const VllmFlag& flag : kFlags) {
    if (!Reaches(flag, verdict)) continue;
    if (line.size() + flag.name.size() + 4 > kWidth) {
      text += line + "\n";
      line = "   ";
    }
    line += " " + std::string(flag.name);
  }
  return text + line + "\n";
}

std::string DescribeFlags() {
  std::string text;
  for (const VllmFlag& flag : kFlags) {
    text += "    --" + std::string(flag.name);
    if (flag.judge != nullptr) {
      text += ": depends on the value\n";
      continue;
    }
    if (flag.text.empty()) {
      text += ": accepted; fathom does so anyway\n";
      continue;
    }
    std::string fine(flag.fine);
    for (size_t at = 0; (at = fine.find('|', at)) != std::string::npos; at += 2) {
      fine.replace(at, 1, ", ");
    }
    text += flag.otherwise == kWarn ? ": no effect" : ": refused";
    if (!fine.empty()) text += " (" + fine + " is what fathom does)";
    text += "; " + std::string(flag.text) + "\n";
  }
  return text;
}

}  // namespace fathom::cli
