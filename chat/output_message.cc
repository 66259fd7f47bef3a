#include "chat/output_message.h"

#include "base/check.h"

namespace fathom {

void OutputMessage::Add(const OutputDelta& delta) {
  switch (delta.kind) {
    case OutputDelta::Kind::kReasoning:
      reasoning += delta.text;
      return;
    case OutputDelta::Kind::kContent:
      content += delta.text;
      return;
    case OutputDelta::Kind::kToolCall:
      FATHOM_CHECK(delta.call == static_cast<int>(calls.size()), "calls come in order");
      calls.push_back({delta.text, {}});
      return;
    case OutputDelta::Kind::kToolArguments:
      FATHOM_CHECK(delta.call + 1 == static_cast<int>(calls.size()), "arguments follow their call");
      calls.back().arguments += delta.text;
      return;
  }
}

}  // namespace fathom
