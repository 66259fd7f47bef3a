#include "server/text_front_end.h"

#include <utility>

namespace fathom {
namespace {

// chat_template_kwargs of a model alias, over the server's defaults. Their types were checked when
// the alias was read (ModelNames::ParseAlias).
void ApplyKwargs(const JsonValue& kwargs, ChatDefaults* defaults) {
  auto find = [&kwargs](std::string_view name) {
    const JsonValue* given = kwargs.FindNonNull(name);
    return given == nullptr ? nullptr : given->IfBool();
  };
  const bool* thinking = find("thinking");
  const bool* enable_thinking = find("enable_thinking");
  if (thinking != nullptr || enable_thinking != nullptr) {
    defaults->thinking =
        (thinking != nullptr && *thinking) || (enable_thinking != nullptr && *enable_thinking);
  }
  if (const bool* value = find("drop_thinking")) defaults->drop_thinking = *value;
  if (const bool* value = find("native_developer")) defaults->native_developer = *value;
  const JsonValue* effort = kwargs.FindNonNull("reasoning_effort");
  if (effort != nullptr && effort->IfString() != nullptr) {
    defaults->reasoning_effort = *effort->IfString();
  }
}

}  // namespace

OutputStream::OutputStream(const Tokenizer& tokenizer, StopMatcher stop_matcher,
                           const OutputOptions& options)
    : detokenizer_(tokenizer, !options.parser && options.skip_special_tokens
                                  ? SpecialTokens::kSkip
                                  : SpecialTokens::kKeep),
      stop_matcher_(std::move(stop_matcher)) {
  if (options.parser) parser_.emplace(*options.parser);
}

void OutputStream::Push(TokenId token, std::vector<OutputDelta>* deltas) {
  if (is_complete()) return;
  StopMatcher::Output output = stop_matcher_.Push(detokenizer_.Push(token));
  Parse(std::move(output.text), deltas);
  matched_stop_ = std::move(output.stop);
}

void OutputStream::Finish(OutputEnd end, std::vector<OutputDelta>* deltas) {
  if (!is_complete()) {
    StopMatcher::Output last = stop_matcher_.Push(detokenizer_.Finish());
    Parse(std::move(last.text), deltas);
    if (!last.stop) Parse(stop_matcher_.Finish(), deltas);
  }
  if (parser_) parser_->Finish(end, deltas);
}

void OutputStream::Parse(std::string text, std::vector<OutputDelta>* deltas) {
  if (text.empty()) return;
  if (parser_) return parser_->Push(text, deltas);
  deltas->push_back({OutputDelta::Kind::kContent, std::move(text)});
}

TextFrontEnd::TextFrontEnd(Tokenizer tokenizer, ChatOptions chat_options)
    : tokenizer_(std::move(tokenizer)), chat_options_(std::move(chat_options)) {}

MaybeError TextFrontEnd::PrepareChat(const JsonValue& body, const JsonValue& default_kwargs,
                                     ChatPrompt* prompt) const {
  ChatOptions options = chat_options_;
  ApplyKwargs(default_kwargs, &options.defaults);
  PreparedChat chat;
  if (MaybeError error = fathom::PrepareChat(body, options, chat)) return error;
  std::vector<Segment> segments;
  for (PromptSegment& segment : chat.segments) {
    segments.push_back({std::move(segment.text), segment.from_template});
  }
  Result<std::vector<TokenId>> ids = tokenizer_.EncodeSegments(segments);
  if (!ids.ok()) return FromStatus(ids.status());
  prompt->ids = std::move(ids).value();
  prompt->parser.start = chat.parser_start;
  prompt->parser.tools = std::move(chat.tools);
  prompt->parser.swallow_calls = chat.tool_choice == ToolChoice::kNone;
  prompt->tool_choice = chat.tool_choice;
  prompt->named_tool = std::move(chat.named_tool);
  prompt->continued = std::move(chat.continued);
  prompt->wants_long_context = chat.effort == EffortLevel::kMax;
  return std::nullopt;
}

Result<std::vector<TokenId>> TextFrontEnd::EncodePrompt(std::string_view text,
                                                        bool add_special_tokens) const {
  return tokenizer_.EncodePrompt(text, add_special_tokens);
}

std::string TextFrontEnd::Decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  return tokenizer_.Decode(ids, skip_special_tokens ? SpecialTokens::kSkip : SpecialTokens::kKeep);
}

Result<std::unique_ptr<OutputStream>> TextFrontEnd::NewOutput(const OutputOptions& options) const {
  FATHOM_ASSIGN_OR_RETURN(StopMatcher matcher,
                          StopMatcher::Create(options.stop, options.include_stop_in_output));
  return std::make_unique<OutputStream>(tokenizer_, std::move(matcher), options);
}

}  // namespace fathom
