// ModelConfig: the geometry and constants of a DeepSeek-V4 model, read from config.json.
//
// One struct for every spelling of the file (docs/checkpoints.md): the published one and the one
// that transformers saves. Everything here is a parameter; nothing assumes the sizes of Flash or
// Pro. Immutable after parsing.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/types.h"

namespace fathom {

// YaRN blending of the compressed layers' rotary frequencies; factor 1 means none.
struct RopeScaling {
  double factor = 1.0;
  int original_max_position = 0;  // tokens; 0 means no scaling
  double beta_fast = 32.0;
  double beta_slow = 1.0;
};

enum class ScoringFunc { kSqrtSoftplus, kSigmoid, kSoftmax };

struct ModelConfig {
  int vocab_size = 0;
  int hidden_size = 0;  // D
  int num_layers = 0;   // main layers
  int num_heads = 0;    // H
  int head_dim = 0;     // d; one shared key/value head of this width
  int rope_dim = 0;     // dr, the last channels of a head
  int q_lora_rank = 0;  // QL
  int o_groups = 0;     // G
  int o_lora_rank = 0;  // OL
  int window = 0;       // W, raw positions that a query sees, itself included

  int num_experts = 0;            // E
  int num_experts_per_token = 0;  // K
  int num_shared_experts = 1;
  int moe_intermediate_size = 0;  // I
  int num_hash_layers = 0;        // layers [0, n) take their experts from a table over token ids
  ScoringFunc scoring = ScoringFunc::kSqrtSoftplus;
  double routed_scaling_factor = 1.0;
  double swiglu_limit = 0.0;  // 0: no clamp

  int index_num_heads = 0;
  int index_head_dim = 0;  // di
  int index_topk = 0;

  int hc_mult = 0;
  int hc_sinkhorn_iters = 0;
  double hc_eps = 0.0;
  double rms_norm_eps = 0.0;

  double rope_theta = 0.0;           // layers of ratio 0
  double compress_rope_theta = 0.0;  // layers of ratio 4 and 128
  RopeScaling rope_scaling;          // applies to compress_rope_theta only
  int max_position_embeddings = 0;

  // One ratio per main layer: 0 (window only), 4 (c4a) or 128 (c128a).
  std::vector<int> compress_ratios;
  // MTP blocks that this checkpoint's config announces and fathom can use (0 when the drafter is of
  // another kind), with their ratios.
  std::vector<int> mtp_compress_ratios;
  // Set when the config announces a DSpark drafter (dspark_block_size); its mtp.* tensors are
  // skipped.
  bool has_dspark = false;

  TokenId bos_token_id = 0;
  std::vector<TokenId> eos_token_ids;

  [[nodiscard]] int nope_dim() const { return head_dim - rope_dim; }
  [[nodiscard]] bool IsHashLayer(int layer) const { return layer < num_hash_layers; }
};

// Parses the text of a config.json. `source` names it in messages. Every problem found is listed in
// one error. kInvalidArgument for malformed or inconsistent values, kUnimplemented for model types
// and expert formats that fathom refuses by name (V4.1, NVFP4, fp8 experts, ...).
Result<ModelConfig> ParseModelConfig(std::string_view json, std::string_view source);

// Reads `directory`/config.json.
Result<ModelConfig> LoadModelConfig(const std::filesystem::path& directory);

}  // namespace fathom
