#include "checkpoint/config.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/mapped_file.h"
#include "checkpoint/problems.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxConfigBytes = size_t{4} << 20;
constexpr int kMaxConfigDepth = 16;
// K of every fp8 and fp4 product: activations are quantised in groups of 128 along it.
constexpr int kActivationGroup = 128;
constexpr int kKvGroup = 64;     // fp8 groups of the unrotated channels of cached keys
constexpr int kIndexGroup = 32;  // fp4 groups of index keys and queries

// Reads typed members of one JSON object and notes everything that is not as it should be, so that
// all problems of a file are found in one reading.
class Fields {
 public:
  Fields(const Json& object, std::string prefix, Problems& problems)
      : object_(object), prefix_(std::move(prefix)), problems_(problems) {}

  // nullptr when absent; null counts as absent, as in Python's writers.
  [[nodiscard]] const Json* Find(const char* name) const {
    const auto it = object_.find(name);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  void Problem(const std::string& name, const std::string& what) {
    problems_.Add(prefix_ + name + ": " + what);
  }

  // 0 after a problem.
  int Int(const char* name, int low, int high, std::optional<int> fallback = std::nullopt) {
    const Json* value = Find(name);
    if (value == nullptr) {
      if (!fallback) Problem(name, "missing");
      return fallback.value_or(0);
    }
    if (const auto number = AsInt(*value); number && *number >= low && *number <= high) {
      return *number;
    }
    Problem(name, Quoted(value->dump(-1, ' ', true, Json::error_handler_t::replace)) +
                      " is not an integer from " + std::to_string(low) + " to " +
                      std::to_string(high));
    return 0;
  }

  // At least 0, or above it when `positive`. 2 after a problem, which passes all later checks.
  double Real(const char* name, bool positive, std::optional<double> fallback = std::nullopt) {
    const Json* value = Find(name);
    if (value == nullptr) {
      if (!fallback) Problem(name, "missing");
      return fallback.value_or(2.0);
    }
    if (value->is_number()) {
      // The limit keeps the value finite in fp32.
      const auto number = value->get<double>();
      if (number <= 1e30 && (positive ? number >= 1e-30 : number >= 0.0)) return number;
    }
    Problem(name, Quoted(value->dump(-1, ' ', true, Json::error_handler_t::replace)) +
                      (positive ? " is not a positive number" : " is not a number of at least 0"));
    return 2.0;
  }

  // A property that fathom has in one form only; absent means that form.
  void MustBe(const char* name, const Json& expected, const char* why) {
    const Json* value = Find(name);
    if (value == nullptr || *value == expected) return;
    Problem(name, Quoted(value->dump(-1, ' ', true, Json::error_handler_t::replace)) +
                      ", expected " + expected.dump() + " (" + why + ")");
  }

  static std::optional<int> AsInt(const Json& value) {
    if (!value.is_number_integer()) return std::nullopt;
    if (value.is_number_unsigned()) {
      const auto number = value.get<uint64_t>();
      if (number > uint64_t{std::numeric_limits<int>::max()}) return std::nullopt;
      return static_cast<int>(number);
    }
    const auto number = value.get<int64_t>();
    if (number < std::numeric_limits<int>::min()) return std::nullopt;
    return static_cast<int>(number);
  }

 private:
  const Json& object_;
  std::string prefix_;
  Problems& problems_;
};

std::string StringOr(const Json* value, const char* fallback) {
  return value != nullptr && value->is_string() ? value->get<std::string>() : fallback;
}

// What fathom refuses by name: the rest of such a file would only give misleading problems.
Status RefuseOtherModels(Fields& fields, std::string_view source) {
  const std::string where = std::string(source) + ": ";
  const Json* model_type = fields.Find("model_type");
  const std::string type = StringOr(model_type, "");
  if (type.starts_with("deepseek_v41")) {
    return Unimplemented(where + "model_type " + Quoted(type) +
                         ": DeepSeek-V4.1 is another architecture; fathom runs DeepSeek-V4 "
                         "(model_type \"deepseek_v4\", e.g. deepseek-ai/DeepSeek-V4-Flash)");
  }
  if (model_type != nullptr && type != "deepseek_v4") {
    return Unimplemented(where + "model_type " +
                         (model_type->is_string() ? Quoted(type) : "that is no string") +
                         ": fathom runs \"deepseek_v4\" only (e.g. deepseek-ai/DeepSeek-V4-Flash)");
  }
  if (model_type == nullptr) return InvalidArgument(where + "model_type: missing");

  const Json* quantization = fields.Find("quantization_config");
  if (quantization == nullptr) {
    return Unimplemented(where +
                         "quantization_config: missing; fathom reads the published fp8 and fp4 "
                         "weights (e.g. deepseek-ai/DeepSeek-V4-Flash), no unquantised ones");
  }
  if (quantization->is_object()) {
    const auto text = [&](const char* name) {
      const auto it = quantization->find(name);
      return StringOr(it == quantization->end() ? nullptr : &*it, "");
    };
    const std::string method = text("quant_method");
    const std::string algorithm = text("quant_algo");
    if (algorithm.find("NVFP4") != std::string::npos || method.starts_with("modelopt")) {
      return Unimplemented(
          where + "quantization_config: " + Quoted(algorithm.empty() ? method : algorithm) +
          " experts (NVFP4) are not supported; use the official checkpoint "
          "(deepseek-ai/DeepSeek-V4-Flash or -Pro)");
    }
    if (!method.empty() && method != "fp8") {
      return Unimplemented(where + "quantization_config.quant_method " + Quoted(method) +
                           " is not supported; use the official fp8/fp4 checkpoint");
    }
  }
  const Json* expert_dtype = fields.Find("expert_dtype");
  if (expert_dtype != nullptr && *expert_dtype != "fp4") {
    const std::string name = StringOr(expert_dtype, "(no string)");
    return Unimplemented(
        where + "expert_dtype " + Quoted(name) +
        ": experts must be \"fp4\"; fp8 experts (the -Base checkpoints) and others "
        "are not supported, use DeepSeek-V4-Flash or DeepSeek-V4-Pro");
  }
  return OkStatus();
}

void CheckQuantization(Fields& fields, Problems& problems) {
  const Json* object = fields.Find("quantization_config");
  if (!object->is_object()) return fields.Problem("quantization_config", "not an object");
  Fields quantization(*object, "quantization_config.", problems);
  if (quantization.Find("quant_method") == nullptr) {
    quantization.Problem("quant_method", "missing, expected \"fp8\"");
  }
  quantization.MustBe("quant_method", "fp8", "the published weights");
  quantization.MustBe("fmt", "e4m3", "the only fp8 weight format");
  quantization.MustBe("scale_fmt", "ue8m0", "the only scale format");
  quantization.MustBe("weight_block_size", {128, 128}, "the block that shares a scale");
  quantization.MustBe("activation_scheme", "dynamic", "activations have no stored scales");
}

void CheckFixedProperties(Fields& fields) {
  fields.MustBe("num_key_value_heads", 1, "one key/value head is shared");
  fields.MustBe("n_shared_experts", 1, "as in all published models");
  fields.MustBe("hidden_act", "silu", "the only activation");
  fields.MustBe("norm_topk_prob", true, "expert weights are normalised");
  fields.MustBe("topk_method", "noaux_tc", "experts have no groups");
  fields.MustBe("tie_word_embeddings", false, "the head is stored");
  fields.MustBe("attention_bias", false, "linears have no bias");
  fields.MustBe("mlp_bias", false, "linears have no bias");
}

// compress_ratios (published), or layer_types with compress_rates (transformers).
void ReadSchedule(Fields& fields, Problems& problems, ModelConfig& config) {
  const Json* ratios = fields.Find("compress_ratios");
  const Json* types = fields.Find("layer_types");
  const auto num_layers = static_cast<size_t>(config.num_layers);
  const size_t problems_before = problems.count();
  const int num_mtp = fields.Int("num_nextn_predict_layers", 0, 16, 1);
  if (problems.count() > problems_before) return;
  config.has_dspark = fields.Find("dspark_block_size") != nullptr;
  if (ratios == nullptr && types == nullptr) {
    return fields.Problem("compress_ratios", "missing (and there are no layer_types)");
  }

  std::vector<int> all;
  if (ratios != nullptr) {
    if (!ratios->is_array()) return fields.Problem("compress_ratios", "not an array");
    for (size_t i = 0; i < ratios->size(); ++i) {
      const auto ratio = Fields::AsInt((*ratios)[i]);
      if (!ratio || (*ratio != 0 && *ratio != 4 && *ratio != 128)) {
        fields.Problem("compress_ratios[" + std::to_string(i) + "]", "must be 0, 4 or 128");
      }
      all.push_back(ratio.value_or(0));
    }
    // One more entry per MTP block; a DSpark drafter adds one per stage, whatever the MTP count
    // says. The entry of a published model's block stays behind when writers leave the block out.
    const bool length_ok =
        all.size() == num_layers ||
        (config.has_dspark ? all.size() > num_layers
                           : all.size() == num_layers + static_cast<size_t>(num_mtp) ||
                                 (num_mtp == 0 && all.size() == num_layers + 1));
    if (!length_ok) {
      return fields.Problem("compress_ratios",
                            std::to_string(all.size()) + " entries for num_hidden_layers " +
                                std::to_string(num_layers) + " and num_nextn_predict_layers " +
                                std::to_string(num_mtp));
    }
  }
  if (types != nullptr) {
    constexpr std::pair<const char*, int> kTypes[] = {{"sliding_attention", 0},
                                                      {"compressed_sparse_attention", 4},
                                                      {"heavily_compressed_attention", 128}};
    if (!types->is_array() || types->size() != num_layers) {
      return fields.Problem("layer_types", "not an array with num_hidden_layers entries");
    }
    std::vector<int> main;
    for (const Json& type : *types) {
      const auto* known = std::find_if(std::begin(kTypes), std::end(kTypes),
                                       [&](const auto& entry) { return type == entry.first; });
      if (known == std::end(kTypes)) {
        fields.Problem("layer_types[" + std::to_string(main.size()) + "]",
                       Quoted(StringOr(&type, "(no string)")) + " is no known attention kind");
      }
      main.push_back(known == std::end(kTypes) ? 0 : known->second);
    }
    if (ratios == nullptr) {
      all = std::move(main);
    } else if (!std::equal(main.begin(), main.end(), all.begin())) {
      fields.Problem("layer_types", "disagrees with compress_ratios");
    }
  }
  if (const Json* rates = fields.Find("compress_rates")) {
    if (rates->is_object()) {
      Fields reader(*rates, "compress_rates.", problems);
      reader.MustBe("compressed_sparse_attention", 4, "the ratio of these layers");
      reader.MustBe("heavily_compressed_attention", 128, "the ratio of these layers");
    } else {
      fields.Problem("compress_rates", "not an object");
    }
  }
  fields.MustBe("compress_rate_csa", 4, "the ratio of these layers");
  fields.MustBe("compress_rate_hca", 128, "the ratio of these layers");

  const auto main_end = all.begin() + static_cast<std::ptrdiff_t>(num_layers);
  config.compress_ratios.assign(all.begin(), main_end);
  if (config.has_dspark) return;
  config.mtp_compress_ratios.assign(main_end, all.end());
  config.mtp_compress_ratios.resize(static_cast<size_t>(num_mtp), 0);
  for (const int ratio : config.mtp_compress_ratios) {
    if (ratio != 0) fields.Problem("compress_ratios", "MTP blocks must have ratio 0");
  }
}

// num_hash_layers (published), or mlp_layer_types (transformers).
void ReadHashLayers(Fields& fields, ModelConfig& config) {
  const Json* types = fields.Find("mlp_layer_types");
  if (types == nullptr || fields.Find("num_hash_layers") != nullptr) {
    config.num_hash_layers = fields.Int("num_hash_layers", 0, config.num_layers);
  }
  if (types == nullptr) return;
  if (!types->is_array() || types->size() != static_cast<size_t>(config.num_layers)) {
    return fields.Problem("mlp_layer_types", "not an array with num_hidden_layers entries");
  }
  int num_hash = 0;
  for (size_t i = 0; i < types->size(); ++i) {
    const Json& type = (*types)[i];
    if (type != "hash_moe" && type != "moe") {
      return fields.Problem("mlp_layer_types[" + std::to_string(i) + "]",
                            "must be \"hash_moe\" or \"moe\"");
    }
    if (type == "moe") continue;
    if (num_hash != static_cast<int>(i)) {
      return fields.Problem("mlp_layer_types", "hash_moe layers must come first");
    }
    ++num_hash;
  }
  if (fields.Find("num_hash_layers") != nullptr && num_hash != config.num_hash_layers) {
    fields.Problem("mlp_layer_types", "disagrees with num_hash_layers");
  }
  config.num_hash_layers = num_hash;
}

void ReadRopeScaling(Fields& fields, RopeScaling& scaling) {
  const Json* type = fields.Find("rope_type");
  if (type == nullptr) type = fields.Find("type");
  if (type == nullptr || *type == "default") return;
  if (*type != "yarn") {
    return fields.Problem("rope_type", Quoted(StringOr(type, "(no string)")) +
                                           " is not supported, expected \"yarn\" or \"default\"");
  }
  scaling.factor = fields.Real("factor", true);
  scaling.original_max_position = fields.Int("original_max_position_embeddings", 1, 1 << 30);
  scaling.beta_fast = fields.Real("beta_fast", true, 32.0);
  scaling.beta_slow = fields.Real("beta_slow", true, 1.0);
  fields.MustBe("attention_factor", 1.0, "rotated channels keep their length");
  if (scaling.factor < 1.0) fields.Problem("factor", "must be at least 1");
  if (scaling.beta_fast <= scaling.beta_slow) {
    fields.Problem("beta_fast", "must be larger than beta_slow");
  }
}

// A positive value that may stand in several places must be the same in all of them.
class OneOf {
 public:
  OneOf(Fields& fields, const char* name) : fields_(fields), name_(name) {}
  void See(Fields& where, const char* name) {
    if (where.Find(name) != nullptr) SeeValue(where.Real(name, true));
  }
  void SeeValue(double value) {
    if (value_ != 0.0 && value_ != value) {
      fields_.Problem(name_, "given twice with different values");
    }
    value_ = value;
  }
  [[nodiscard]] double value() const { return value_; }  // 0: nowhere
  // A problem when it was nowhere.
  double Required() {
    if (value_ == 0.0) fields_.Problem(name_, "missing");
    return value_ == 0.0 ? 2.0 : value_;
  }

 private:
  Fields& fields_;
  const char* name_;
  double value_ = 0.0;
};

// rope_theta, compress_rope_theta, rope_scaling and qk_rope_head_dim (published), or
// rope_parameters {main, compress} and partial_rotary_factor (transformers).
void ReadRope(Fields& fields, Problems& problems, ModelConfig& config) {
  OneOf theta(fields, "rope_theta");
  OneOf compress_theta(fields, "compress_rope_theta");
  OneOf rotary_factor(fields, "partial_rotary_factor");
  theta.See(fields, "rope_theta");
  compress_theta.See(fields, "compress_rope_theta");
  rotary_factor.See(fields, "partial_rotary_factor");

  const auto object = [&](Fields& parent, const char* name) -> const Json* {
    const Json* value = parent.Find(name);
    if (value == nullptr || value->is_object()) return value;
    parent.Problem(name, "not an object");
    return nullptr;
  };
  if (const Json* scaling = object(fields, "rope_scaling")) {
    Fields reader(*scaling, "rope_scaling.", problems);
    ReadRopeScaling(reader, config.rope_scaling);
  }
  if (const Json* parameters = object(fields, "rope_parameters")) {
    Fields outer(*parameters, "rope_parameters.", problems);
    const Json* main = object(outer, "main");
    const Json* compress = object(outer, "compress");
    if (main != nullptr) {
      Fields reader(*main, "rope_parameters.main.", problems);
      theta.See(reader, "rope_theta");
      rotary_factor.See(reader, "partial_rotary_factor");
      reader.MustBe("rope_type", "default", "layers of ratio 0 are not scaled");
    }
    if (compress != nullptr) {
      Fields reader(*compress, "rope_parameters.compress.", problems);
      compress_theta.See(reader, "rope_theta");
      rotary_factor.See(reader, "partial_rotary_factor");
      ReadRopeScaling(reader, config.rope_scaling);
    }
    if (main == nullptr && compress == nullptr) {  // rope_scaling under its newer name
      theta.See(outer, "rope_theta");
      ReadRopeScaling(outer, config.rope_scaling);
    }
  }
  config.rope_theta = theta.value() == 0.0 ? 10000.0 : theta.value();
  config.compress_rope_theta = compress_theta.Required();
  // Base 1 gives every channel one frequency, and the YaRN bounds divide by its logarithm.
  if (config.rope_theta <= 1.0) fields.Problem("rope_theta", "must be above 1");
  if (config.compress_rope_theta <= 1.0) fields.Problem("compress_rope_theta", "must be above 1");

  OneOf rope_dim(fields, "qk_rope_head_dim");
  if (fields.Find("qk_rope_head_dim") != nullptr) {
    rope_dim.SeeValue(std::max(2, fields.Int("qk_rope_head_dim", 2, 4096)));
  }
  if (rotary_factor.value() > 1.0) {
    fields.Problem("partial_rotary_factor", "must be at most 1");
  } else if (rotary_factor.value() != 0.0) {
    rope_dim.SeeValue(std::max(1.0, std::round(rotary_factor.value() * config.head_dim)));
  }
  config.rope_dim = static_cast<int>(rope_dim.Required());
}

void ReadTokenIds(Fields& fields, ModelConfig& config) {
  // The published ids are the defaults, as in transformers.
  config.bos_token_id = fields.Int("bos_token_id", 0, config.vocab_size - 1, 0);
  const Json* eos = fields.Find("eos_token_id");
  if (eos == nullptr || !eos->is_array()) {
    config.eos_token_ids = {fields.Int("eos_token_id", 0, config.vocab_size - 1, 1)};
    return;
  }
  for (const Json& id : *eos) {
    const auto number = Fields::AsInt(id);
    if (!number || *number < 0 || *number >= config.vocab_size) {
      return fields.Problem("eos_token_id", "holds an entry that is no id of the vocabulary");
    }
    config.eos_token_ids.push_back(*number);
  }
}

void ReadSizes(Fields& fields, ModelConfig& config) {
  // The upper limits are far above any model; they keep every product of sizes inside int64 and
  // every single dimension inside int.
  config.vocab_size = fields.Int("vocab_size", 1, 1 << 24);
  config.hidden_size = fields.Int("hidden_size", 1, 1 << 17);
  config.num_layers = fields.Int("num_hidden_layers", 1, 1024);
  config.num_heads = fields.Int("num_attention_heads", 1, 4096);
  config.head_dim = fields.Int("head_dim", 1, 4096);
  config.q_lora_rank = fields.Int("q_lora_rank", 1, 1 << 17);
  config.o_groups = fields.Int("o_groups", 1, 4096);
  config.o_lora_rank = fields.Int("o_lora_rank", 1, 1 << 16);
  config.window = fields.Int("sliding_window", 1, 1 << 20);
  config.num_experts = fields.Int("n_routed_experts", 1, 4096);
  config.num_experts_per_token = fields.Int("num_experts_per_tok", 1, 256);
  config.moe_intermediate_size = fields.Int("moe_intermediate_size", 1, 1 << 17);
  config.index_num_heads = fields.Int("index_n_heads", 1, 4096);
  config.index_head_dim = fields.Int("index_head_dim", 1, 4096);
  config.index_topk = fields.Int("index_topk", 1, 1 << 20);
  config.hc_mult = fields.Int("hc_mult", 1, 16, 4);
  config.hc_sinkhorn_iters = fields.Int("hc_sinkhorn_iters", 1, 1000, 20);
  config.max_position_embeddings = fields.Int("max_position_embeddings", 1, 1 << 30);
  config.hc_eps = fields.Real("hc_eps", false, 1e-6);
  config.rms_norm_eps = fields.Real("rms_norm_eps", false, 1e-6);
  config.routed_scaling_factor = fields.Real("routed_scaling_factor", true);
  config.swiglu_limit = fields.Real("swiglu_limit", false);

  const Json* scoring = fields.Find("scoring_func");
  if (scoring == nullptr || *scoring == "sqrtsoftplus") {
    config.scoring = ScoringFunc::kSqrtSoftplus;
  } else if (*scoring == "sigmoid") {
    config.scoring = ScoringFunc::kSigmoid;
  } else if (*scoring == "softmax") {
    config.scoring = ScoringFunc::kSoftmax;
  } else {
    fields.Problem("scoring_func", "must be sqrtsoftplus, sigmoid or softmax");
  }
}

void CheckGeometry(Fields& fields, const ModelConfig& c) {
  const auto multiple = [&](const char* name, int value, int of, const char* why) {
    if (value % of != 0) {
      fields.Problem(name, std::to_string(value) + " is not a multiple of " + std::to_string(of) +
                               " (" + why + ")");
    }
  };
  constexpr const char* kGroups = "activations are quantised in groups of 128";
  multiple("hidden_size", c.hidden_size, kActivationGroup, kGroups);
  multiple("q_lora_rank", c.q_lora_rank, kActivationGroup, kGroups);
  multiple("moe_intermediate_size", c.moe_intermediate_size, kActivationGroup, kGroups);
  // Groups of wo_a must not share a scale block, and its output is wo_b's quantised input.
  multiple("o_lora_rank", c.o_lora_rank, kActivationGroup, kGroups);
  multiple("num_attention_heads", c.num_heads, c.o_groups, "heads are split into o_groups");
  if (c.num_experts_per_token > c.num_experts) {
    fields.Problem("num_experts_per_tok", std::to_string(c.num_experts_per_token) + " of " +
                                              std::to_string(c.num_experts) + " n_routed_experts");
  }
  if (c.rope_dim % 2 != 0) fields.Problem("qk_rope_head_dim", "must be even");
  if (c.rope_dim >= c.head_dim) {
    fields.Problem("qk_rope_head_dim", std::to_string(c.rope_dim) + " must be below head_dim " +
                                           std::to_string(c.head_dim));
  } else {
    multiple("head_dim", c.nope_dim(), kKvGroup,
             "head_dim - qk_rope_head_dim; keys are stored in fp8 groups of 64");
  }
  if (c.rope_dim > c.index_head_dim) {
    fields.Problem("index_head_dim", std::to_string(c.index_head_dim) +
                                         " is below qk_rope_head_dim " +
                                         std::to_string(c.rope_dim));
  }
  if ((c.index_head_dim & (c.index_head_dim - 1)) != 0 || c.index_head_dim % kIndexGroup != 0) {
    fields.Problem("index_head_dim",
                   std::to_string(c.index_head_dim) +
                       " is not a power of two of at least 32 (Hadamard rotation)");
  }
}

}  // namespace

Result<ModelConfig> ParseModelConfig(std::string_view json, std::string_view source) {
  const std::string where(source);
  if (json.size() > kMaxConfigBytes) {
    return InvalidArgument(where + ": " + std::to_string(json.size()) +
                           " bytes are too many for a config.json");
  }
  // The JSON parser takes a NUL for the end of the text.
  if (json.find('\0') != json.npos) return InvalidArgument(where + ": holds a NUL byte");
  if (JsonDepth(json) > kMaxConfigDepth) return InvalidArgument(where + ": nested too deeply");
  const Json root = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded()) return InvalidArgument(where + ": not well-formed JSON");
  if (!root.is_object()) return InvalidArgument(where + ": not a JSON object");

  Problems problems;
  Fields fields(root, "", problems);
  FATHOM_RETURN_IF_ERROR(RefuseOtherModels(fields, source));
  ModelConfig config;
  ReadSizes(fields, config);
  // What depends on a size that is itself wrong would only repeat the problem.
  if (config.num_layers > 0) ReadSchedule(fields, problems, config);
  if (config.num_layers > 0) ReadHashLayers(fields, config);
  if (config.head_dim > 0) ReadRope(fields, problems, config);
  if (config.vocab_size > 0) ReadTokenIds(fields, config);
  CheckQuantization(fields, problems);
  CheckFixedProperties(fields);
  if (problems.empty()) CheckGeometry(fields, config);
  FATHOM_RETURN_IF_ERROR(problems.ToStatus(StatusCode::kInvalidArgument, source));
  return config;
}

Result<ModelConfig> LoadModelConfig(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "config.json";
  FATHOM_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  return ParseModelConfig({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()},
                          path.string());
}

}  // namespace fathom
