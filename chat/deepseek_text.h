// The fixed sentences that DeepSeek's encoder puts into prompts. They are DeepSeek's words under
// the MIT licence (notice in deepseek_text.cc and THIRD_PARTY.md) and must stay byte for byte as
// they are.
#pragma once

#include <string_view>

namespace fathom::deepseek_text {

// Effort texts, written directly after BOS. Which level gets which: chat/effort.h.
extern const std::string_view kEffortAbsoluteMaximum;
extern const std::string_view kEffortBeyondMaximum;

// Tools block: head, one line of JSON per tool joined by line feeds, tail.
extern const std::string_view kToolsHead;
extern const std::string_view kToolsTail;

// Response-format block: head, then the schema as JSON.
extern const std::string_view kResponseFormatHead;

}  // namespace fathom::deepseek_text
