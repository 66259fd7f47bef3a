#include "cli/vllm_json_flags.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "cli/arguments.h"

namespace fathom::cli {
namespace {

using Json = nlohmann::json;

constexpr auto kWarn = Verdict::kWarn;
constexpr auto kRefuse = Verdict::kRefuse;

const std::vector<std::string> kCompilationKeys = {"mode",
                                                   "level",
                                                   "cudagraph_mode",
                                                   "custom_ops",
                                                   "max_cudagraph_capture_size",
                                                   "cudagraph_capture_sizes",
                                                   "cudagraph_num_of_warmups",
                                                   "cudagraph_copy_inputs",
                                                   "cudagraph_specialize_lora",
                                                   "compile_ranges_endpoints",
                                                   "compile_ranges_split_points",
                                                   "compile_sizes",
                                                   "compile_mm_encoder",
                                                   "backend",
                                                   "splitting_ops",
                                                   "pass_config",
                                                   "inductor_compile_config",
                                                   "inductor_passes",
                                                   "use_inductor",
                                                   "use_inductor_graph_partition",
                                                   "use_cudagraph",
                                                   "full_cuda_graph",
                                                   "dynamic_shapes_config",
                                                   "fast_moe_cold_start",
                                                   "cache_dir",
                                                   "local_cache_dir",
                                                   "debug_dump_path"};
const std::vector<std::string> kSpeculativeKeys = {"method",
                                                   "model",
                                                   "num_speculative_tokens",
                                                   "draft_sample_method",
                                                   "rejection_sample_method",
                                                   "enable_adaptive_verification",
                                                   "attention_backend",
                                                   "enforce_eager",
                                                   "draft_tensor_parallel_size"};
const std::vector<std::string> kTransferKeys = {"kv_connector",
                                                "kv_role",
                                                "engine_id",
                                                "kv_rank",
                                                "kv_ip",
                                                "kv_port",
                                                "kv_buffer_size",
                                                "kv_buffer_device",
                                                "kv_load_failure_policy",
                                                "kv_parallel_size",
                                                "kv_connector_extra_config"};
const std::vector<std::string> kReasoningKeys = {"reasoning_parser", "reasoning_start_str",
                                                 "reasoning_end_str"};
const std::vector<std::string> kStructuredKeys = {
    "backend",          "disable_fallback",    "disable_any_whitespace",
    "reasoning_parser", "enable_in_reasoning", "disable_additional_properties"};
const std::vector<std::string> kAttentionKeys = {"use_fp4_indexer_cache",
                                                 "backend",
                                                 "flash_attn_version",
                                                 "flash_attn_max_num_splits_for_cuda_graph",
                                                 "use_prefill_decode_attention",
                                                 "use_prefill_query_quantization",
                                                 "use_cudnn_prefill",
                                                 "use_trtllm_attention",
                                                 "use_trtllm_ragged_deepseek_prefill",
                                                 "disable_flashinfer_prefill",
                                                 "disable_flashinfer_q_quantization",
                                                 "mla_prefill_backend"};

Judgement NotAnObject() {
  return {kRefuse, "the value is no JSON object (in a shell it needs quotes: '{\"key\": 1}')"};
}

// Problems with an object's keys, none: empty.
std::string UnknownKeys(const Json& object, const std::vector<std::string>& known) {
  std::string problems;
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string closest = ClosestName(key, known);
    problems += (problems.empty() ? "" : "; ") + ("unknown key '" + key.substr(0, 64) + "'") +
                (closest.empty() ? "" : ", did you mean " + closest + "?");
  }
  return problems;
}

// A string member; empty where there is none or something else.
std::string Text(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::string Join(const std::vector<std::string>& words) {
  std::string joined;
  for (const std::string& word : words) joined += (joined.empty() ? "" : ", ") + word;
  return joined;
}

std::string Upper(std::string text) {
  for (char& c : text) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return text;
}

bool IsTokenCount(const Json& number) {
  // As unsigned, since a large one does not fit into int64_t.
  return number.is_number_unsigned() &&
         number.get<uint64_t>() <= static_cast<uint64_t>(kMostGraphTokens);
}

}  // namespace

bool IsOurParser(std::string_view name) {
  return name == "deepseek_v4" || name == "deepseek-v4" || name == "deepseekv4";
}

Judgement JudgeAnyObject(const std::string& value, Verdict verdict, std::string_view text) {
  const Json json = Json::parse(value, nullptr, false);
  if (json.is_null() || (json.is_object() && json.empty())) return {};
  if (!json.is_object()) return NotAnObject();
  return {verdict, std::string(text)};
}

Result<CompilationConfig> ParseCompilationConfig(const std::string& value) {
  const Json json = Json::parse(value, nullptr, false);
  CompilationConfig config;
  if (json.is_number_integer()) {  // as in -cc 3
    config.others = {"level"};
    return config;
  }
  if (!json.is_object()) return InvalidArgument(NotAnObject().text);
  if (const std::string problem = UnknownKeys(json, kCompilationKeys); !problem.empty()) {
    return InvalidArgument(problem);
  }
  for (const auto& [key, member] : json.items()) {
    const bool honoured = key == "cudagraph_mode" || key == "cudagraph_capture_sizes" ||
                          key == "max_cudagraph_capture_size";
    if (honoured && member.is_null()) continue;
    if (key == "cudagraph_mode") {
      config.mode = member.is_string() ? GraphModeOf(Upper(member.get<std::string>()))
                                       : std::optional<GraphMode>();
      if (!config.mode) {
        return InvalidArgument(
            "cudagraph_mode is one of NONE, PIECEWISE, FULL, FULL_DECODE_ONLY, "
            "FULL_AND_PIECEWISE");
      }
    } else if (key == "cudagraph_capture_sizes") {
      const bool good =
          member.is_array() && std::all_of(member.begin(), member.end(), [](const Json& size) {
            return IsTokenCount(size) && size != 0;
          });
      if (!good) {
        return InvalidArgument("cudagraph_capture_sizes is a list of numbers from 1 to " +
                               std::to_string(kMostGraphTokens));
      }
      config.sizes = member.get<std::vector<int>>();
    } else if (key == "max_cudagraph_capture_size") {
      if (!IsTokenCount(member)) {
        return InvalidArgument("max_cudagraph_capture_size is a number from 0 to " +
                               std::to_string(kMostGraphTokens));
      }
      config.max_size = member.get<int>();
    } else {
      config.others.push_back(key);
    }
  }
  return config;
}

Judgement JudgeSpeculative(const std::string& value) {
  const Json json = Json::parse(value, nullptr, false);
  if (json.is_null() || (json.is_object() && json.empty())) return {};
  if (!json.is_object()) return NotAnObject();
  if (std::string problem = UnknownKeys(json, kSpeculativeKeys); !problem.empty()) {
    return {kRefuse, std::move(problem)};
  }
  if (const auto tokens = json.find("num_speculative_tokens");
      tokens != json.end() && *tokens == 0) {
    return {};
  }
  const std::string method = Text(json, "method");
  if (!method.empty() && method != "mtp" && method != "deepseek_mtp" && method != "dspark") {
    return {kRefuse, "there is no method '" + method.substr(0, 64) +
                         "'; V4 has mtp (also deepseek_mtp) and dspark"};
  }
  return {kRefuse,
          "drafts (mtp, dspark) are not computed yet; leave the flag out, answers stay "
          "the same"};
}

Judgement JudgeKvTransfer(const std::string& value) {
  const Json json = Json::parse(value, nullptr, false);
  if (json.is_null() || (json.is_object() && json.empty())) return {};
  if (!json.is_object()) return NotAnObject();
  if (std::string problem = UnknownKeys(json, kTransferKeys); !problem.empty()) {
    return {kRefuse, std::move(problem)};
  }
  const std::string connector = Text(json, "kv_connector");
  if (connector.empty()) return {};
  return {kRefuse, "prompts and answers are computed by one process, there is no connector '" +
                       connector.substr(0, 64) + "'; leave the flag out"};
}

Judgement JudgeReasoning(const std::string& value) {
  const Json json = Json::parse(value, nullptr, false);
  if (json.is_null()) return {};
  if (!json.is_object()) return NotAnObject();
  if (std::string problem = UnknownKeys(json, kReasoningKeys); !problem.empty()) {
    return {kRefuse, std::move(problem)};
  }
  if (const std::string parser = Text(json, "reasoning_parser");
      !parser.empty() && !IsOurParser(parser)) {
    return {kRefuse, "reasoning_parser is deepseek_v4"};
  }
  const std::string start = Text(json, "reasoning_start_str");
  const std::string end = Text(json, "reasoning_end_str");
  if ((!start.empty() && start != "<think>") || (!end.empty() && end != "</think>")) {
    return {kRefuse, "the model's reasoning stands between <think> and </think>"};
  }
  return {};
}

Judgement JudgeStructuredOutputs(const std::string& value) {
  const Json json = Json::parse(value, nullptr, false);
  if (json.is_null()) return {};
  if (!json.is_object()) return NotAnObject();
  if (std::string problem = UnknownKeys(json, kStructuredKeys); !problem.empty()) {
    return {kRefuse, std::move(problem)};
  }
  if (const std::string parser = Text(json, "reasoning_parser");
      !parser.empty() && !IsOurParser(parser)) {
    return {kRefuse, "reasoning_parser is deepseek_v4"};
  }
  std::vector<std::string> keys;
  for (const auto& [key, member] : json.items()) {
    const bool is_default = member.is_null() || member == false || member == "auto";
    if (key != "reasoning_parser" && !is_default) keys.push_back(key);
  }
  if (keys.empty()) return {};
  return {kWarn, Join(keys) + ": fathom has one grammar engine, which needs no settings"};
}

Judgement JudgeHybridCache(const std::string& value) {
  if (value == "false") return {kWarn, "the cache is always managed by kind"};
  return {kRefuse, "V4's cache has kinds of different sizes and cannot do without"};
}

Judgement JudgeAttention(const std::string& value, bool* fp4_indexer) {
  const Json json = Json::parse(value, nullptr, false);
  if (json.is_null()) return {};
  if (!json.is_object()) return NotAnObject();
  if (std::string problem = UnknownKeys(json, kAttentionKeys); !problem.empty()) {
    return {kRefuse, std::move(problem)};
  }
  std::vector<std::string> keys;
  for (const auto& [key, member] : json.items()) {
    if (key != "use_fp4_indexer_cache") {
      keys.push_back(key);
    } else if (member.is_boolean()) {
      *fp4_indexer = member.get<bool>();
    } else {
      return {kRefuse, "use_fp4_indexer_cache is true or false"};
    }
  }
  if (keys.empty()) return {};
  return {kWarn, Join(keys) + ": fathom picks its kernels itself"};
}

}  // namespace fathom::cli
