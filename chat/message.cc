#include "chat/message.h"

#include <string>
#include <utility>

#include "chat/json_parse.h"

namespace fathom {
namespace {

// The official join of a tool result given as parts: text as it is, a note for anything else.
Result<std::string> JoinToolParts(const JsonValue::Array& parts) {
  std::string joined;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) joined += "\n\n";
    const JsonValue* type = parts[i].Find("type");
    const std::string* type_name = type == nullptr ? nullptr : type->IfString();
    if (type_name == nullptr) return InvalidArgument("content part without type");
    if (*type_name == "text") {
      const JsonValue* text = parts[i].Find("text");
      if (text != nullptr && text->IfString() == nullptr) {
        return InvalidArgument("text part whose text is not a string");
      }
      if (text != nullptr) joined += *text->IfString();
    } else {
      joined += "[Unsupported " + *type_name + "]";
    }
  }
  return joined;
}

Result<std::string> ReadContent(const JsonValue& message, ChatRole role) {
  const JsonValue* content = message.Find("content");
  if (content == nullptr) return std::string();
  if (const std::string* text = content->IfString()) return *text;
  if (content->is_null() && role != ChatRole::kUser) return std::string();
  if (role == ChatRole::kTool && content->IfArray() != nullptr) {
    return JoinToolParts(*content->IfArray());
  }
  return InvalidArgument("content is of type " + std::string(content->TypeName()));
}

Result<std::string> ReadOptionalString(const JsonValue& message, std::string_view key) {
  const JsonValue* value = message.FindNonNull(key);
  if (value == nullptr) return std::string();
  if (const std::string* text = value->IfString()) return *text;
  return InvalidArgument(std::string(key) + " is of type " + std::string(value->TypeName()));
}

Result<ToolCall> ReadToolCall(const JsonValue& json) {
  ToolCall call;
  FATHOM_ASSIGN_OR_RETURN(call.id, ReadOptionalString(json, "id"));
  const JsonValue* function = json.Find("function");
  const JsonValue* name = function == nullptr ? nullptr : function->Find("name");
  const JsonValue* arguments = function == nullptr ? nullptr : function->Find("arguments");
  if (name == nullptr || name->IfString() == nullptr) {
    return InvalidArgument("tool call without function name");
  }
  if (arguments == nullptr) return InvalidArgument("tool call without arguments");
  call.name = *name->IfString();
  const std::string* text = arguments->IfString();
  if (text == nullptr) {
    // The official encoder only parses text; anything else it writes as the value of `arguments`.
    call.arguments = WrapArguments(*arguments);
    return call;
  }
  JsonParseOptions options;
  options.allow_non_finite = true;
  Result<JsonValue> parsed = ParseJson(*text, options);
  if (!parsed.ok()) {
    call.arguments = WrapArguments(JsonValue::String(*text));
  } else if (const JsonValue::Object* object = parsed->IfObject()) {
    call.arguments = *object;
  } else {
    return InvalidArgument("arguments of " + call.name + " are not an object");
  }
  return call;
}

// The elements of an optional list; null, missing and empty are the same.
Result<std::vector<JsonValue>> ReadList(const JsonValue& message, std::string_view key) {
  const JsonValue* value = message.Find(key);
  if (value == nullptr || !value->IsTruthy()) return std::vector<JsonValue>();
  if (const JsonValue::Array* array = value->IfArray()) return *array;
  return InvalidArgument(std::string(key) + " is not a list");
}

Status ReadMessage(const JsonValue& json, ChatMessage& out) {
  const JsonValue* role_name = json.Find("role");
  const std::string* role_text = role_name == nullptr ? nullptr : role_name->IfString();
  const auto role = role_text == nullptr ? std::nullopt : ParseChatRole(*role_text);
  if (!role) return InvalidArgument("unknown or missing role");
  out.role = *role;
  FATHOM_ASSIGN_OR_RETURN(out.content, ReadContent(json, *role));
  if (*role == ChatRole::kDeveloper && out.content.empty()) {
    return InvalidArgument("a developer message needs content");
  }
  FATHOM_ASSIGN_OR_RETURN(const std::vector<JsonValue> tools, ReadList(json, "tools"));
  for (const JsonValue& tool : tools) {
    const JsonValue* function = tool.Find("function");
    if (function == nullptr) return InvalidArgument("tool without function");
    out.tools.push_back(*function);
  }
  const JsonValue* response_format = json.Find("response_format");
  if (response_format != nullptr && response_format->IsTruthy()) {
    out.response_format = *response_format;
  }
  FATHOM_ASSIGN_OR_RETURN(const std::string task_name, ReadOptionalString(json, "task"));
  if (!task_name.empty()) {
    out.task = ParseChatTask(task_name);
    if (!out.task) return InvalidArgument("unknown task " + task_name);
  }
  if (*role == ChatRole::kAssistant) {
    FATHOM_ASSIGN_OR_RETURN(out.reasoning, ReadOptionalString(json, "reasoning_content"));
    FATHOM_ASSIGN_OR_RETURN(const std::vector<JsonValue> calls, ReadList(json, "tool_calls"));
    for (const JsonValue& call : calls) {
      FATHOM_ASSIGN_OR_RETURN(ToolCall read, ReadToolCall(call));
      out.tool_calls.push_back(std::move(read));
    }
    const JsonValue* omit_eos = json.Find("wo_eos");
    out.omit_eos = omit_eos != nullptr && omit_eos->IsTruthy();
  } else if (*role == ChatRole::kTool) {
    FATHOM_ASSIGN_OR_RETURN(out.tool_call_id, ReadOptionalString(json, "tool_call_id"));
  }
  return OkStatus();
}

}  // namespace

std::optional<ChatRole> ParseChatRole(std::string_view name) {
  if (name == "system") return ChatRole::kSystem;
  if (name == "developer") return ChatRole::kDeveloper;
  if (name == "user") return ChatRole::kUser;
  if (name == "assistant") return ChatRole::kAssistant;
  if (name == "tool") return ChatRole::kTool;
  if (name == "latest_reminder") return ChatRole::kLatestReminder;
  return std::nullopt;
}

std::optional<ChatTask> ParseChatTask(std::string_view name) {
  if (name == "action") return ChatTask::kAction;
  if (name == "query") return ChatTask::kQuery;
  if (name == "authority") return ChatTask::kAuthority;
  if (name == "domain") return ChatTask::kDomain;
  if (name == "read_url") return ChatTask::kReadUrl;
  if (name == "title") return ChatTask::kTitle;
  return std::nullopt;
}

std::optional<JsonValue::Object> ParseArguments(std::string_view text) {
  JsonParseOptions options;
  options.allow_non_finite = true;
  Result<JsonValue> parsed = ParseJson(text, options);
  if (!parsed.ok() || parsed->IfObject() == nullptr) return std::nullopt;
  return *parsed->IfObject();
}

JsonValue::Object WrapArguments(JsonValue value) {
  JsonValue::Object object;
  object.push_back({"arguments", std::move(value)});
  return object;
}

Result<std::vector<ChatMessage>> ReadOfficialMessages(const JsonValue& messages) {
  const JsonValue::Array* array = messages.IfArray();
  if (array == nullptr) return InvalidArgument("messages is not a list");
  std::vector<ChatMessage> out(array->size());
  for (size_t i = 0; i < array->size(); ++i) {
    const Status status = ReadMessage((*array)[i], out[i]);
    if (!status.ok()) {
      return InvalidArgument("messages." + std::to_string(i) + ": " + status.message());
    }
  }
  return out;
}

}  // namespace fathom
