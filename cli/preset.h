// Models that come with the program: configs without weights, and the bundled fathom-nano.
#pragma once

#include <filesystem>
#include <string>

#include "base/status.h"

namespace fathom::cli {

// The config of "flash", "pro", "fathom-nano", ... beside the program or in the source tree that
// built it. kNotFound lists what there is.
Result<std::filesystem::path> FindPreset(const std::string& name);

}  // namespace fathom::cli
