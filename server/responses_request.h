// Requests of OpenAI's /v1/responses as chat requests.
#pragma once

#include <string>

#include "chat/json_value.h"
#include "server/api_error.h"
#include "server/field_names.h"

namespace fathom {

// Translates the body of /v1/responses to that of /v1/chat/completions. Checks what has no
// counterpart there; what has one is checked by the readers of chat requests, whose errors `names`
// puts into the words of this API. This server keeps no responses: `store` is accepted, a
// `previous_response_id` is unknown.
//
// `repeated` gets what the response repeats of its request: JSON text, members of an object without
// its braces.
MaybeError TranslateResponses(const JsonValue& body, JsonValue* chat, std::string* repeated,
                              FieldNames* names);

}  // namespace fathom
