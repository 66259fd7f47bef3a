#include "chat/request_messages.h"

#include <string_view>
#include <utility>

#include "chat/request_fields.h"

namespace fathom {
namespace {

using MaybeError = std::optional<RequestError>;

bool IsTextType(std::string_view type) {
  return type == "text" || type == "input_text" || type == "output_text" || type == "refusal";
}

// One element of a content list, appended to `out`.
MaybeError ReadPart(const JsonValue& part, const std::string& path, ChatRole role,
                    std::string& out) {
  if (const std::string* text = part.IfString()) {
    out += *text;
    return std::nullopt;
  }
  if (part.IfObject() == nullptr) {
    return BadRequest(path, path + " must be a string or an object");
  }
  std::optional<std::string> type;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(part, path + ".", "type", type));
  const bool is_text = type ? IsTextType(*type) : part.Find("text") != nullptr;
  if (is_text) {
    const bool is_refusal = type == "refusal" && part.Find("refusal") != nullptr;
    const std::string_view key = is_refusal ? "refusal" : "text";
    const JsonValue* text = part.Find(key);
    if (text == nullptr || text->IfString() == nullptr) {
      const std::string param = path + "." + std::string(key);
      return BadRequest(param, param + " must be a string");
    }
    out += *text->IfString();
    return std::nullopt;
  }
  if (role == ChatRole::kTool) {
    // One screenshot in a tool result must not end an agent's session.
    out += "[Unsupported " + type.value_or("unknown") + "]";
    return std::nullopt;
  }
  const std::string found = type ? QuoteForError(*type) : "a part without type";
  return BadRequest(path + ".type", "only text content is supported, not " + found);
}

MaybeError ReadContent(const JsonValue& message, const std::string& path, ChatRole role,
                       std::string& out) {
  const JsonValue* content = message.FindNonNull("content");
  if (content == nullptr) return std::nullopt;
  if (const std::string* text = content->IfString()) {
    out = *text;
    return std::nullopt;
  }
  const std::string param = path + ".content";
  const JsonValue::Array* parts = content->IfArray();
  if (parts == nullptr) {
    return BadRequest(param, param + " must be a string or a list of parts, not " +
                                 std::string(content->TypeName()));
  }
  for (size_t i = 0; i < parts->size(); ++i) {
    if (i > 0) out += role == ChatRole::kTool ? "\n\n" : "\n";
    FATHOM_RETURN_IF_REQUEST_ERROR(
        ReadPart((*parts)[i], param + "." + std::to_string(i), role, out));
  }
  return std::nullopt;
}

// Never an error: clients send truncated calls back, and refusing them would end the conversation.
JsonValue::Object ReadArguments(const JsonValue* arguments) {
  if (arguments == nullptr) return {};
  if (const JsonValue::Object* object = arguments->IfObject()) return *object;
  const std::string* text = arguments->IfString();
  if (text == nullptr) return WrapArguments(JsonValue::String(ToPythonJson(*arguments)));
  if (text->find_first_not_of(" \t\r\n") == std::string::npos) return {};
  std::optional<JsonValue::Object> parsed = ParseArguments(*text);
  return parsed ? std::move(*parsed) : WrapArguments(JsonValue::String(*text));
}

MaybeError ReadToolCall(const JsonValue& json, const std::string& path, ToolCall& out) {
  if (json.IfObject() == nullptr) return BadRequest(path, path + " must be an object");
  const JsonValue* function = json.Find("function");
  if (function == nullptr || function->IfObject() == nullptr) {
    return BadRequest(path + ".function", path + ".function must be an object");
  }
  const JsonValue* name = function->Find("name");
  if (name == nullptr || name->IfString() == nullptr) {
    return BadRequest(path + ".function.name", path + ".function.name must be a string");
  }
  std::optional<std::string> id;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(json, path + ".", "id", id));
  out.id = id.value_or("");
  out.name = *name->IfString();
  out.arguments = ReadArguments(function->FindNonNull("arguments"));
  return std::nullopt;
}

MaybeError ReadAssistantFields(const JsonValue& json, const std::string& path, ChatMessage& out) {
  std::optional<std::string> reasoning;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(json, path + ".", "reasoning", reasoning));
  if (!reasoning) {
    FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(json, path + ".", "reasoning_content", reasoning));
  }
  out.reasoning = std::move(reasoning).value_or("");

  const JsonValue::Array* calls = nullptr;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptionalArray(json, path + ".", "tool_calls", calls));
  for (size_t i = 0; calls != nullptr && i < calls->size(); ++i) {
    const std::string call_path = path + ".tool_calls." + std::to_string(i);
    FATHOM_RETURN_IF_REQUEST_ERROR(
        ReadToolCall((*calls)[i], call_path, out.tool_calls.emplace_back()));
  }
  std::optional<bool> omit_eos;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(json, path + ".", "wo_eos", omit_eos));
  out.omit_eos = omit_eos.value_or(false);
  return std::nullopt;
}

MaybeError ReadMessage(const JsonValue& json, const std::string& path, ChatMessage& out) {
  if (json.IfObject() == nullptr) return BadRequest(path, path + " must be an object");
  std::optional<std::string> role_name;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(json, path + ".", "role", role_name));
  const std::optional<ChatRole> role = ParseChatRole(role_name.value_or(""));
  if (!role) {
    return BadRequest(path + ".role",
                      "role must be system, developer, user, assistant, tool or "
                      "latest_reminder, not " +
                          QuoteForError(role_name.value_or("")));
  }
  out.role = *role;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadContent(json, path, *role, out.content));
  if (*role == ChatRole::kDeveloper && out.content.empty()) {
    return BadRequest(path + ".content", "a developer message needs content");
  }
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadRequestTools(json, path + ".", out.tools));
  const JsonValue* response_format = json.Find("response_format");
  if (response_format != nullptr && response_format->IsTruthy()) {
    out.response_format = *response_format;
  }
  std::optional<std::string> task;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(json, path + ".", "task", task));
  if (task) {
    out.task = ParseChatTask(*task);
    if (!out.task) return BadRequest(path + ".task", "unknown task " + QuoteForError(*task));
  }
  if (*role == ChatRole::kAssistant) return ReadAssistantFields(json, path, out);
  if (*role == ChatRole::kTool) {
    std::optional<std::string> id;
    FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(json, path + ".", "tool_call_id", id));
    out.tool_call_id = id.value_or("");
  }
  return std::nullopt;
}

}  // namespace

MaybeError ReadRequestMessages(const JsonValue& body, std::vector<ChatMessage>& out) {
  const JsonValue::Array* messages = nullptr;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptionalArray(body, "", "messages", messages));
  if (messages == nullptr || messages->empty()) {
    return BadRequest("messages", "messages must be a list with at least one message");
  }
  out.assign(messages->size(), ChatMessage());
  for (size_t i = 0; i < messages->size(); ++i) {
    FATHOM_RETURN_IF_REQUEST_ERROR(
        ReadMessage((*messages)[i], "messages." + std::to_string(i), out[i]));
  }
  return std::nullopt;
}

MaybeError ReadRequestTools(const JsonValue& object, const std::string& path,
                            std::vector<JsonValue>& out) {
  const JsonValue::Array* tools = nullptr;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptionalArray(object, path, "tools", tools));
  for (size_t i = 0; tools != nullptr && i < tools->size(); ++i) {
    const JsonValue& tool = (*tools)[i];
    const std::string param = path + "tools." + std::to_string(i);
    const JsonValue* type = tool.Find("type");
    if (type == nullptr || type->IfString() == nullptr || *type->IfString() != "function") {
      return BadRequest(param, param + " must have type \"function\"");
    }
    const JsonValue* function = tool.Find("function");
    const JsonValue* name = function == nullptr ? nullptr : function->Find("name");
    if (name == nullptr || name->IfString() == nullptr) {
      return BadRequest(param, param + " must have function.name");
    }
    out.push_back(*function);
  }
  return std::nullopt;
}

}  // namespace fathom
