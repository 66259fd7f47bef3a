// From the body of an OpenAI chat request to the prompt: fathom's rules around the official
// encoder.
//
// The official encoder is made for well-formed conversations. Clients send developer messages,
// trailing system messages, null contents and truncated calls; the rules here turn those into what
// the model was trained on, or refuse them with the field at fault. Only fields that shape the
// prompt are read; sampling and output fields belong to the server. Thread safety: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "chat/effort.h"
#include "chat/encoder.h"
#include "chat/json_value.h"
#include "chat/output_parser.h"
#include "chat/request_error.h"

namespace fathom {

// What a request that says nothing gets. Flag --default-chat-template-kwargs.
struct ChatDefaults {
  bool thinking = true;
  bool drop_thinking = true;
  bool native_developer = false;  // developer messages as the official encoder treats them
  std::optional<std::string> reasoning_effort;
};

struct ChatOptions {
  ChatDefaults defaults;
  EffortProfile effort_profile = EffortProfile::kPreview;
  // Lets control tokens be recognised in client text, as the official code does: one template
  // segment.
  bool official_user_content = false;
};

enum class ToolChoice { kAuto, kNone, kRequired, kNamed };

struct PreparedChat {
  std::vector<PromptSegment> segments;
  ThinkingMode thinking_mode = ThinkingMode::kThinking;
  // Where the reader of the model's output starts, read off the prompt.
  OutputState parser_start = OutputState::kReasoning;
  std::optional<EffortLevel> effort;  // in thinking mode only
  bool has_tools = false;             // the prompt offers tools; false with tool_choice none
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string named_tool;  // with kNamed

  [[nodiscard]] std::string Text() const { return PromptText(segments); }
};

// Fills `out`, or says why not and leaves `out` unspecified. `body` is the request as an object.
std::optional<RequestError> PrepareChat(const JsonValue& body, const ChatOptions& options,
                                        PreparedChat& out);

// Value of --default-chat-template-kwargs: a JSON object with thinking or enable_thinking,
// drop_thinking, native_developer, reasoning_effort. An unknown key is an error, not ignored.
Result<ChatDefaults> ParseChatDefaults(std::string_view json);

}  // namespace fathom
