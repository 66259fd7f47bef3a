// The file of --record-expert-use and --expert-profile: how often each routed expert was chosen.
//
// JSON: {"format": "fathom expert use", "version": 1, "num_layers": L, "num_experts": E,
// "experts_per_token": K, "counts": [[E counts of layer 0], ...]}. Every row of a step counts K
// experts in every layer.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/status.h"
#include "checkpoint/config.h"
#include "model/expert_use.h"

namespace fathom {

std::string ExpertUseJson(const ExpertUse& use);
// `source` names the text in messages. kDataLoss for what is no such file, kUnimplemented for
// another version, kInvalidArgument for one of a model of another geometry.
Result<ExpertUse> ParseExpertUse(std::string_view json, std::string_view source,
                                 const ModelConfig& config);

// kNotFound where there is no such file; else as above. Files of more than 64 MiB are none.
Result<ExpertUse> ReadExpertUse(const std::filesystem::path& path, const ModelConfig& config);
// Appears under its name only when it is complete. kUnavailable where the system refuses.
Status WriteExpertUse(const std::filesystem::path& path, const ExpertUse& use);
// kUnavailable, naming the option, where WriteExpertUse could not create its file now.
Status CheckCanWriteExpertUse(const std::filesystem::path& path);

}  // namespace fathom
