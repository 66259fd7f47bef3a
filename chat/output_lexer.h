// Cuts the model's text, as it streams, into plain text, think marks and tags of tool calls.
//
// What a piece of text is does not depend on what came before it, only on its own characters; what
// it means is the parser's (output_parser.h). Everything begins with '<' and holds no second one,
// so a failed beginning is never searched again: linear in the text for any pieces. Thread safety:
// single-threaded.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "chat/dsml_tag.h"

namespace fathom {

struct OutputToken {
  enum class Kind {
    kText,
    kThinkOpen,
    kThinkClose,
    kEos,
    kTag,
    kBrokenTag  // the head of a tag that is none; what followed it comes as text
  };
  Kind kind = Kind::kText;
  std::string_view raw;          // never empty; valid until the next call of the lexer
  const DsmlTag* tag = nullptr;  // kTag; valid as long

  [[nodiscard]] bool Opens(DsmlTag::Element element) const {
    return kind == Kind::kTag && tag->Opens(element);
  }
  [[nodiscard]] bool Closes(DsmlTag::Element element) const {
    return kind == Kind::kTag && tag->Closes(element);
  }
};

class OutputLexer {
 public:
  // What is not asked for is text.
  struct Options {
    bool think_marks = true;
    bool tags = true;
  };
  explicit OutputLexer(Options options) : options_(options) {}

  // The next token of `input`, which is shortened by what was read; false when it is used up. Then
  // what may still become a mark or tag is kept for the next input.
  bool Next(std::string_view& input, OutputToken& token);

  // The text that may still become a mark or tag: from a '<' to the end of the input.
  [[nodiscard]] const std::string& unfinished() const { return unfinished_; }
  // Whether that may become a tag.
  [[nodiscard]] bool may_become_tag() const { return !unfinished_.empty() && tag_alive_; }
  // Gives it up: the end of the output.
  std::string TakeUnfinished();

 private:
  static constexpr size_t kNumMarks = 3;
  void Begin();
  // Offers the next byte to whatever is still possible.
  DsmlTagMatcher::Step Offer(char c, OutputToken::Kind& kind);

  Options options_;
  std::string unfinished_;
  std::array<bool, kNumMarks> mark_alive_{};
  bool tag_alive_ = false;
  DsmlTagMatcher matcher_;
  std::string token_text_;        // what `raw` of a token views, unless it is the input
  std::string after_broken_tag_;  // text that comes next
};

}  // namespace fathom
