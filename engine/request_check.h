// What any engine refuses.
#pragma once

#include "base/status.h"
#include "engine/engine.h"
#include "engine/request.h"

namespace fathom {

// kInvalidArgument naming the field of a request that is out of range for an engine with `info`.
Status ValidateRequest(const GenerateRequest& request, const EngineInfo& info);

// The tokens that end a request: its own and, unless it ignores them, the model's; ascending, none
// twice.
std::vector<TokenId> EndTokensOf(const GenerateRequest& request, const EngineInfo& info);

}  // namespace fathom
