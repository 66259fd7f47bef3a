// The backend of --backend-plugin (backend/plugin/).
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"
#include "engine/local_engine_options.h"

namespace fathom {

// The backend in the shared library at `path`. Errors name the option and the file
// (backend/plugin/plugin_library.h).
Result<std::unique_ptr<Backend>> MakePluginBackend(const std::string& path, Numerics numerics);
// That of the options, for their cache: kUnimplemented, naming the option, for formats that it does
// not have; kInvalidArgument, naming the option, for what has no use with its kind of memory.
Result<std::unique_ptr<Backend>> MakePluginBackend(const LocalEngineOptions& options);

}  // namespace fathom
