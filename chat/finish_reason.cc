#include "chat/finish_reason.h"

namespace fathom {

std::string_view FinishReasonFor(std::string_view engine_reason, ToolChoice tool_choice,
                                 int num_calls, bool all_calls_complete) {
  if (engine_reason != "stop" || tool_choice == ToolChoice::kNamed) return engine_reason;
  return num_calls > 0 && all_calls_complete ? "tool_calls" : "stop";
}

}  // namespace fathom
