// Sampling defaults and end tokens that a checkpoint recommends (generation_config.json).
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/types.h"

namespace fathom {

struct GenerationConfig {
  double temperature = 1.0;  // 0 when the file says do_sample: false
  double top_p = 1.0;
  int top_k = 0;                       // 0: off
  std::vector<TokenId> eos_token_ids;  // empty: the model config's
};

// kInvalidArgument for malformed JSON or values out of range; every problem is listed.
Result<GenerationConfig> ParseGenerationConfig(std::string_view json, std::string_view source);

// Reads `directory`/generation_config.json; the defaults above where there is none.
Result<GenerationConfig> LoadGenerationConfig(const std::filesystem::path& directory);

}  // namespace fathom
