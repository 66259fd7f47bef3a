// What a server says before a load begins.
#pragma once

#include <chrono>
#include <string>

#include "base/status.h"
#include "bench/load/base_url.h"

namespace fathom::load {

// The first model of /v1/models. Errors say what the server answered, or that there is none.
Result<std::string> FirstModel(const BaseUrl& url, const std::string& api_key,
                               std::chrono::milliseconds timeout);

}  // namespace fathom::load
