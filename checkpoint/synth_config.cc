#include "checkpoint/synth_config.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/problems.h"

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;
using Changes = GeometryChanges;

constexpr std::array<GeometryField, 16> kFields = {{
    {"layers", "num_hidden_layers", &Changes::layers},
    {"experts", "n_routed_experts", &Changes::experts},
    {"hidden", "hidden_size", &Changes::hidden},
    {"heads", "num_attention_heads", &Changes::heads},
    {"head-dim", "head_dim", &Changes::head_dim},
    {"vocab", "vocab_size", &Changes::vocab},
    {"moe-intermediate", "moe_intermediate_size", &Changes::moe_intermediate},
    {"experts-per-token", "num_experts_per_tok", &Changes::experts_per_token},
    {"q-lora-rank", "q_lora_rank", &Changes::q_lora_rank},
    {"o-groups", "o_groups", &Changes::o_groups},
    {"o-lora-rank", "o_lora_rank", &Changes::o_lora_rank},
    {"index-heads", "index_n_heads", &Changes::index_heads},
    {"index-head-dim", "index_head_dim", &Changes::index_head_dim},
    {"index-topk", "index_topk", &Changes::index_topk},
    {"window", "sliding_window", &Changes::window},
    {"hash-layers", "num_hash_layers", &Changes::hash_layers},
}};
// As ParseModelConfig; a schedule is never made longer than it accepts.
constexpr int kMaxLayers = 1024;
constexpr int kNumDSparkStages = 3;

// An object that has passed ParseModelConfig's limits on depth and size only when it comes from
// there; so they are checked again.
Result<Json> ParseObject(std::string_view text, std::string_view source) {
  constexpr int kMaxDepth = 16;
  if (JsonDepth(text) <= kMaxDepth) {
    Json root = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (root.is_object()) return root;
  }
  return InvalidArgument(std::string(source) + ": not a JSON object");
}

int IntOr(const Json& object, const char* name, int fallback) {
  const auto it = object.find(name);
  if (it == object.end() || !it->is_number_integer()) return fallback;
  return static_cast<int>(std::clamp<int64_t>(it->get<int64_t>(), -1, 1 << 30));
}

// The ratios of the main layers; ParseModelConfig refuses entries that are none.
Result<std::vector<int>> MainRatios(const Json& config, std::string_view source) {
  const auto it = config.find("compress_ratios");
  const int layers = IntOr(config, "num_hidden_layers", -1);
  if (it == config.end() || !it->is_array() || layers < 1 ||
      it->size() < static_cast<size_t>(layers)) {
    return InvalidArgument(std::string(source) +
                           ": needs compress_ratios with an entry for each of num_hidden_layers");
  }
  std::vector<int> ratios;
  for (int i = 0; i < layers; ++i) {
    const Json& entry = (*it)[static_cast<size_t>(i)];
    ratios.push_back(entry.is_number_integer() ? entry.get<int>() : -1);
  }
  return ratios;
}

void SetSchedule(Json& config, std::vector<int> ratios, size_t num_behind) {
  config["num_hidden_layers"] = ratios.size();
  ratios.resize(ratios.size() + num_behind, 0);
  config["compress_ratios"] = std::move(ratios);
}

void ToDSpark(Json& config, std::vector<int> ratios, const SynthDialect& dialect) {
  const int layers = static_cast<int>(ratios.size());
  SetSchedule(config, std::move(ratios), kNumDSparkStages);
  config["dspark_block_size"] = 5;
  config["dspark_noise_token_id"] = std::min(128799, IntOr(config, "vocab_size", 1) - 1);
  Json targets = Json::array();
  for (int layer = std::max(0, layers - kNumDSparkStages); layer < layers; ++layer) {
    targets.push_back(layer);
  }
  config["dspark_target_layer_ids"] = targets;
  config["dspark_markov_rank"] = dialect.dspark_markov_rank;
}

Json Take(Json& object, const char* name) {
  Json value;
  if (const auto it = object.find(name); it != object.end()) {
    value = *it;
    object.erase(name);
  }
  return value;
}

void ToTransformers(Json& config, const std::vector<int>& ratios) {
  const int num_hash = IntOr(config, "num_hash_layers", 0);
  Json layers = Json::array();
  Json mlps = Json::array();
  for (size_t i = 0; i < ratios.size(); ++i) {
    layers.push_back(ratios[i] == 0   ? "sliding_attention"
                     : ratios[i] == 4 ? "compressed_sparse_attention"
                                      : "heavily_compressed_attention");
    mlps.push_back(static_cast<int>(i) < num_hash ? "hash_moe" : "moe");
  }
  config.erase("compress_ratios");
  config.erase("num_hash_layers");
  config["layer_types"] = layers;
  config["mlp_layer_types"] = mlps;
  config["compress_rates"] = {{"compressed_sparse_attention", 4},
                              {"heavily_compressed_attention", 128}};
  const double rope_dim = IntOr(config, "qk_rope_head_dim", 0);
  config.erase("qk_rope_head_dim");
  const double factor = rope_dim / std::max(1, IntOr(config, "head_dim", 1));
  config["partial_rotary_factor"] = factor;
  Json compress = Take(config, "rope_scaling");
  if (compress.is_object()) {
    compress["rope_type"] = Take(compress, "type");
  } else {
    compress = {{"rope_type", "default"}};
  }
  compress["rope_theta"] = Take(config, "compress_rope_theta");
  compress["partial_rotary_factor"] = factor;
  const Json main = {{"rope_type", "default"},
                     {"rope_theta", Take(config, "rope_theta")},
                     {"partial_rotary_factor", factor}};
  config["rope_parameters"] = {{"main", main}, {"compress", compress}};
}

void ReplacePart(std::string& name, std::string_view part, std::string_view alias) {
  const size_t at = name.find(part);
  if (at != name.npos) name.replace(at, part.size(), alias);
}

}  // namespace

std::span<const GeometryField> GeometryFields() { return kFields; }

Result<std::string> ChangeGeometry(std::string_view preset, std::string_view source,
                                   const GeometryChanges& changes) {
  FATHOM_ASSIGN_OR_RETURN(Json config, ParseObject(preset, source));
  FATHOM_ASSIGN_OR_RETURN(std::vector<int> ratios, MainRatios(config, source));
  for (const GeometryField& field : kFields) {
    if (const std::optional<int>& value = changes.*field.member) config[field.json] = *value;
  }
  if (changes.ratios) {
    ratios = *changes.ratios;
    if (changes.layers && static_cast<size_t>(*changes.layers) != ratios.size()) {
      return InvalidArgument(std::to_string(ratios.size()) + " ratios for " +
                             std::to_string(*changes.layers) + " layers");
    }
  } else if (changes.layers) {
    // Lengths that ParseModelConfig refuses are left to it.
    const int layers = std::clamp(*changes.layers, 1, kMaxLayers);
    ratios.resize(std::min(ratios.size(), static_cast<size_t>(layers)));
    while (ratios.size() < static_cast<size_t>(layers)) {
      ratios.push_back(ratios.back() == 4 ? 128 : 4);
    }
  }
  if (!changes.hash_layers) {
    const int num_hash = IntOr(config, "num_hash_layers", 0);
    config["num_hash_layers"] = std::min(num_hash, static_cast<int>(ratios.size()));
  }
  if (changes.mtp) config["num_nextn_predict_layers"] = *changes.mtp ? 1 : 0;
  const int num_mtp = std::clamp(IntOr(config, "num_nextn_predict_layers", 1), 0, 16);
  SetSchedule(config, std::move(ratios), static_cast<size_t>(num_mtp));
  if (changes.layers) config["num_hidden_layers"] = *changes.layers;
  return config.dump(2) + "\n";
}

std::string GenerationConfigText(std::string_view config) {
  const Json parsed = Json::parse(config, nullptr, /*allow_exceptions=*/false);
  Json generation = {{"_from_model_config", true}};
  for (const auto& [name, fallback] :
       {std::pair("bos_token_id", 0), std::pair("eos_token_id", 1)}) {
    const bool given = parsed.is_object() && parsed.contains(name) && !parsed[name].is_null();
    generation[name] = given ? parsed[name] : Json(fallback);
  }
  generation["do_sample"] = true;
  generation["temperature"] = 1.0;
  generation["top_p"] = 1.0;
  return generation.dump(2) + "\n";
}

Result<std::string> ConfigInDialect(std::string_view config, std::string_view source,
                                    const SynthDialect& dialect) {
  FATHOM_ASSIGN_OR_RETURN(Json changed, ParseObject(config, source));
  FATHOM_ASSIGN_OR_RETURN(const std::vector<int> ratios, MainRatios(changed, source));
  if (dialect.dspark) ToDSpark(changed, ratios, dialect);
  if (dialect.transformers_config) ToTransformers(changed, ratios);
  return changed.dump(2) + "\n";
}

std::string NameInDialect(const std::string& native, const SynthDialect& dialect) {
  if (!dialect.alias_names) return native;
  std::string name = "model." + native;
  ReplacePart(name, ".attn.", ".self_attn.");
  ReplacePart(name, ".ffn.", ".mlp.");
  if (name.ends_with(".gate.bias")) ReplacePart(name, ".bias", ".e_score_correction_bias");
  if (name.ends_with(".scale")) name.replace(name.size() - 5, 5, "weight_scale_inv");
  return name;
}

}  // namespace fathom
