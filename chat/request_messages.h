// Reads the `messages` and `tools` of an OpenAI chat request.
//
// Lenient where real clients differ (null content, lists of parts, arguments given as an object or
// cut off in the middle), strict where guessing would change the meaning. Part of chat_request.h,
// which is what servers call.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "chat/json_value.h"
#include "chat/message.h"
#include "chat/request_error.h"

namespace fathom {

std::optional<RequestError> ReadRequestMessages(const JsonValue& body,
                                                std::vector<ChatMessage>& out);

// The `function` objects of object's field `tools`, as received. `path` as in request_fields.h.
std::optional<RequestError> ReadRequestTools(const JsonValue& object, const std::string& path,
                                             std::vector<JsonValue>& out);

}  // namespace fathom
