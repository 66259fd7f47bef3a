#include "cli/chat_body.h"

#include <utility>

#include "chat/json_parse.h"

namespace fathom::cli {
namespace {

void AddThinking(std::string_view thinking, JsonValue::Object& body) {
  JsonValue::Object kwargs;
  kwargs.push_back({"thinking", JsonValue::Bool(thinking != "off")});
  if (thinking != "off") {
    kwargs.push_back({"reasoning_effort", JsonValue::String(std::string(thinking))});
  }
  body.push_back({"chat_template_kwargs", JsonValue::FromObject(std::move(kwargs))});
}

}  // namespace

JsonValue ChatBody(const std::vector<ChatTurn>& turns, std::string_view thinking) {
  JsonValue::Array messages;
  for (const ChatTurn& turn : turns) {
    JsonValue::Object message;
    message.push_back({"role", JsonValue::String(turn.role)});
    message.push_back({"content", JsonValue::String(turn.content)});
    if (!turn.reasoning.empty()) {
      message.push_back({"reasoning_content", JsonValue::String(turn.reasoning)});
    }
    messages.push_back(JsonValue::FromObject(std::move(message)));
  }
  JsonValue::Object body;
  body.push_back({"messages", JsonValue::FromArray(std::move(messages))});
  AddThinking(thinking, body);
  return JsonValue::FromObject(std::move(body));
}

Result<JsonValue> ChatBodyFromMessages(std::string_view json, std::string_view thinking) {
  FATHOM_ASSIGN_OR_RETURN(JsonValue value, ParseJson(json));
  JsonValue::Object body;
  if (value.IfArray() != nullptr) {
    body.push_back({"messages", std::move(value)});
  } else if (const JsonValue::Object* object = value.IfObject()) {
    body = *object;
    for (const char* own : {"chat_template_kwargs", "reasoning_effort", "thinking"}) {
      if (value.FindNonNull(own) != nullptr) return JsonValue::FromObject(std::move(body));
    }
    std::erase_if(body, [](const auto& member) { return member.key == "chat_template_kwargs"; });
  } else {
    return InvalidArgument("expected a list of messages or a chat request, found " +
                           std::string(value.TypeName()));
  }
  AddThinking(thinking, body);
  return JsonValue::FromObject(std::move(body));
}

}  // namespace fathom::cli
