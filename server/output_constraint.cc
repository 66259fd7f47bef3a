#include "server/output_constraint.h"

namespace fathom {

ConstraintFactory::ConstraintFactory(const TextFrontEnd* front_end) : front_end_(front_end) {}

MaybeError ConstraintFactory::Prepare(const ConstraintFields& fields, const ChatPrompt* chat,
                                      NewConstraint* make) const {
  (void)front_end_;
  (void)make;
  if (fields.kind != ConstraintFields::Kind::kNone) return NotSupported(fields.param);
  if (!fields.allowed_tokens.empty()) return NotSupported("allowed_token_ids");
  if (!fields.bad_words.empty()) return NotSupported("bad_words");
  if (fields.thinking_token_budget) return NotSupported("thinking_token_budget");
  if (chat != nullptr &&
      (chat->tool_choice == ToolChoice::kRequired || chat->tool_choice == ToolChoice::kNamed)) {
    return NotSupported("tool_choice");
  }
  return std::nullopt;
}

}  // namespace fathom
