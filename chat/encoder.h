// Turns a conversation into the prompt text of DeepSeek-V4, byte for byte as the official encoder
// (encoding/encoding_dsv4.py, April 2026) does.
//
// The prompt comes as segments, not as one string: control tokens may be recognised only in what
// the template wrote. Text from the client (contents, reasoning, tool names, arguments, schemas)
// never becomes a control token, whatever it spells. Thread safety: pure functions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "chat/effort.h"
#include "chat/message.h"

namespace fathom {

struct PromptSegment {
  std::string text;
  bool from_template = false;  // false: came from the client; no added token is matched inside
};

enum class ThinkingMode { kChat, kThinking };

struct EncodeOptions {
  ThinkingMode thinking_mode = ThinkingMode::kThinking;
  // Leaves out the reasoning of earlier turns (and earlier developer messages). Off by itself as
  // soon as any message has tools.
  bool drop_thinking = true;
  EffortProfile effort_profile = EffortProfile::kPreview;
  std::optional<EffortLevel> effort;  // writes a text in thinking mode only, but is always checked
  bool add_bos = true;
  // Ends the prompt with what opens the model's turn, where the official encoder does so.
  bool add_generation_header = true;
};

// Neighbouring segments differ in `from_template`; none is empty. `context` holds messages that an
// earlier call rendered: they are counted, but only `messages` is written, without BOS.
// kInvalidArgument for an empty developer message and for an effort that the profile lacks.
Result<std::vector<PromptSegment>> EncodeChat(std::span<const ChatMessage> messages,
                                              const EncodeOptions& options,
                                              std::span<const ChatMessage> context = {});

// "<｜Assistant｜>" and the think mark of the mode, which the official encoder writes after user
// turns.
std::string GenerationHeader(ThinkingMode mode);

// Adds text at the end, joining it to the last segment where the kind is the same.
void AppendSegment(std::vector<PromptSegment>& segments, std::string_view text, bool from_template);

// The prompt as one string.
std::string PromptText(std::span<const PromptSegment> segments);

}  // namespace fathom
