// Why an answer with tools ended, as the API says it.
#pragma once

#include <string_view>

#include "chat/chat_request.h"

namespace fathom {

// `engine_reason` is why generation ended. What is not `stop` stays: calls of an answer that was
// cut are not to be run, so `tool_calls` needs a stop, at least one call, and all of them complete.
// A named tool choice ends with `stop`: the client knows what it asked for.
std::string_view FinishReasonFor(std::string_view engine_reason, ToolChoice tool_choice,
                                 int num_calls, bool all_calls_complete);

}  // namespace fathom
