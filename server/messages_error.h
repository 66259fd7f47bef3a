// Errors as Anthropic's API writes them.
#pragma once

#include <string>

#include "server/api_error.h"

namespace fathom {

// {"type": "error", "error": {"type", "message"}}
std::string MessagesErrorBody(const RequestError& error);

// The same as an answer. What is 503 elsewhere is 529 here, "overloaded".
http::Response MessagesErrorResponse(const RequestError& error);

}  // namespace fathom
