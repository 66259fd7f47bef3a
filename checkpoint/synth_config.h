// config.json texts for synthetic checkpoints: a preset with another geometry, and other spellings.
//
// Pure functions from JSON text to JSON text; the order of the fields is kept. The result is judged
// by ParseModelConfig, here only what it could not see is checked.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace fathom {

// What to change in a preset; everything absent stays.
struct GeometryChanges {
  std::optional<int> layers, experts, hidden, heads, head_dim, vocab, moe_intermediate,
      experts_per_token, q_lora_rank, o_groups, o_lora_rank, index_heads, index_head_dim,
      index_topk, window, hash_layers;
  // One per main layer. With `layers` alone the preset's schedule is cut, or continued by taking
  // turns between 4 and 128.
  std::optional<std::vector<int>> ratios;
  std::optional<bool> mtp;  // one MTP block or none
};

// The members of GeometryChanges that set one number of the config, for command lines and tests.
struct GeometryField {
  const char* option;  // "moe-intermediate"
  const char* json;    // "moe_intermediate_size"
  std::optional<int> GeometryChanges::*member;
};
std::span<const GeometryField> GeometryFields();

// `preset` is a config.json in the published spelling. kInvalidArgument when it is not, or when
// `layers` and `ratios` disagree.
Result<std::string> ChangeGeometry(std::string_view preset, std::string_view source,
                                   const GeometryChanges& changes);

// generation_config.json with the published defaults and the token ids of `config`.
std::string GenerationConfigText(std::string_view config);

// Other forms in which the same model occurs; for tests of what Checkpoint::Open accepts.
struct SynthDialect {
  bool transformers_config = false;  // layer_types, rope_parameters, ... as transformers saves them
  bool alias_names = false;          // model.layers.0.self_attn.wq_a.weight_scale_inv
  bool omit_mtp = false;             // MTP blocks are announced but their tensors are not there
  // The re-packs of Flash-0731 and Pro-0813: dspark_* fields, three more compress_ratios, and the
  // stages mtp.0 to mtp.2 of the drafter in place of the MTP blocks.
  bool dspark = false;
  int dspark_markov_rank = 256;
};

// `config` in published spelling.
Result<std::string> ConfigInDialect(std::string_view config, std::string_view source,
                                    const SynthDialect& dialect);
// `native` as the dialect spells it: the inverse of NativeTensorName().
std::string NameInDialect(const std::string& native, const SynthDialect& dialect);

}  // namespace fathom
