// Requests of Anthropic's /v1/messages as chat requests.
#pragma once

#include "chat/json_value.h"
#include "server/api_error.h"
#include "server/field_names.h"

namespace fathom {

// Translates the body of /v1/messages to that of /v1/chat/completions. Checks what has no
// counterpart there; what has one is checked by the readers of chat requests, whose errors `names`
// puts into the words of this API. `for_count`: of /v1/messages/count_tokens, where max_tokens may
// be absent.
MaybeError TranslateMessages(const JsonValue& body, bool for_count, JsonValue* chat,
                             FieldNames* names);

}  // namespace fathom
