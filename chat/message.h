// One message of a conversation, in the form that the encoder renders.
//
// Two readers make these: ReadOfficialMessages below is as strict as the official encoder, and
// chat_request.h is as lenient as clients need. Strings are valid UTF-8; what they spell is never a
// control token (encoder.h keeps it apart).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "chat/json_value.h"

namespace fathom {

enum class ChatRole { kSystem, kDeveloper, kUser, kAssistant, kTool, kLatestReminder };

// The search-side jobs the model was trained on; the message ends with the job's token.
enum class ChatTask { kAction, kQuery, kAuthority, kDomain, kReadUrl, kTitle };

struct ToolCall {
  std::string id;
  std::string name;
  JsonValue::Object arguments;  // one parameter each; see ArgumentsFromText
};

struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::string content;
  std::string reasoning;                     // assistant only
  std::vector<ToolCall> tool_calls;          // assistant only
  std::string tool_call_id;                  // tool only
  std::vector<JsonValue> tools;              // `function` objects; written by system and developer
  std::optional<JsonValue> response_format;  // schema; written by system and developer
  std::optional<ChatTask> task;
  bool omit_eos = false;              // assistant: the model goes on writing this message
  bool leave_reasoning_open = false;  // assistant: no </think> after the reasoning
};

// Unknown names give none.
std::optional<ChatRole> ParseChatRole(std::string_view name);
std::optional<ChatTask> ParseChatTask(std::string_view name);

// The parameters of a call from the text of its arguments: the members of a JSON object, otherwise
// none. Here, and only here, NaN and Infinity are read.
std::optional<JsonValue::Object> ParseArguments(std::string_view text);
// The one parameter named `arguments` that stands for text which is no JSON.
JsonValue::Object WrapArguments(JsonValue value);

// Reads a list of messages as encoding_dsv4.py takes them: content of the right type for the role,
// arguments as text, tools with `function`. kInvalidArgument names the message. Where the official
// encoder would print a Python value into the prompt (list content of a system message), this
// refuses; a null tool result is empty.
Result<std::vector<ChatMessage>> ReadOfficialMessages(const JsonValue& messages);

}  // namespace fathom
