#include "server/messages_request.h"

#include <string>
#include <string_view>
#include <utility>

#include "chat/request_fields.h"
#include "server/json_build.h"

namespace fathom {
namespace {

// Claude Code begins its system prompt with such a line; it differs for every request, and would
// keep all of them from sharing a prefix.
constexpr std::string_view kBillingHeader = "x-anthropic-billing-header";

using Array = JsonValue::Array;

MaybeError ReadType(const JsonValue& block, const std::string& path, std::string* type) {
  if (block.IfObject() == nullptr) return BadRequest(path, path + " must be an object");
  std::optional<std::string> found;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(block, path + ".", "type", found));
  if (!found) return BadRequest(path + ".type", path + ".type is missing");
  *type = std::move(*found);
  return std::nullopt;
}

MaybeError ReadText(const JsonValue& block, const std::string& path, std::string_view key,
                    std::string* text) {
  std::optional<std::string> found;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(block, path + ".", key, found));
  if (!found) {
    const std::string param = path + "." + std::string(key);
    return BadRequest(param, param + " must be a string");
  }
  *text = std::move(*found);
  return std::nullopt;
}

// A string, or a list of text blocks joined by `separator`.
MaybeError ReadTextBlocks(const JsonValue& value, const std::string& path,
                          std::string_view separator, std::string* out) {
  if (const std::string* text = value.IfString()) {
    *out = *text;
    return std::nullopt;
  }
  const Array* blocks = value.IfArray();
  if (blocks == nullptr) {
    return BadRequest(path, path + " must be a string or a list of text blocks");
  }
  for (size_t i = 0; i < blocks->size(); ++i) {
    const std::string block_path = path + "." + std::to_string(i);
    std::string type, text;
    FATHOM_RETURN_IF_REQUEST_ERROR(ReadType((*blocks)[i], block_path, &type));
    if (type != "text") {
      return BadRequest(block_path + ".type",
                        "only text blocks are supported here, not " + QuoteForError(type));
    }
    FATHOM_RETURN_IF_REQUEST_ERROR(ReadText((*blocks)[i], block_path, "text", &text));
    if (text.rfind(kBillingHeader, 0) == 0) continue;
    if (!out->empty()) *out += separator;
    *out += text;
  }
  return std::nullopt;
}

MaybeError ReadToolResult(const JsonValue& block, const std::string& path, JsonValue* message) {
  JsonObjectBuilder tool;
  std::string id;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadText(block, path, "tool_use_id", &id));
  tool.SetText("role", "tool");
  tool.SetText("tool_call_id", std::move(id));
  std::string text;
  const JsonValue* content = block.FindNonNull("content");
  if (content != nullptr && content->IfString() != nullptr) {
    text = *content->IfString();
  } else if (content != nullptr && content->IfArray() != nullptr) {
    const Array& parts = *content->IfArray();
    for (size_t i = 0; i < parts.size(); ++i) {
      const std::string part_path = path + ".content." + std::to_string(i);
      std::string type, part;
      FATHOM_RETURN_IF_REQUEST_ERROR(ReadType(parts[i], part_path, &type));
      if (type == "text") {
        FATHOM_RETURN_IF_REQUEST_ERROR(ReadText(parts[i], part_path, "text", &part));
      } else {
        part = "[Unsupported " + type + "]";  // one screenshot must not end an agent's session
      }
      if (i > 0) text += "\n";
      text += part;
    }
  } else if (content != nullptr) {
    return BadRequest(path + ".content", path + ".content must be a string or a list of blocks");
  }
  tool.SetText("content", std::move(text));
  *message = tool.Take();
  return std::nullopt;
}

// One message with a list of blocks; a user message may become several.
class MessageTranslation {
 public:
  MessageTranslation(std::string role, const std::string& path, Array* out)
      : role_(std::move(role)), path_(path), out_(out) {}

  MaybeError Add(const JsonValue& block, const std::string& path) {
    std::string type, text;
    FATHOM_RETURN_IF_REQUEST_ERROR(ReadType(block, path, &type));
    if (type == "text") {
      FATHOM_RETURN_IF_REQUEST_ERROR(ReadText(block, path, "text", &text));
      JsonObjectBuilder part;
      part.SetText("type", "text");
      part.SetText("text", std::move(text));
      parts_.push_back(part.Take());
      return std::nullopt;
    }
    if (role_ == "assistant" && type == "thinking") {
      FATHOM_RETURN_IF_REQUEST_ERROR(ReadText(block, path, "thinking", &text));
      reasoning_ += text;
      return std::nullopt;
    }
    if (role_ == "assistant" && type == "redacted_thinking") return std::nullopt;
    if (role_ == "assistant" && type == "tool_use") return AddToolUse(block, path);
    if (role_ == "user" && type == "tool_result") {
      // Results stand in front of what the user says beside them.
      return ReadToolResult(block, path, &out_->emplace_back());
    }
    return BadRequest(path + ".type", "a block of type " + QuoteForError(type) +
                                          " is not supported in a message of role " + role_);
  }

  void Finish() {
    if (role_ == "user" && parts_.empty()) return;  // tool results alone
    JsonObjectBuilder message;
    message.SetText("role", role_);
    message.Set("content", JsonValue::FromArray(std::move(parts_)));
    if (!reasoning_.empty()) message.SetText("reasoning", std::move(reasoning_));
    if (!calls_.empty()) message.Set("tool_calls", JsonValue::FromArray(std::move(calls_)));
    out_->push_back(message.Take());
  }

 private:
  MaybeError AddToolUse(const JsonValue& block, const std::string& path) {
    std::string id, name;
    FATHOM_RETURN_IF_REQUEST_ERROR(ReadText(block, path, "id", &id));
    FATHOM_RETURN_IF_REQUEST_ERROR(ReadText(block, path, "name", &name));
    JsonObjectBuilder function;
    function.SetText("name", std::move(name));
    function.Copy(block, "input", "arguments");
    JsonObjectBuilder call;
    call.SetText("id", std::move(id));
    call.SetText("type", "function");
    call.Set("function", function.Take());
    calls_.push_back(call.Take());
    return std::nullopt;
  }

  const std::string role_;
  const std::string& path_;
  Array* const out_;
  Array parts_, calls_;
  std::string reasoning_;
};

// System text anywhere in the request becomes the one system message at its front.
struct SystemText {
  std::string text;
  void Add(const std::string& more) {
    if (more.empty()) return;
    if (!text.empty()) text += "\n\n";
    text += more;
  }
};

MaybeError TranslateMessage(const JsonValue& json, const std::string& path, SystemText* system,
                            Array* out) {
  if (json.IfObject() == nullptr) return BadRequest(path, path + " must be an object");
  std::optional<std::string> role;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(json, path + ".", "role", role));
  const JsonValue* content = json.FindNonNull("content");
  if (content == nullptr) return BadRequest(path + ".content", path + ".content is missing");
  if (role == "system") {
    std::string text;
    FATHOM_RETURN_IF_REQUEST_ERROR(ReadTextBlocks(*content, path + ".content", "\n\n", &text));
    system->Add(text);
    return std::nullopt;
  }
  if (role == "ctx" || role == "msg") role = "user";  // of some versions of Claude Code
  if (role != "user" && role != "assistant") {
    return BadRequest(path + ".role", "role must be user, assistant or system, not " +
                                          QuoteForError(role.value_or("")));
  }
  if (content->IfString() != nullptr) {
    JsonObjectBuilder message;
    message.SetText("role", *role);
    message.Set("content", *content);
    out->push_back(message.Take());
    return std::nullopt;
  }
  const Array* blocks = content->IfArray();
  if (blocks == nullptr) {
    return BadRequest(path + ".content", path + ".content must be a string or a list of blocks");
  }
  MessageTranslation translation(*role, path, out);
  for (size_t i = 0; i < blocks->size(); ++i) {
    FATHOM_RETURN_IF_REQUEST_ERROR(
        translation.Add((*blocks)[i], path + ".content." + std::to_string(i)));
  }
  translation.Finish();
  return std::nullopt;
}

MaybeError TranslateConversation(const JsonValue& body, JsonObjectBuilder* chat) {
  SystemText system;
  if (const JsonValue* given = body.FindNonNull("system")) {
    FATHOM_RETURN_IF_REQUEST_ERROR(ReadTextBlocks(*given, "system", "\n\n", &system.text));
  }
  const JsonValue::Array* messages = nullptr;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptionalArray(body, "", "messages", messages));
  if (messages == nullptr || messages->empty()) {
    return BadRequest("messages", "messages must be a list with at least one message");
  }
  Array translated;
  for (size_t i = 0; i < messages->size(); ++i) {
    FATHOM_RETURN_IF_REQUEST_ERROR(
        TranslateMessage((*messages)[i], "messages." + std::to_string(i), &system, &translated));
  }
  if (!system.text.empty()) {
    JsonObjectBuilder message;
    message.SetText("role", "system");
    message.SetText("content", std::move(system.text));
    translated.insert(translated.begin(), message.Take());
  }
  if (translated.empty()) {
    return BadRequest("messages", "messages must hold something besides empty lists of blocks");
  }
  // A last assistant message is the beginning of the answer.
  const std::string* last_role = translated.back().Find("role")->IfString();
  if (*last_role == "assistant") chat->Set("continue_final_message", JsonValue::Bool(true));
  chat->Set("messages", JsonValue::FromArray(std::move(translated)));
  return std::nullopt;
}

MaybeError TranslateTools(const JsonValue& body, JsonObjectBuilder* chat) {
  const JsonValue::Array* tools = nullptr;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptionalArray(body, "", "tools", tools));
  Array translated;
  for (size_t i = 0; tools != nullptr && i < tools->size(); ++i) {
    const std::string path = "tools." + std::to_string(i);
    const JsonValue& tool = (*tools)[i];
    if (tool.IfObject() == nullptr) return BadRequest(path, path + " must be an object");
    std::optional<std::string> type;
    FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(tool, path + ".", "type", type));
    if (type && *type != "custom") {
      return BadRequest(path + ".type",
                        "tools that run at the provider are not offered: " + QuoteForError(*type));
    }
    std::string name;
    FATHOM_RETURN_IF_REQUEST_ERROR(ReadText(tool, path, "name", &name));
    JsonObjectBuilder function;
    function.SetText("name", std::move(name));
    function.Copy(tool, "description");
    function.Copy(tool, "input_schema", "parameters");
    function.Copy(tool, "strict");
    JsonObjectBuilder entry;
    entry.SetText("type", "function");
    entry.Set("function", function.Take());
    translated.push_back(entry.Take());
  }
  if (!translated.empty()) chat->Set("tools", JsonValue::FromArray(std::move(translated)));

  const JsonValue* choice = nullptr;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptionalObject(body, "", "tool_choice", choice));
  if (choice == nullptr) return std::nullopt;
  std::string type;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadType(*choice, "tool_choice", &type));
  if (type == "auto" || type == "none") {
    chat->SetText("tool_choice", type);
  } else if (type == "any") {
    chat->SetText("tool_choice", "required");
  } else if (type == "tool") {
    std::string name;
    FATHOM_RETURN_IF_REQUEST_ERROR(ReadText(*choice, "tool_choice", "name", &name));
    JsonObjectBuilder function, named;
    function.SetText("name", std::move(name));
    named.SetText("type", "function");
    named.Set("function", function.Take());
    chat->Set("tool_choice", named.Take());
  } else {
    return BadRequest("tool_choice.type", "tool_choice.type must be auto, any, tool or none, not " +
                                              QuoteForError(type));
  }
  std::optional<bool> no_parallel;
  FATHOM_RETURN_IF_REQUEST_ERROR(
      ReadOptional(*choice, "tool_choice.", "disable_parallel_tool_use", no_parallel));
  if (no_parallel.value_or(false)) chat->Set("parallel_tool_calls", JsonValue::Bool(false));
  return std::nullopt;
}

MaybeError TranslateThinking(const JsonValue& body, JsonObjectBuilder* chat) {
  const JsonValue* thinking = nullptr;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptionalObject(body, "", "thinking", thinking));
  if (thinking != nullptr) {
    std::string type;
    FATHOM_RETURN_IF_REQUEST_ERROR(ReadType(*thinking, "thinking", &type));
    JsonObjectBuilder switch_;
    switch_.SetText("type", type);  // checked with the chat request
    chat->Set("thinking", switch_.Take());
    if (type == "enabled") chat->Copy(*thinking, "budget_tokens", "thinking_token_budget");
  }
  const JsonValue* output = nullptr;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptionalObject(body, "", "output_config", output));
  if (output == nullptr) return std::nullopt;
  chat->Copy(*output, "effort", "reasoning_effort");
  const JsonValue* format = nullptr;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptionalObject(*output, "output_config.", "format", format));
  if (format == nullptr) return std::nullopt;
  std::string type;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadType(*format, "output_config.format", &type));
  if (type != "json_schema") {
    return BadRequest("output_config.format.type",
                      "output_config.format.type must be json_schema, not " + QuoteForError(type));
  }
  JsonObjectBuilder holder, response_format;
  holder.Copy(*format, "schema");
  response_format.SetText("type", "json_schema");
  response_format.Set("json_schema", holder.Take());
  chat->Set("response_format", response_format.Take());
  return std::nullopt;
}

}  // namespace

MaybeError TranslateMessages(const JsonValue& body, bool for_count, JsonValue* out,
                             FieldNames* names) {
  JsonObjectBuilder chat;
  const JsonValue* model = body.FindNonNull("model");
  if (model == nullptr) return BadRequest("model", "model is missing");
  chat.Set("model", *model);
  if (!for_count) {
    const JsonValue* max_tokens = body.FindNonNull("max_tokens");
    if (max_tokens == nullptr) return BadRequest("max_tokens", "max_tokens is missing");
    chat.Set("max_tokens", *max_tokens);
  }
  FATHOM_RETURN_IF_REQUEST_ERROR(TranslateConversation(body, &chat));
  FATHOM_RETURN_IF_REQUEST_ERROR(TranslateTools(body, &chat));
  FATHOM_RETURN_IF_REQUEST_ERROR(TranslateThinking(body, &chat));
  for (const char* name : {"temperature", "top_p", "top_k", "stream", "chat_template_kwargs",
                           "cache_salt", "priority"}) {
    chat.Copy(body, name);
  }
  chat.Copy(body, "stop_sequences", "stop");
  *out = chat.Take();
  names->Add("stop", "stop_sequences");
  names->Add("reasoning_effort", "output_config.effort");
  names->Add("thinking_token_budget", "thinking.budget_tokens");
  names->Add("response_format.json_schema.schema", "output_config.format.schema");
  names->Add("response_format", "output_config.format");
  return std::nullopt;
}

}  // namespace fathom
