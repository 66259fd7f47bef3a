#include "cli/command.h"

#include <spdlog/spdlog.h>

#include <cerrno>
#include <cfloat>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "backend/cpu/dot/isa.h"
#include "cli/arguments.h"

namespace fathom::cli {

int Fail(const Status& status) {
  std::cerr << "fathom: " << status.message() << "\n";
  return kExitFailed;
}

void AddModelOption(CLI::App& command, std::string& model) {
  command
      .add_option("-m,--model", model,
                  "Directory in the official layout, or org/name[@revision] in the local Hugging "
                  "Face cache (default: the bundled fathom-nano)")
      ->type_name("MODEL");
}

void AddComputeOptions(CLI::App& command, std::string& backend, std::string& plugin,
                       int& num_threads, std::string& isa) {
  CLI::Option* const named =
      command
          .add_option(
              "--backend", backend,
              "Where to compute: cpu; cuda, one Hopper GPU, in builds that have it; reference, "
              "slow and plain")
          ->check(CLI::IsMember({"cpu", "cuda", "reference"}))
          ->capture_default_str();
  command
      .add_option("--backend-plugin", plugin,
                  "Compute with the backend in this shared library in place of one of fathom's "
                  "(docs/backend-plugins.md)")
      ->type_name("FILE")
      ->check(CLI::Validator([](const std::string& path)
                                 -> std::string { return path.empty() ? "names no file" : ""; },
                             ""))
      ->excludes(named);
  command
      .add_option("-t,--threads", num_threads,
                  "Threads that compute (default: OMP_NUM_THREADS, else one per processor)")
      ->check(CLI::Range(1, 1024));
  command
      .add_option("--cpu-isa", isa,
                  "Instruction set of the cpu backend: auto (the best one), portable, sse4, avx2, "
                  "avxvnni, avx512, avx512vnni; results differ in the last bits")
      ->capture_default_str();
}

std::string BackendName(const std::string& backend, const std::string& plugin) {
  return plugin.empty() ? backend : "plugin";
}

Status UseIsa(const std::string& isa, const std::string& backend) {
  if (isa == "auto") {
    cpu::ResetIsa();
    return OkStatus();
  }
  if (backend != "cpu") {
    return InvalidArgument("--cpu-isa " + isa + ": the " + backend + " backend has no use for it");
  }
  const Result<cpu::Isa> found = cpu::IsaFromName(isa);
  const Status status = found.ok() ? cpu::SetIsa(*found) : found.status();
  return status.ok() ? status : InvalidArgument("--cpu-isa: " + std::string(status.message()));
}

void AddActivationsOption(CLI::App& command, std::string& activations) {
  command
      .add_option("--cpu-activations", activations,
                  "Inputs of FP4 experts: official (e4m3), or int8: faster, not the official "
                  "rounding")
      ->check(CLI::IsMember({"official", "int8"}))
      ->capture_default_str();
}

void AddOProjActivationsOption(CLI::App& command, std::string& activations) {
  command
      .add_option(
          "--o-proj-activations", activations,
          "Inputs of the grouped output projection (wo_a): bf16 (official), or fp8: rounded "
          "to e4m3 as those of other fp8 matrices are")
      ->check(CLI::IsMember({"bf16", "fp8"}))
      ->capture_default_str();
}

Result<ExpertOffload> ParseExpertOffload(std::string_view text) {
  if (text == "auto") return ExpertOffload{true, {}};
  constexpr double kMostGib = 1 << 20;
  double gib = -1.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), gib);
  if (error != std::errc() || end != text.data() + text.size() || !(gib >= 0.0) || gib > kMostGib) {
    return InvalidArgument("'" + std::string(text) +
                           "' is neither auto nor a number of GiB, as in 20 or 0.5 "
                           "(vLLM's name: --cpu-offload-gb)");
  }
  return ExpertOffload{true, static_cast<int64_t>(gib * 0x1p30)};
}

Status CheckOffloadOptions(const ModelOptions& o) {
  const std::string backend = BackendName(o.backend, o.backend_plugin);
  if (backend == "cuda") return OkStatus();
  const std::string why = "refused; the " + backend +
                          " backend has all weights in one memory; experts outside of it are the "
                          "cuda backend's";
  if (!o.expert_offload.empty()) {
    FATHOM_ASSIGN_OR_RETURN(const ExpertOffload offload, ParseExpertOffload(o.expert_offload));
    // None is what it does anyway, and what vLLM's users write out.
    if (offload.bytes != 0) {
      return InvalidArgument("--expert-offload (--cpu-offload-gb) " + o.expert_offload + ": " +
                             why);
    }
  }
  return o.expert_profile.empty() ? OkStatus() : InvalidArgument("--expert-profile: " + why);
}

void AddExpertOffloadOption(CLI::App& command, std::string& offload) {
  command
      .add_option("--expert-offload,--cpu-offload-gb", offload,
                  "With --backend cuda: routed experts that lie in page-locked memory of the host "
                  "and are read there. GiB of them, or auto: those that the GPU has no room for "
                  "beside the cache (default: auto)")
      ->check(Parses(ParseExpertOffload))
      ->type_name("auto|GiB");
}

void AddBackendOptions(CLI::App& command, ModelOptions& o) {
  AddComputeOptions(command, o.backend, o.backend_plugin, o.num_threads, o.cpu_isa);
  AddActivationsOption(command, o.cpu_activations);
  command
      .add_option("--cpu-dense", o.cpu_dense,
                  "fp8 matrices: stored, or int8: a lossy copy, faster, needs their memory twice")
      ->check(CLI::IsMember({"stored", "int8"}))
      ->capture_default_str();
  AddOProjActivationsOption(command, o.o_proj_activations);
  command
      .add_option("--numa", o.numa,
                  "auto: on machines with several memory nodes, threads stay on theirs and copied "
                  "weights are shared out between them; off: as on a machine with one")
      ->check(CLI::IsMember({"auto", "off"}))
      ->capture_default_str();
  command
      .add_option("--weights", o.weights,
                  "mmap: use them in their files, which may be larger than memory; copy: read them "
                  "into memory; hugepages: the same in huge pages. Changes speed, never results")
      ->check(CLI::IsMember({"mmap", "copy", "hugepages"}))
      ->capture_default_str();
  command
      .add_option("--max-num-batched-tokens", o.max_batched_tokens,
                  "Tokens computed in one step; changes speed and memory, never results")
      ->transform(Count(1, 65536))
      ->capture_default_str();
  command
      .add_option("--cuda-device", o.cuda_device,
                  "With --backend cuda: which GPU, in the order of CUDA_VISIBLE_DEVICES")
      ->check(CLI::Range(0, 1023))
      ->capture_default_str();
  AddExpertOffloadOption(command, o.expert_offload);
  command
      .add_option("--expert-profile", o.expert_profile,
                  "Record of --record-expert-use: its least used experts leave the GPU first "
                  "(default: as many of every layer)")
      ->type_name("FILE");
  AddGraphOptions(command, o.graphs);
  command
      .add_flag("--serial-streams", o.serial_streams,
                "For debugging: nothing of a step is computed or copied beside something else, as "
                "with --backend cuda otherwise. Changes speed, never results")
      ->default_function([&o] { return std::string(o.serial_streams ? "true" : "false"); });
}

CLI::Option* AddAsyncOption(CLI::App& command, std::optional<bool>& async) {
  return command.add_flag_function(
      "--async-scheduling,!--no-async-scheduling", [&async](int64_t count) { async = count > 0; },
      "A step begins before the host has the tokens of the one before (default: with --backend "
      "cuda, but for --record-expert-use). Changes speed, never results");
}

bool SamplesByItself(const std::string& backend) {
  return backend == "cuda" || backend == "reference";
}

void AddModelOptions(CLI::App& command, ModelOptions& o) {
  AddModelOption(command, o.model);
  AddBackendOptions(command, o);
  command
      .add_option("--record-expert-use", o.record_expert_use,
                  "Count which routed experts are chosen, and write that here at the end; any "
                  "backend")
      ->type_name("FILE");
  command
      .add_option("--max-model-len", o.max_model_len,
                  "Longest prompt plus answer, in tokens; 8k is 8000, 8K is 8192 (default: auto, "
                  "the model's limit or what fits)")
      ->transform(CountOrAuto(1, INT32_MAX));
}

constexpr const char* kCacheGroup = "Cache";

void AddCacheOptions(CLI::App& command, CacheOptions& o) {
  const char* group = kCacheGroup;
  command
      .add_option("--kv-cache-memory-bytes", o.memory_bytes,
                  "Memory for the cache, as in 20G (default: a share of the free memory)")
      ->transform(Count(1, int64_t{1} << 50))
      ->group(group);
  command
      .add_option("--kv-cache-memory-fraction", o.memory_share,
                  "That share; --kv-cache-memory-bytes goes first")
      ->check(RealNumber(0.0, 1.0, false, "above 0, at most 1"))
      ->capture_default_str()
      ->group(group);
  command
      .add_option(
          "--gpu-memory-utilization", o.gpu_memory_share,
          "With --backend cuda, or a plug-in with a memory of its own: share of that memory "
          "that weights, activations and cache may fill (default: 0.92); --kv-cache-memory-bytes "
          "goes first")
      ->check(RealNumber(0.0, 1.0, false, "above 0, at most 1"))
      ->group(group);
  AddCacheFormatOptions(command, o);
}

void AddCacheFormatOptions(CLI::App& command, CacheOptions& o) {
  const char* group = kCacheGroup;
  command
      .add_option("--kv-cache-dtype", o.attention_dtype,
                  "Format of attention entries: auto, fp8, bf16; changes memory, never results")
      ->check(Parses(ParseAttentionCacheDType))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--indexer-cache-dtype", o.indexer_dtype,
                  "Format of index keys: auto, fp4, fp8, bf16; changes memory, never results")
      ->check(Parses(ParseIndexerCacheDType))
      ->capture_default_str()
      ->group(group);
}

Status CheckCacheOptions(const CacheOptions& o, const std::string& backend) {
  if (backend == "cuda") {
    if (o.memory_share == CacheBudget{}.fraction) return OkStatus();
    return InvalidArgument(
        "--kv-cache-memory-fraction: a share of the host's memory; with --backend cuda size the "
        "cache with --gpu-memory-utilization or --kv-cache-memory-bytes");
  }
  if (backend == "plugin") return OkStatus();  // its memory is known when it is loaded
  // vLLM's defaults, which its users write out: they ask for nothing special.
  const double share = o.gpu_memory_share.value_or(0.9);
  if (share == 0.9 || share == 0.92) return OkStatus();
  char text[32];
  std::snprintf(text, sizeof(text), "%g", share);
  return InvalidArgument("--gpu-memory-utilization " + std::string(text) + ": refused; the " +
                         backend +
                         " backend uses no GPU; size the cache with --kv-cache-memory-bytes or "
                         "--kv-cache-memory-fraction");
}

Result<LocalEngineOptions> ToEngineOptions(const ModelOptions& model) {
  LocalEngineOptions options;
  options.backend = BackendName(model.backend, model.backend_plugin);
  options.backend_plugin = model.backend_plugin;
  FATHOM_RETURN_IF_ERROR(UseIsa(model.cpu_isa, options.backend));
  FATHOM_RETURN_IF_ERROR(CheckOffloadOptions(model));
  FATHOM_RETURN_IF_ERROR(CheckGraphFlags(model.graphs, options.backend));
  FATHOM_ASSIGN_OR_RETURN(options.graphs, ToGraphOptions(model.graphs));
  options.serial_streams = model.serial_streams;
  options.cuda_device = model.cuda_device;
  for (const std::string& warning : GraphWarnings(model.graphs, options.backend)) {
    spdlog::warn("{}", warning);
  }
  options.cpu.int8_activations = model.cpu_activations == "int8";
  options.cpu.int8_dense = model.cpu_dense == "int8";
  options.fp8_o_proj_inputs = model.o_proj_activations == "fp8";
  options.num_threads = model.num_threads;
  FATHOM_ASSIGN_OR_RETURN(options.numa, ParseNumaMode(model.numa));
  FATHOM_ASSIGN_OR_RETURN(options.weights, ParseWeightsMode(model.weights));
  options.max_model_len = model.max_model_len;
  options.max_batched_tokens = model.max_batched_tokens;
  if (!model.expert_offload.empty()) {
    FATHOM_ASSIGN_OR_RETURN(options.expert_offload, ParseExpertOffload(model.expert_offload));
  }
  options.expert_profile = model.expert_profile;
  options.record_expert_use = model.record_expert_use;
  return options;
}

Result<LocalEngineOptions> ToEngineOptions(const ModelOptions& model, const CacheOptions& cache) {
  FATHOM_ASSIGN_OR_RETURN(LocalEngineOptions options, ToEngineOptions(model));
  FATHOM_RETURN_IF_ERROR(CheckCacheOptions(cache, options.backend));
  options.cache_budget.bytes = cache.memory_bytes;
  options.cache_budget.fraction = cache.memory_share;
  if (cache.gpu_memory_share) options.cache_budget.device_share = *cache.gpu_memory_share;
  CacheDTypes dtypes = DefaultCacheDTypes(options.numerics);
  if (cache.attention_dtype != "auto") {
    FATHOM_ASSIGN_OR_RETURN(dtypes.attention, ParseAttentionCacheDType(cache.attention_dtype));
  }
  if (cache.indexer_dtype != "auto") {
    FATHOM_ASSIGN_OR_RETURN(dtypes.indexer, ParseIndexerCacheDType(cache.indexer_dtype));
  }
  options.cache_dtypes = dtypes;
  return options;
}

void AddSamplingOptions(CLI::App& command, SamplingOptions& o) {
  const char* group = "Sampling (defaults: the model's generation_config.json)";
  const auto add = [&](const char* name, auto& value, const char* help,
                       const CLI::Validator& validator) {
    command.add_option(name, value, help)->check(validator)->group(group);
  };
  add("--temperature", o.temperature, "0 takes the most likely token each time",
      RealNumber(0.0, DBL_MAX, true, "0 or more"));
  add("--top-p", o.top_p, "Draw from the likeliest tokens that hold this probability",
      RealNumber(0.0, 1.0, false, "above 0, at most 1"));
  add("--top-k", o.top_k, "Draw from this many likeliest tokens; 0 is off",
      CLI::Range(0, INT32_MAX));
  add("--min-p", o.min_p, "Drop tokens less likely than this share of the best one",
      RealNumber(0.0, 1.0, true, "from 0 to 1"));
  add("--presence-penalty", o.presence_penalty, "For tokens that the answer already has",
      RealNumber(-2.0, 2.0, true, "from -2 to 2"));
  add("--frequency-penalty", o.frequency_penalty, "For each time that the answer has the token",
      RealNumber(-2.0, 2.0, true, "from -2 to 2"));
  add("--repetition-penalty", o.repetition_penalty,
      "For tokens that prompt or answer already have; 1 is off",
      RealNumber(0.0, DBL_MAX, false, "above 0"));
  add("--seed", o.seed, "Same seed, same answer", WholeNumber());
}

SamplingParams ToSamplingParams(const SamplingOptions& o, const SamplingParams& defaults) {
  SamplingParams p = defaults;
  p.temperature = o.temperature.value_or(p.temperature);
  p.top_p = o.top_p.value_or(p.top_p);
  p.top_k = o.top_k.value_or(p.top_k);
  p.min_p = o.min_p.value_or(p.min_p);
  p.presence_penalty = o.presence_penalty.value_or(p.presence_penalty);
  p.frequency_penalty = o.frequency_penalty.value_or(p.frequency_penalty);
  p.repetition_penalty = o.repetition_penalty.value_or(p.repetition_penalty);
  p.seed = o.seed;
  return p;
}

void AddThinkingOption(CLI::App& command, std::string& thinking) {
  command.add_option("--thinking", thinking, "How much to think before the answer")
      ->check(CLI::IsMember({"off", "high", "max"}))
      ->capture_default_str();
}

Result<std::string> ReadInput(const std::string& path) {
  // Not std::ifstream: it opens directories and then throws, and it forgets why it failed.
  constexpr size_t kMaxBytes = size_t{1} << 30;
  const bool is_stdin = path == "-";
  const std::string name = is_stdin ? "standard input" : path;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> opened(
      is_stdin ? nullptr : std::fopen(path.c_str(), "rb"),
      [](std::FILE* file) { return file == nullptr ? 0 : std::fclose(file); });
  std::FILE* file = is_stdin ? stdin : opened.get();
  if (file == nullptr) return NotFound(name + ": " + std::strerror(errno));
  std::string text;
  char part[1 << 14];
  while (const size_t n = std::fread(part, 1, sizeof(part), file)) {
    text.append(part, n);
    if (text.size() > kMaxBytes) {
      return InvalidArgument(name + ": longer than " + std::to_string(kMaxBytes) + " bytes");
    }
  }
  if (std::ferror(file) != 0) return Unavailable(name + ": " + std::strerror(errno));
  return text;
}

Result<std::vector<TokenId>> ParseTokenIds(std::string_view text, int vocab_size) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_array()) return InvalidArgument("expected a JSON array of token ids");
  std::vector<TokenId> ids;
  ids.reserve(json.size());
  for (const auto& id : json) {
    // A value that is no number is not printed: it may be long, or nested deeper than a stack is.
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= vocab_size) {
      return InvalidArgument(
          "entry " + std::to_string(ids.size()) + ": " +
          (id.is_number() ? id.dump() : "a value of type " + std::string(id.type_name())) +
          " is not a token id below " + std::to_string(vocab_size));
    }
    ids.push_back(id.get<TokenId>());
  }
  return ids;
}

}  // namespace fathom::cli
