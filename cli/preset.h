// Models that come with the program: configs without weights, and the bundled fathom-nano.
#pragma once

#include <array>
#include <filesystem>
#include <string>

#include "base/status.h"
#include "checkpoint/config.h"

namespace fathom::cli {

inline constexpr const char* kBundledModel = "fathom-nano";

// Where models come with the program: PREFIX/share/fathom/models beside PREFIX/bin/fathom when
// installed, SOURCE/models above SOURCE/build/PRESET/bin/fathom when built.
std::array<std::filesystem::path, 2> ModelFolders();

// The config of "flash", "pro", "fathom-nano", ... beside the program or in the source tree that
// built it. kNotFound lists what there is.
Result<std::filesystem::path> FindPreset(const std::string& name);

// The config of a directory, a config.json, a preset or an id in the local Hugging Face cache.
Result<ModelConfig> ReadConfig(const std::string& model);

}  // namespace fathom::cli
