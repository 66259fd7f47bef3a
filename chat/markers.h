// The marks of the DeepSeek-V4 chat format. Each is one token of the checkpoint's table, DSML tags
// excepted: there only the middle part is. The bar is U+FF5C and the low block U+2581, never ASCII.
#pragma once

#include <string_view>

namespace fathom::markers {

inline constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kUser = "<｜User｜>";
inline constexpr std::string_view kAssistant = "<｜Assistant｜>";
inline constexpr std::string_view kLatestReminder = "<｜latest_reminder｜>";
inline constexpr std::string_view kThinkOpen = "<think>";
inline constexpr std::string_view kThinkClose = "</think>";

inline constexpr std::string_view kToolCallsOpen = "<｜DSML｜tool_calls>";
inline constexpr std::string_view kToolCallsClose = "</｜DSML｜tool_calls>";
inline constexpr std::string_view kInvokeOpen = "<｜DSML｜invoke name=\"";  // then the name and ">
inline constexpr std::string_view kInvokeClose = "</｜DSML｜invoke>";
inline constexpr std::string_view kParameterOpen = "<｜DSML｜parameter name=\"";
inline constexpr std::string_view kParameterClose = "</｜DSML｜parameter>";
inline constexpr std::string_view kToolResultOpen = "<tool_result>";
inline constexpr std::string_view kToolResultClose = "</tool_result>";

inline constexpr std::string_view kActionTask = "<｜action｜>";
inline constexpr std::string_view kQueryTask = "<｜query｜>";
inline constexpr std::string_view kAuthorityTask = "<｜authority｜>";
inline constexpr std::string_view kDomainTask = "<｜domain｜>";
inline constexpr std::string_view kTitleTask = "<｜title｜>";
inline constexpr std::string_view kReadUrlTask = "<｜read_url｜>";

}  // namespace fathom::markers
