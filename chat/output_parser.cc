#include "chat/output_parser.h"

#include <utility>

#include "chat/markers.h"
#include "chat/white_space.h"

namespace fathom {
namespace {

using Element = DsmlTag::Element;
using TokenKind = OutputToken::Kind;

constexpr size_t kMaxLineFeedsBeforeBlock = 2;
constexpr std::string_view kTagWord = "DSML";

// Appends `text` to `kept`, line feeds that wait, and moves everything out of it but the line feeds
// that a block may drop.
std::string WithoutLastLineFeeds(std::string_view text, std::string& kept) {
  std::string all = std::exchange(kept, std::string());
  all += text;
  size_t size = all.size();
  while (size > 0 && all.size() - size < kMaxLineFeedsBeforeBlock && all[size - 1] == '\n') --size;
  kept = all.substr(size);
  all.resize(size);
  return all;
}

}  // namespace

OutputParser::OutputParser(OutputParserOptions options)
    : tools_(options.tools),
      reads_tags_(!options.tools.empty() || options.swallow_calls),
      swallow_calls_(options.swallow_calls),
      parallel_tool_calls_(options.parallel_tool_calls),
      lexer_({.think_marks = options.split_reasoning, .tags = reads_tags_}),
      state_(options.split_reasoning && options.start == OutputState::kReasoning
                 ? State::kReasoning
                 : State::kContent) {}

void OutputParser::Push(std::string_view text, std::vector<OutputDelta>* out) {
  if (finished_) return;
  out_ = out;
  first_delta_ = out->size();
  Read(text);
  EmitArguments();
  out_ = nullptr;
}

void OutputParser::Finish(OutputEnd end, std::vector<OutputDelta>* out) {
  if (finished_) return;
  out_ = out;
  first_delta_ = out->size();
  if (state_ == State::kHeld) {
    held_ += lexer_.TakeUnfinished();
    if (end == OutputEnd::kStop) {
      // No mark ended the reasoning, so the model forgot it: what was held is read again, as
      // content. It holds no closing mark, so nothing is held a second time.
      reasoning_is_final_ = true;
      reasoning_space_.clear();
      state_ = State::kContent;
      repairs_.Add(ParserRepair::kBlockInReasoning);
      Read(std::exchange(held_, std::string()));
    } else {
      ReleaseHeld();
    }
  }
  FinishTail(end);
  EmitArguments();
  finished_ = true;
  out_ = nullptr;
}

bool OutputParser::in_reasoning() const {
  return state_ == State::kReasoning || state_ == State::kHeld ||
         (state_ == State::kPending && pending_in_reasoning_);
}

void OutputParser::Read(std::string_view text) {
  OutputToken token;
  while (lexer_.Next(text, token)) On(token);
}

void OutputParser::On(const OutputToken& token) {
  switch (state_) {
    case State::kReasoning:
      return OnReasoning(token);
    case State::kContent:
      return OnContent(token);
    case State::kPending:
      return OnPending(token);
    case State::kHeld:
      return OnHeld(token);
    case State::kArguments:
      return OnArguments(token);
    case State::kValue:
      return OnValue(token);
    case State::kBody:
      return OnBody(token);
    case State::kBetween:
      return OnBetween(token);
    case State::kDone:
      return;
  }
}

void OutputParser::OnReasoning(const OutputToken& token) {
  switch (token.kind) {
    case TokenKind::kThinkClose:
      FlushReasoning();
      state_ = State::kContent;
      return;
    case TokenKind::kThinkOpen:
    case TokenKind::kEos:
      return;
    case TokenKind::kTag:
      if (token.tag->Opens(Element::kWrapper)) {
        pending_ = token.raw;
        pending_in_reasoning_ = true;
        state_ = State::kPending;
        return;
      }
      if (IsDeclaredCall(token)) return Hold(token, {});
      return ReasoningText(token.raw);
    case TokenKind::kBrokenTag:
    case TokenKind::kText:
      return ReasoningText(token.raw);
  }
}

void OutputParser::OnContent(const OutputToken& token) {
  switch (token.kind) {
    case TokenKind::kThinkOpen:
      if (!content_began_) {
        content_space_.clear();
      } else if (!after_block_) {
        Emit(OutputDelta::Kind::kContent, std::exchange(content_space_, std::string()));
      }
      state_ = State::kReasoning;
      return;
    case TokenKind::kThinkClose:
    case TokenKind::kEos:
      return;
    case TokenKind::kTag:
      if (token.tag->Opens(Element::kWrapper)) {
        pending_ = token.raw;
        pending_in_reasoning_ = false;
        state_ = State::kPending;
      } else if (IsDeclaredCall(token)) {
        repairs_.Add(ParserRepair::kWrapperMissing);
        wrapper_ = Wrapper::kNone;
        BeginCall(token);
      } else {
        repairs_.Add(ParserRepair::kStrayTag);
      }
      return;
    case TokenKind::kBrokenTag:
      repairs_.Add(ParserRepair::kStrayTag);
      return;
    case TokenKind::kText:
      return ContentText(token.raw);
  }
}

void OutputParser::OnPending(const OutputToken& token) {
  OutputToken rest = token;
  if (token.kind == TokenKind::kText) {
    const size_t space = LeadingSpaceSize(token.raw);
    pending_ += token.raw.substr(0, space);
    if (space == token.raw.size()) return;
    rest.raw.remove_prefix(space);
  }
  const std::string_view opener = std::string_view(pending_).substr(0, pending_.find('>') + 1);
  const bool is_exact = opener == markers::kToolCallsOpen;
  if (pending_in_reasoning_) {
    const std::string pending = std::exchange(pending_, std::string());
    if (IsDeclaredCall(token)) return Hold(token, pending);
    state_ = State::kReasoning;
    ReasoningText(pending);
    return OnReasoning(rest);
  }
  if (IsDeclaredCall(token) || (is_exact && token.Opens(Element::kInvoke))) {
    wrapper_ = is_exact ? Wrapper::kExact : Wrapper::kOther;
    if (!is_exact) repairs_.Add(ParserRepair::kWrapperSpelling);
    pending_.clear();
    return BeginCall(token);
  }
  pending_.clear();
  state_ = State::kContent;
  repairs_.Add(ParserRepair::kStrayTag);
  if (token.Closes(Element::kWrapper)) {
    DropSpaceBeforeBlock();
    after_block_ = true;
    return;
  }
  OnContent(rest);
}

void OutputParser::OnHeld(const OutputToken& token) {
  if (token.kind != TokenKind::kThinkClose) {
    held_ += token.raw;
    return;
  }
  ReleaseHeld();
  OnReasoning(token);
}

bool OutputParser::IsDeclaredCall(const OutputToken& token) const {
  return token.Opens(Element::kInvoke) && tools_.Find(token.tag->name) != nullptr;
}

// A call of a declared tool inside the reasoning. `wrapper`: what came before it of its block.
void OutputParser::Hold(const OutputToken& token, std::string_view wrapper) {
  if (!reasoning_is_final_) {
    held_ = wrapper;
    held_ += token.raw;
    state_ = State::kHeld;
    return;
  }
  reasoning_space_.clear();
  state_ = State::kContent;
  if (!wrapper.empty()) {
    pending_ = wrapper;
    pending_in_reasoning_ = false;
    state_ = State::kPending;
  }
  On(token);
}

// What was held is reasoning; the marks in it are dropped as in all reasoning.
void OutputParser::ReleaseHeld() {
  const std::string held = std::exchange(held_, std::string());
  state_ = State::kReasoning;
  OutputLexer marks_only({.think_marks = true, .tags = false});
  OutputToken token;
  std::string_view text = held;
  while (marks_only.Next(text, token)) OnReasoning(token);
  ReasoningText(marks_only.unfinished());
}

// The end of the output, with what the lexer could not settle.
void OutputParser::FinishTail(OutputEnd end) {
  const bool may_be_tag = lexer_.may_become_tag();
  const std::string tail = lexer_.TakeUnfinished();
  const bool has_tag_word = reads_tags_ && tail.find(kTagWord) != std::string::npos;
  if (state_ == State::kPending && pending_in_reasoning_) {
    ReasoningText(std::exchange(pending_, std::string()));
    state_ = State::kReasoning;
  }
  switch (state_) {
    case State::kReasoning:
      ReasoningText(tail);
      FlushReasoning();
      return;
    case State::kPending:
    case State::kContent:
    case State::kBetween:
      if (has_tag_word || (state_ == State::kPending && tail.empty())) {
        if (end == OutputEnd::kStop) repairs_.Add(ParserRepair::kStrayTag);
        DropSpaceBeforeBlock();
      } else {
        ContentText(tail);
      }
      if (!after_block_) Emit(OutputDelta::Kind::kContent, content_space_);
      content_space_.clear();
      return;
    case State::kArguments:
    case State::kValue:
    case State::kBody:
      return FinishCall(end, has_tag_word ? std::string_view() : tail, may_be_tag);
    case State::kHeld:
    case State::kDone:
      return;
  }
}

void OutputParser::ReasoningText(std::string_view text) {
  if (!reads_tags_) return Emit(OutputDelta::Kind::kReasoning, text);
  Emit(OutputDelta::Kind::kReasoning, WithoutLastLineFeeds(text, reasoning_space_));
}

void OutputParser::FlushReasoning() {
  Emit(OutputDelta::Kind::kReasoning, std::exchange(reasoning_space_, std::string()));
}

void OutputParser::ContentText(std::string_view text) {
  if (!content_began_ || after_block_) {
    const size_t space = LeadingSpaceSize(text);
    content_space_ += text.substr(0, space);
    text.remove_prefix(space);
    if (text.empty()) return;
    // After a block only content in front of it makes white space worth keeping.
    if (after_block_ && !content_began_) content_space_.clear();
    content_began_ = true;
    after_block_ = false;
    Emit(OutputDelta::Kind::kContent, std::exchange(content_space_, std::string()));
  }
  if (!reads_tags_) return Emit(OutputDelta::Kind::kContent, text);
  Emit(OutputDelta::Kind::kContent, WithoutLastLineFeeds(text, content_space_));
}

void OutputParser::DropSpaceBeforeBlock() { content_space_.clear(); }

void OutputParser::Emit(OutputDelta::Kind kind, std::string_view text) {
  if (text.empty()) return;
  const bool joins = out_->size() > first_delta_ && kind != OutputDelta::Kind::kToolCall &&
                     out_->back().kind == kind;
  if (!joins) {
    const bool is_call =
        kind == OutputDelta::Kind::kToolCall || kind == OutputDelta::Kind::kToolArguments;
    out_->push_back({kind, std::string(), is_call ? num_calls_ - 1 : 0});
  }
  out_->back().text += text;
}

}  // namespace fathom
