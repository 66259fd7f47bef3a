#include "chat/chat_request.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "chat/json_parse.h"
#include "chat/markers.h"
#include "chat/request_fields.h"
#include "chat/request_messages.h"

namespace fathom {
namespace {

using MaybeError = std::optional<RequestError>;

constexpr std::string_view kEffortNames = "none, minimal, low, medium, high, xhigh or max";

bool IsEffortName(std::string_view name) {
  return name == "none" || EffortLevelFor(name, EffortProfile::kPreview).has_value();
}

bool HasBlocks(const ChatMessage& message) {
  return !message.tools.empty() || message.response_format.has_value();
}

// OpenAI clients put their instructions into developer messages. The official encoder would make a
// user turn of them and drop it later, so leading ones become system text and later ones user text.
std::vector<ChatMessage> PlaceDevelopers(std::vector<ChatMessage> messages) {
  std::vector<ChatMessage> placed;
  bool is_leading = true;
  for (ChatMessage& message : messages) {
    if (message.role == ChatRole::kUser || message.role == ChatRole::kAssistant ||
        message.role == ChatRole::kTool) {
      is_leading = false;
    }
    if (message.role == ChatRole::kDeveloper && !HasBlocks(message)) {
      if (is_leading && !placed.empty() && placed.back().role == ChatRole::kSystem) {
        placed.back().content += "\n\n" + message.content;
        continue;
      }
      message.role = is_leading ? ChatRole::kSystem : ChatRole::kUser;
    }
    placed.push_back(std::move(message));
  }
  return placed;
}

// After a system message the official encoder opens no turn for the model, which then says nothing.
MaybeError TurnTrailingSystemIntoQuery(std::vector<ChatMessage>& messages,
                                       const std::string& last_path) {
  ChatMessage& last = messages.back();
  if (messages.size() < 2 || last.role != ChatRole::kSystem) return std::nullopt;
  // A user turn has no place for tools or a response format, a developer turn has.
  last.role = HasBlocks(last) ? ChatRole::kDeveloper : ChatRole::kUser;
  if (last.role == ChatRole::kDeveloper && last.content.empty()) {
    return BadRequest(last_path + "content",
                      "a last system message with tools or response_format needs content");
  }
  return std::nullopt;
}

MaybeError ReadToolChoice(const JsonValue& body, PreparedChat& out) {
  constexpr std::string_view kParam = "tool_choice";
  const JsonValue* choice = body.FindNonNull(kParam);
  if (choice == nullptr) return std::nullopt;
  if (const std::string* word = choice->IfString()) {
    if (*word == "auto") {
      out.tool_choice = ToolChoice::kAuto;
    } else if (*word == "none") {
      out.tool_choice = ToolChoice::kNone;
    } else if (*word == "required") {
      out.tool_choice = ToolChoice::kRequired;
    } else {
      return BadRequest(
          std::string(kParam),
          "tool_choice must be auto, none, required or a function, not " + QuoteForError(*word));
    }
    return std::nullopt;
  }
  const JsonValue* type = choice->Find("type");
  const JsonValue* function = choice->Find("function");
  const JsonValue* name = function == nullptr ? nullptr : function->Find("name");
  const bool is_function = type != nullptr && type->IfString() != nullptr &&
                           *type->IfString() == "function" && name != nullptr &&
                           name->IfString() != nullptr;
  if (!is_function) {
    return BadRequest(std::string(kParam),
                      "tool_choice must be a word or "
                      "{\"type\": \"function\", \"function\": {\"name\": ...}}");
  }
  out.tool_choice = ToolChoice::kNamed;
  out.named_tool = *name->IfString();
  return std::nullopt;
}

// Puts the tools of the request where the encoder writes them, and holds tool_choice against them.
MaybeError AttachTools(const JsonValue& body, std::vector<ChatMessage>& messages,
                       PreparedChat& out) {
  std::vector<JsonValue> tools;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadRequestTools(body, "", tools));
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadToolChoice(body, out));
  if (out.tool_choice == ToolChoice::kNone) {
    out.tools = std::move(tools);
    for (ChatMessage& message : messages) {
      std::move(message.tools.begin(), message.tools.end(), std::back_inserter(out.tools));
      message.tools.clear();
    }
    return std::nullopt;
  }
  if (!tools.empty()) {
    const ChatRole first = messages.front().role;
    if (first != ChatRole::kSystem && first != ChatRole::kDeveloper) {
      ChatMessage system;
      system.role = ChatRole::kSystem;
      messages.insert(messages.begin(), std::move(system));
    }
    messages.front().tools = std::move(tools);
  }
  bool names_a_tool = false;
  for (const ChatMessage& message : messages) {
    for (const JsonValue& tool : message.tools) {
      out.has_tools = true;
      out.tools.push_back(tool);
      const JsonValue* name = tool.Find("name");
      names_a_tool |=
          name != nullptr && name->IfString() != nullptr && *name->IfString() == out.named_tool;
    }
  }
  if (out.tool_choice == ToolChoice::kRequired && !out.has_tools) {
    return BadRequest("tool_choice", "tool_choice required needs tools");
  }
  if (out.tool_choice == ToolChoice::kNamed && !names_a_tool) {
    return BadRequest("tool_choice", "tool_choice names a tool that is not in tools: " +
                                         QuoteForError(out.named_tool));
  }
  return std::nullopt;
}

// The switch given by the request itself, apart from the effort: none if there is none.
MaybeError ReadThinkingSwitch(const JsonValue& body, const JsonValue& kwargs,
                              std::optional<bool>& out) {
  std::optional<bool> thinking;
  std::optional<bool> enable_thinking;
  FATHOM_RETURN_IF_REQUEST_ERROR(
      ReadOptional(kwargs, "chat_template_kwargs.", "thinking", thinking));
  FATHOM_RETURN_IF_REQUEST_ERROR(
      ReadOptional(kwargs, "chat_template_kwargs.", "enable_thinking", enable_thinking));
  // Checked even where the other spelling wins: a typo in it should not pass unseen.
  const JsonValue* deepseek_style = nullptr;
  std::optional<std::string> type;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptionalObject(body, "", "thinking", deepseek_style));
  if (deepseek_style != nullptr) {
    FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(*deepseek_style, "thinking.", "type", type));
    if (type != "enabled" && type != "disabled" && type != "adaptive") {
      return BadRequest("thinking.type", "thinking.type must be enabled, disabled or adaptive");
    }
  }
  if (thinking || enable_thinking) {
    out = thinking.value_or(false) || enable_thinking.value_or(false);
  } else if (type) {
    out = *type != "disabled";
  }
  return std::nullopt;
}

MaybeError ReadThinking(const JsonValue& body, const JsonValue& kwargs, const ChatOptions& options,
                        PreparedChat& out) {
  const JsonValue* effort_json = body.FindNonNull("reasoning_effort");
  if (effort_json == nullptr) effort_json = kwargs.FindNonNull("reasoning_effort");
  std::optional<std::string> effort;
  if (effort_json != nullptr) {
    const std::string* name = effort_json->IfString();
    if (name == nullptr || !IsEffortName(*name)) {
      const std::string found = name == nullptr ? std::string(effort_json->TypeName()) : *name;
      return BadRequest("reasoning_effort", "reasoning_effort must be " +
                                                std::string(kEffortNames) + ", not " +
                                                QuoteForError(found));
    }
    effort = *name;
  }
  std::optional<bool> thinking;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadThinkingSwitch(body, kwargs, thinking));
  if (effort) {
    // An effort asks for thinking, but does not overrule an explicit no; none always means no.
    thinking = *effort != "none" && thinking.value_or(true);
  } else if (options.defaults.reasoning_effort != "none") {
    effort = options.defaults.reasoning_effort;
    thinking = thinking.value_or(options.defaults.thinking);
  } else {
    thinking = thinking.value_or(false);
  }
  out.thinking_mode = *thinking ? ThinkingMode::kThinking : ThinkingMode::kChat;
  out.effort.reset();
  if (*thinking) out.effort = EffortLevelFor(effort.value_or("high"), options.effort_profile);
  return std::nullopt;
}

struct Continuation {
  bool continues_last = false;  // the model goes on writing the last assistant message
  bool add_header = true;
};

MaybeError ReadContinuation(const JsonValue& body, const std::vector<ChatMessage>& messages,
                            const std::string& last_path, Continuation& out) {
  constexpr const char* kParam = "continue_final_message";
  std::optional<bool> continue_final;
  std::optional<bool> add_generation_prompt;
  std::optional<bool> prefix;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(body, "", kParam, continue_final));
  FATHOM_RETURN_IF_REQUEST_ERROR(
      ReadOptional(body, "", "add_generation_prompt", add_generation_prompt));
  const bool last_is_assistant = messages.back().role == ChatRole::kAssistant;
  if (last_is_assistant) {
    const JsonValue& last_json = body.Find("messages")->IfArray()->back();
    FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(last_json, last_path, "prefix", prefix));
  }
  out.continues_last = continue_final.value_or(false) || prefix.value_or(false);
  out.add_header = add_generation_prompt.value_or(true) && !out.continues_last;
  if (!out.continues_last) return std::nullopt;
  if (!last_is_assistant) {
    return BadRequest(kParam, "the last message must be of role assistant to be continued");
  }
  if (add_generation_prompt.value_or(false)) {
    return BadRequest(kParam,
                      "continuing the last message and add_generation_prompt exclude each other");
  }
  return std::nullopt;
}

// The output continues after the last think mark of the template; a mark in client text says
// nothing.
OutputState StartState(const std::vector<PromptSegment>& segments) {
  std::string text;
  for (const PromptSegment& segment : segments) {
    // The line feed keeps two pieces from forming a mark together.
    text += segment.from_template ? segment.text : "\n";
  }
  const size_t turn = text.rfind(markers::kAssistant);
  if (turn == std::string::npos) return OutputState::kContent;
  const std::string_view after = std::string_view(text).substr(turn);
  const size_t open = after.rfind(markers::kThinkOpen);
  const size_t close = after.rfind(markers::kThinkClose);
  const bool is_open =
      open != std::string_view::npos && (close == std::string_view::npos || close < open);
  return is_open ? OutputState::kReasoning : OutputState::kContent;
}

}  // namespace

MaybeError PrepareChat(const JsonValue& body, const ChatOptions& options, PreparedChat& out) {
  out = PreparedChat();
  if (body.IfObject() == nullptr) return BadRequest("", "the request body must be a JSON object");
  static const JsonValue kNoKwargs;
  const JsonValue* kwargs = nullptr;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptionalObject(body, "", "chat_template_kwargs", kwargs));
  if (kwargs == nullptr) kwargs = &kNoKwargs;
  std::optional<bool> drop_thinking;
  std::optional<bool> native_developer;
  FATHOM_RETURN_IF_REQUEST_ERROR(
      ReadOptional(*kwargs, "chat_template_kwargs.", "drop_thinking", drop_thinking));
  FATHOM_RETURN_IF_REQUEST_ERROR(
      ReadOptional(*kwargs, "chat_template_kwargs.", "native_developer", native_developer));

  std::vector<ChatMessage> messages;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadRequestMessages(body, messages));
  const std::string last_path = "messages." + std::to_string(messages.size() - 1) + ".";
  if (!native_developer.value_or(options.defaults.native_developer)) {
    messages = PlaceDevelopers(std::move(messages));
  }
  FATHOM_RETURN_IF_REQUEST_ERROR(TurnTrailingSystemIntoQuery(messages, last_path));
  FATHOM_RETURN_IF_REQUEST_ERROR(AttachTools(body, messages, out));
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadThinking(body, *kwargs, options, out));
  Continuation continuation;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadContinuation(body, messages, last_path, continuation));

  ChatMessage& last = messages.back();
  if (continuation.continues_last) {
    last.omit_eos = true;
    out.continued = last.content;
    last.leave_reasoning_open =
        !last.reasoning.empty() && last.content.empty() && last.tool_calls.empty();
  }
  EncodeOptions encode;
  encode.thinking_mode = out.thinking_mode;
  encode.drop_thinking = drop_thinking.value_or(options.defaults.drop_thinking);
  encode.effort_profile = options.effort_profile;
  encode.effort = out.effort;
  encode.add_generation_header = continuation.add_header;
  Result<std::vector<PromptSegment>> segments = EncodeChat(messages, encode);
  if (!segments.ok()) return BadRequest("messages", segments.status().message());
  out.segments = std::move(segments).value();

  // After an answer, and after nothing but a system message, the official encoder opens no turn;
  // the client waits for one all the same. A task token is the opening of its own.
  const bool encoder_left_it_closed =
      (last.role == ChatRole::kAssistant || last.role == ChatRole::kSystem) && !last.task;
  if (continuation.add_header && encoder_left_it_closed) {
    AppendSegment(out.segments, GenerationHeader(out.thinking_mode), true);
  }
  out.parser_start = StartState(out.segments);
  if (options.official_user_content) {
    std::string text = out.Text();
    out.segments.clear();
    AppendSegment(out.segments, text, true);
  }
  return std::nullopt;
}

Result<ChatDefaults> ParseChatDefaults(std::string_view json) {
  FATHOM_ASSIGN_OR_RETURN(const JsonValue object, ParseJson(json));
  if (object.IfObject() == nullptr) return InvalidArgument("expected a JSON object");
  ChatDefaults defaults;
  std::optional<bool> thinking;
  for (const JsonValue::Member& member : *object.IfObject()) {
    const bool* flag = member.value.IfBool();
    const std::string* text = member.value.IfString();
    if (member.key == "reasoning_effort") {
      if (text == nullptr || !IsEffortName(*text)) {
        return InvalidArgument("reasoning_effort must be " + std::string(kEffortNames));
      }
      defaults.reasoning_effort = *text;
      continue;
    }
    if (flag == nullptr) return InvalidArgument(member.key + " must be true or false");
    if (member.key == "thinking" || member.key == "enable_thinking") {
      thinking = thinking.value_or(false) || *flag;
    } else if (member.key == "drop_thinking") {
      defaults.drop_thinking = *flag;
    } else if (member.key == "native_developer") {
      defaults.native_developer = *flag;
    } else {
      return InvalidArgument(member.key + " is no chat template option");
    }
  }
  defaults.thinking = thinking.value_or(true);
  return defaults;
}

}  // namespace fathom
