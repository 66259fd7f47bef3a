#include "chat/output_lexer.h"

#include <algorithm>
#include <utility>

#include "chat/markers.h"

namespace fathom {
namespace {

struct Mark {
  std::string_view text;
  OutputToken::Kind kind;
  bool is_think_mark;
};
constexpr Mark kMarks[] = {
    {markers::kThinkOpen, OutputToken::Kind::kThinkOpen, true},
    {markers::kThinkClose, OutputToken::Kind::kThinkClose, true},
    {markers::kEos, OutputToken::Kind::kEos, false},
};

}  // namespace

void OutputLexer::Begin() {
  unfinished_ = '<';
  for (size_t i = 0; i < kNumMarks; ++i)
    mark_alive_[i] = options_.think_marks || !kMarks[i].is_think_mark;
  tag_alive_ = options_.tags;
  if (options_.tags) matcher_.Reset();
}

DsmlTagMatcher::Step OutputLexer::Offer(char c, OutputToken::Kind& kind) {
  using Step = DsmlTagMatcher::Step;
  static_assert(std::size(kMarks) == kNumMarks);
  bool alive = false;
  const size_t at = unfinished_.size();
  for (size_t i = 0; i < kNumMarks; ++i) {
    const std::string_view mark = kMarks[i].text;
    if (!mark_alive_[i]) continue;
    mark_alive_[i] = mark[at] == c;
    if (!mark_alive_[i]) continue;
    alive = true;
    if (at + 1 == mark.size()) {
      kind = kMarks[i].kind;
      return Step::kDone;
    }
  }
  if (tag_alive_) {
    const Step step = matcher_.Push(c);
    kind = OutputToken::Kind::kTag;
    if (step == Step::kDone) return step;
    tag_alive_ = step == Step::kMore;
  }
  return alive || tag_alive_ ? Step::kMore : Step::kFailed;
}

bool OutputLexer::Next(std::string_view& input, OutputToken& token) {
  using Step = DsmlTagMatcher::Step;
  token = OutputToken();
  if (!after_broken_tag_.empty()) {
    token_text_ = std::exchange(after_broken_tag_, std::string());
    token.raw = token_text_;
    return true;
  }
  if (unfinished_.empty()) {
    if (input.empty()) return false;
    const size_t text_size = std::min(input.find('<'), input.size());
    if (text_size > 0) {
      token.raw = input.substr(0, text_size);
      input.remove_prefix(text_size);
      return true;
    }
    Begin();
    input.remove_prefix(1);
  }
  while (!input.empty()) {
    const char c = input.front();
    const Step step = Offer(c, token.kind);
    if (step != Step::kFailed) {
      unfinished_ += c;
      input.remove_prefix(1);
      if (step == Step::kMore) continue;
      token_text_ = std::exchange(unfinished_, std::string());
      token.raw = token_text_;
      if (token.kind == OutputToken::Kind::kTag) token.tag = &matcher_.tag();
      return true;
    }
    // The byte is not part of what failed: it may begin something itself.
    token_text_ = std::exchange(unfinished_, std::string());
    const size_t head_size = options_.tags ? matcher_.head_size() : 0;
    token.kind = head_size > 0 ? OutputToken::Kind::kBrokenTag : OutputToken::Kind::kText;
    if (head_size > 0) {
      after_broken_tag_ = token_text_.substr(head_size);
      token_text_.resize(head_size);
    }
    token.raw = token_text_;
    return true;
  }
  return false;
}

std::string OutputLexer::TakeUnfinished() { return std::exchange(unfinished_, std::string()); }

}  // namespace fathom
