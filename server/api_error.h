// What a client is told when its request fails, in the OpenAI error format.
// The error itself is chat/request_error.h's.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "chat/request_error.h"
#include "server/http/message.h"

namespace fathom {

// Functions that check a request return this: nothing, or why it cannot be served.
using MaybeError = std::optional<RequestError>;

// A valid request for something that this version lacks.
RequestError NotSupported(std::string_view param);

// The HTTP status that stands for a failure inside: 400, 404, 422, 503 or 500. The message of an
// internal error is not passed on, because it may hold paths.
RequestError FromStatus(const Status& status);

// {"error": {"message", "type", "param", "code"}}
std::string ErrorBody(const RequestError& error);

// The same as an answer; 503 with Retry-After.
http::Response ErrorResponse(const RequestError& error);

}  // namespace fathom
