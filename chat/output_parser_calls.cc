// The states of OutputParser inside a block of calls.
#include "chat/output_parser.h"

#include "chat/white_space.h"

namespace fathom {
namespace {

using Element = DsmlTag::Element;
using TokenKind = OutputToken::Kind;

constexpr std::string_view kOfficialStyle = "｜DSML｜";

bool ClosesCall(const OutputToken& token) {
  return token.Closes(Element::kInvoke) || token.Closes(Element::kWrapper);
}

}  // namespace

void OutputParser::OnArguments(const OutputToken& token) {
  if (token.kind == TokenKind::kText) {
    if (!may_be_body_) return;
    const std::string_view text = token.raw.substr(LeadingSpaceSize(token.raw));
    if (text.empty()) return;
    may_be_body_ = false;
    if (text.front() != '{') return;
    state_ = State::kBody;
    writer_.BodyText(text);
    return;
  }
  may_be_body_ = false;
  if (token.Opens(Element::kParameter)) {
    style_ = token.tag->style;
    state_ = State::kValue;
    writer_.BeginParameter(token.tag->name, token.tag->string_attribute, arguments_, repairs_);
  } else if (token.Closes(Element::kInvoke)) {
    CompleteCall(State::kBetween);
  } else if (token.Closes(Element::kWrapper)) {
    repairs_.Add(ParserRepair::kCallCloser);
    CompleteCall(State::kContent);
  } else if (token.Opens(Element::kInvoke)) {
    repairs_.Add(ParserRepair::kCallCloser);
    CompleteCall(State::kBetween);
    On(token);
  }
}

void OutputParser::OnValue(const OutputToken& token) {
  const bool same_style = token.kind == TokenKind::kTag && token.tag->style == style_;
  if (same_style && token.tag->Closes(Element::kParameter)) {
    writer_.EndParameter(false, arguments_, repairs_);
    state_ = State::kArguments;
  } else if (same_style &&
             (ClosesCall(token) || token.tag->Opens(Element::kInvoke) ||
              (token.tag->Opens(Element::kParameter) && token.tag->string_attribute.has_value()))) {
    writer_.EndParameter(true, arguments_, repairs_);
    state_ = State::kArguments;
    OnArguments(token);
  } else {
    writer_.ParameterText(token.raw, arguments_);
  }
}

void OutputParser::OnBody(const OutputToken& token) {
  if (!ClosesCall(token) || token.tag->style != style_) return writer_.BodyText(token.raw);
  state_ = State::kArguments;
  OnArguments(token);
}

void OutputParser::OnBetween(const OutputToken& token) {
  switch (token.kind) {
    case TokenKind::kText: {
      const size_t space = LeadingSpaceSize(token.raw);
      if (space < token.raw.size()) state_ = State::kContent;
      return ContentText(token.raw);
    }
    case TokenKind::kThinkOpen:
      state_ = State::kContent;
      return OnContent(token);
    case TokenKind::kThinkClose:
    case TokenKind::kEos:
      return;
    case TokenKind::kTag:
      if (token.tag->Opens(Element::kInvoke)) return NextCall(token);
      if (token.tag->Closes(Element::kWrapper)) {
        DropSpaceBeforeBlock();
        state_ = State::kContent;
        return;
      }
      if (token.tag->Opens(Element::kWrapper)) {
        state_ = State::kContent;
        return OnContent(token);
      }
      [[fallthrough]];
    case TokenKind::kBrokenTag:
      repairs_.Add(ParserRepair::kStrayTag);
      return;
  }
}

void OutputParser::BeginCall(const OutputToken& token) {
  DropSpaceBeforeBlock();
  const DsmlTag& tag = *token.tag;
  writer_.Begin(tools_.Find(tag.name));
  state_ = State::kArguments;
  style_ = tag.style;
  may_be_body_ = true;
  if (swallow_calls_) {
    repairs_.Add(ParserRepair::kSwallowedCall);
    return;
  }
  if (tag.style != kOfficialStyle) repairs_.Add(ParserRepair::kTagSpelling);
  EmitArguments();  // of the call before
  ++num_calls_;
  Emit(OutputDelta::Kind::kToolCall, tag.name);
}

void OutputParser::NextCall(const OutputToken& token) {
  if (wrapper_ != Wrapper::kNone || IsDeclaredCall(token)) return BeginCall(token);
  state_ = State::kContent;
  OnContent(token);
}

void OutputParser::CompleteCall(State next) {
  writer_.Complete(arguments_, repairs_);
  EmitArguments();
  after_block_ = true;
  state_ = parallel_tool_calls_ || swallow_calls_ ? next : State::kDone;
}

void OutputParser::FinishCall(OutputEnd end, std::string_view tail, bool tail_may_be_tag) {
  if (state_ == State::kValue) {
    writer_.ParameterText(tail, arguments_);
    return LeaveCallOpen();
  }
  if (state_ == State::kBody) writer_.BodyText(tail);
  const bool is_complete = state_ == State::kBody ? writer_.BodyIsObject() : !tail_may_be_tag;
  if (end == OutputEnd::kCut || !is_complete) return LeaveCallOpen();
  repairs_.Add(ParserRepair::kCallCloser);
  CompleteCall(State::kContent);
}

void OutputParser::LeaveCallOpen() {
  writer_.LeaveOpen(arguments_);
  call_left_open_ = !swallow_calls_;
}

void OutputParser::EmitArguments() {
  if (!swallow_calls_) Emit(OutputDelta::Kind::kToolArguments, arguments_);
  arguments_.clear();
}

}  // namespace fathom
