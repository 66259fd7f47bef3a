#include "cli/inspect_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <ostream>
#include <utility>

namespace fathom::cli {
namespace {

constexpr std::array<int, 3> kRatios = {0, 4, 128};

std::vector<int> LayersOfRatio(const ModelConfig& config, int ratio) {
  std::vector<int> layers;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (config.compress_ratios[static_cast<size_t>(layer)] == ratio) layers.push_back(layer);
  }
  return layers;
}

const char* RatioText(int ratio) {
  return ratio == 0   ? "window only"
         : ratio == 4 ? "c4a: window, and compressed entries (ratio 4) that the indexer selects"
                      : "c128a: window, and all compressed entries (ratio 128)";
}

const char* ScoringText(ScoringFunc scoring) {
  switch (scoring) {
    case ScoringFunc::kSqrtSoftplus:
      return "sqrtsoftplus";
    case ScoringFunc::kSigmoid:
      return "sigmoid";
    case ScoringFunc::kSoftmax:
      return "softmax";
  }
  return "";
}

// "1,048,576 (1.00 MiB)"
std::string WithUnit(uint64_t bytes) {
  constexpr std::array<const char*, 4> kUnits = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return Grouped(bytes) + " bytes";
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return fmt::format("{} ({:.2f} {})", Grouped(bytes), value, kUnits[unit]);
}

std::string Drafter(const ModelConfig& c) {
  if (c.has_dspark) return " (a DSpark drafter is announced; it is not used)";
  if (c.mtp_compress_ratios.empty()) return ", no MTP block";
  return fmt::format(" and {} MTP block(s)", c.mtp_compress_ratios.size());
}

void PrintGeometry(const ModelConfig& c, std::ostream& out) {
  const auto line = [&out](const char* name, const std::string& text) {
    out << fmt::format("  {:<12}{}\n", name, text);
  };
  const auto count = [](int number) { return Grouped(static_cast<uint64_t>(number)); };
  out << "\nGeometry\n";
  line("layers", fmt::format("{}{}", c.num_layers, Drafter(c)));
  line("hidden", fmt::format("{} in {} copies (mHC, {} Sinkhorn steps)", count(c.hidden_size),
                             c.hc_mult, c.hc_sinkhorn_iters));
  line("text", fmt::format("vocabulary {}, context {} tokens", count(c.vocab_size),
                           count(c.max_position_embeddings)));
  line("attention",
       fmt::format("{} heads of {} (last {} rotated) over one key/value head, window {}",
                   c.num_heads, c.head_dim, c.rope_dim, c.window));
  line("", fmt::format("query rank {}, {} output groups of rank {}", count(c.q_lora_rank),
                       c.o_groups, count(c.o_lora_rank)));
  line("indexer", fmt::format("{} heads of {}, best {} entries", c.index_num_heads,
                              c.index_head_dim, count(c.index_topk)));
  line("experts",
       fmt::format("{} routed ({} per token) and {} shared, width {}", c.num_experts,
                   c.num_experts_per_token, c.num_shared_experts, count(c.moe_intermediate_size)));
  line("", fmt::format("{} times {}, swiglu limit {}", ScoringText(c.scoring),
                       c.routed_scaling_factor, c.swiglu_limit));
  line("rope", fmt::format("theta {}; compressed layers {}, YaRN factor {} over {} tokens",
                           c.rope_theta, c.compress_rope_theta, c.rope_scaling.factor,
                           count(c.rope_scaling.original_max_position)));
}

void PrintSchedule(const ModelConfig& c, std::ostream& out) {
  out << "\nLayers\n";
  for (const int ratio : kRatios) {
    const std::vector<int> layers = LayersOfRatio(c, ratio);
    if (layers.empty()) continue;
    out << fmt::format("  {:<18} {}\n", CompactLayers(layers), RatioText(ratio));
  }
  if (c.num_hash_layers > 0) {
    std::vector<int> hash(static_cast<size_t>(c.num_hash_layers));
    for (int layer = 0; layer < c.num_hash_layers; ++layer)
      hash[static_cast<size_t>(layer)] = layer;
    out << fmt::format("  {:<18} experts from a table over token ids; elsewhere by score\n",
                       CompactLayers(hash));
  }
}

void PrintParts(const ModelConfig& c, std::ostream& out) {
  const std::vector<PartBytes> parts = InventoryOf(c);
  const PartBytes total = Total(parts);
  out << fmt::format("\n{:<18}{:>20}{:>18}{:>22}\n", "Bytes", "main layers", "MTP",
                     "read per token");
  const auto row = [&out](std::string_view name, const PartBytes& part) {
    out << fmt::format("  {:<16}{:>20}{:>18}{:>22}\n", name, Grouped(part.main_bytes),
                       Grouped(part.mtp_bytes), Grouped(part.bytes_per_token));
  };
  for (const PartBytes& part : parts) row(PartName(part.part), part);
  row("sum", total);
  out << "  total           " << WithUnit(total.main_bytes + total.mtp_bytes) << "; per token "
      << WithUnit(total.bytes_per_token) << ", batch 1, without MTP\n";

  out << "\nParameters\n";
  out << fmt::format("  main layers     {:>20}\n  with MTP        {:>20}\n",
                     Grouped(total.main_parameters),
                     Grouped(total.main_parameters + total.mtp_parameters));
  out << fmt::format("  active          {:>20}  per token, embedding and head included\n",
                     Grouped(total.active_parameters));

  out << fmt::format("\n{:<18}{:>20}{:>18}\n", "Element types", "bytes", "tensors");
  for (const DTypeTotal& dtype : DTypesOf(c)) {
    out << fmt::format("  {:<16}{:>20}{:>18}\n", DTypeName(dtype.dtype), Grouped(dtype.bytes),
                       Grouped(dtype.num_tensors));
  }
}

void PrintFiles(const Inspection& i, std::ostream& out) {
  out << "\nFiles\n";
  if (!i.has_weights) {
    out << "  weights         none here; not checked\n";
  } else {
    constexpr size_t kShown = 4;
    uint64_t bytes = 0;
    for (const CheckpointFile& file : i.files) bytes += file.bytes;
    out << fmt::format(
        "  weights         {} file(s), {}; names, shapes and types agree with the "
        "config\n",
        i.files.size(), WithUnit(bytes));
    for (size_t f = 0; f < i.files.size(); ++f) {
      if (i.files.size() > kShown + 1 && f == kShown) {
        out << fmt::format("    and {} more\n", i.files.size() - kShown);
        break;
      }
      out << fmt::format("    {:<40}{:>18} bytes{:>8} tensors\n",
                         i.files[f].path.filename().string(), Grouped(i.files[f].bytes),
                         Grouped(static_cast<uint64_t>(i.files[f].num_tensors)));
    }
  }
  const auto presence = [&out](const char* name, const char* file, std::optional<bool> present) {
    if (!present) return;
    out << fmt::format("  {:<16}{}\n", name, *present ? file : std::string("no ") + file);
  };
  presence("tokenizer", "tokenizer.json", i.has_tokenizer);
  presence("generation", "generation_config.json", i.has_generation_config);
  for (const std::string& note : i.notes) out << "  note            " << note << "\n";
}

void PrintVerified(const VerifyReport& report, std::ostream& out) {
  out << fmt::format("\nScales{:>38}{:>18}{:>14}\n", "exponents", "scales", "of byte 0");
  for (const ScaleRange& range : report.scales) {
    out << fmt::format("  {:<24}{:>18}{:>18}{:>14}\n",
                       std::string(PartName(range.part)) + (range.mtp ? ", MTP" : ""),
                       fmt::format("{} to {}", range.min_exponent, range.max_exponent),
                       Grouped(range.num_scales), Grouped(range.num_zero_bytes));
  }
  out << "  read " << WithUnit(report.bytes_read)
      << ": every scale has a value, every bf16 and fp32 number is finite\n";
}

nlohmann::ordered_json GeometryJson(const ModelConfig& c) {
  return {{"num_layers", c.num_layers},
          {"hidden_size", c.hidden_size},
          {"vocab_size", c.vocab_size},
          {"max_position_embeddings", c.max_position_embeddings},
          {"num_heads", c.num_heads},
          {"head_dim", c.head_dim},
          {"rope_dim", c.rope_dim},
          {"q_lora_rank", c.q_lora_rank},
          {"o_groups", c.o_groups},
          {"o_lora_rank", c.o_lora_rank},
          {"window", c.window},
          {"index_num_heads", c.index_num_heads},
          {"index_head_dim", c.index_head_dim},
          {"index_topk", c.index_topk},
          {"num_experts", c.num_experts},
          {"num_experts_per_token", c.num_experts_per_token},
          {"num_shared_experts", c.num_shared_experts},
          {"moe_intermediate_size", c.moe_intermediate_size},
          {"num_hash_layers", c.num_hash_layers},
          {"scoring_func", ScoringText(c.scoring)},
          {"routed_scaling_factor", c.routed_scaling_factor},
          {"swiglu_limit", c.swiglu_limit},
          {"hc_mult", c.hc_mult},
          {"hc_sinkhorn_iters", c.hc_sinkhorn_iters},
          {"rope_theta", c.rope_theta},
          {"compress_rope_theta", c.compress_rope_theta},
          {"yarn_factor", c.rope_scaling.factor},
          {"yarn_original_max_position", c.rope_scaling.original_max_position}};
}

nlohmann::ordered_json PartJson(const PartBytes& part) {
  return {{"main_bytes", part.main_bytes},           {"mtp_bytes", part.mtp_bytes},
          {"main_parameters", part.main_parameters}, {"mtp_parameters", part.mtp_parameters},
          {"bytes_per_token", part.bytes_per_token}, {"active_parameters", part.active_parameters}};
}

}  // namespace

std::string Grouped(uint64_t number) {
  std::string text = std::to_string(number);
  for (size_t at = text.size(); at > 3;) {
    at -= 3;
    text.insert(at, ",");
  }
  return text;
}

void PrintText(const Inspection& i, std::ostream& out) {
  out << i.name << ": DeepSeek-V4, " << i.config_path << "\n";
  PrintGeometry(i.config, out);
  PrintSchedule(i.config, out);
  PrintParts(i.config, out);
  PrintFiles(i, out);
  if (i.verified) PrintVerified(*i.verified, out);
}

void PrintJson(const Inspection& i, std::ostream& out) {
  using Json = nlohmann::ordered_json;
  Json json = {{"name", i.name}, {"config", i.config_path}};
  json["geometry"] = GeometryJson(i.config);
  json["compress_ratios"] = i.config.compress_ratios;
  json["num_mtp_blocks"] = i.config.mtp_compress_ratios.size();
  json["has_dspark_drafter"] = i.config.has_dspark;
  const std::vector<PartBytes> parts = InventoryOf(i.config);
  for (const PartBytes& part : parts) {
    json["parts"][std::string(PartName(part.part))] = PartJson(part);
  }
  json["total"] = PartJson(Total(parts));
  for (const DTypeTotal& dtype : DTypesOf(i.config)) {
    json["dtypes"][std::string(DTypeName(dtype.dtype))] = {{"tensors", dtype.num_tensors},
                                                           {"bytes", dtype.bytes}};
  }
  json["weights_checked"] = i.has_weights;
  json["files"] = Json::array();
  for (const CheckpointFile& file : i.files) {
    json["files"].push_back({{"name", file.path.filename().string()},
                             {"bytes", file.bytes},
                             {"tensors", file.num_tensors}});
  }
  json["notes"] = i.notes;
  const auto optional = [](std::optional<bool> value) { return value ? Json(*value) : Json(); };
  json["has_tokenizer"] = optional(i.has_tokenizer);
  json["has_generation_config"] = optional(i.has_generation_config);
  json["scales"] = Json();
  if (i.verified) {
    json["scales"] = Json::array();
    for (const ScaleRange& range : i.verified->scales) {
      json["scales"].push_back({{"part", PartName(range.part)},
                                {"mtp", range.mtp},
                                {"scales", range.num_scales},
                                {"min_exponent", range.min_exponent},
                                {"max_exponent", range.max_exponent},
                                {"zero_bytes", range.num_zero_bytes}});
    }
    json["verified_bytes"] = i.verified->bytes_read;
  }
  // Names of files may be no UTF-8.
  out << json.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
}

}  // namespace fathom::cli
