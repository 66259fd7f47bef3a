// Chat requests as the request layer takes them, made from what the shell gives.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "chat/json_value.h"

namespace fathom::cli {

struct ChatTurn {
  std::string role;  // system, user or assistant
  std::string content;
  std::string reasoning;  // of an assistant turn; empty for none
};

// The body of a chat request. `thinking`: off, high or max.
JsonValue ChatBody(const std::vector<ChatTurn>& turns, std::string_view thinking);

// The body made of a JSON text that is a list of messages or a whole request. A request's own
// thinking fields win over `thinking`; a list takes `thinking`.
Result<JsonValue> ChatBodyFromMessages(std::string_view json, std::string_view thinking);

}  // namespace fathom::cli
