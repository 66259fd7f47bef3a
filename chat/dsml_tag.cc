#include "chat/dsml_tag.h"

#include "chat/white_space.h"

namespace fathom {
namespace {

constexpr std::string_view kWord = "DSML";
constexpr int kMaxBars = 2;
constexpr int kMaxNameLetters = 32;
constexpr int kMaxAttributes = 6;
constexpr int kMaxSpaces = 8;
constexpr int kMaxValueCharacters = 256;

bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsSpace(char c) { return kWhiteSpace.find(c) != std::string_view::npos; }
bool StartsCharacter(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

}  // namespace

void DsmlTagMatcher::Reset() {
  tag_ = DsmlTag();
  at_ = At::kBarsBefore;
  size_ = 1;
  head_size_ = 0;
  count_ = 0;
  bar_rest_ = {};
  element_.clear();
  num_attributes_ = 0;
  has_name_ = false;
}

DsmlTagMatcher::Step DsmlTagMatcher::Push(char c) {
  ++size_;
  switch (at_) {
    case At::kBarsBefore:
    case At::kWord:
    case At::kBarsAfter:
      return PushBars(c);
    case At::kName:
      return PushName(c);
    case At::kSpace:
    case At::kAttributeName:
    case At::kQuote:
    case At::kAttributeValue:
    case At::kAttributeEnd:
      return PushAttribute(c);
  }
  return Fail();
}

DsmlTagMatcher::Step DsmlTagMatcher::PushBars(char c) {
  if (at_ == At::kBarsBefore && size_ == 2 && c == '/') {
    tag_.is_closer = true;
    return Step::kMore;
  }
  tag_.style += c;
  if (at_ == At::kWord) {
    if (c != kWord[static_cast<size_t>(count_)]) return Fail();
    if (++count_ == static_cast<int>(kWord.size())) {
      at_ = At::kBarsAfter;
      count_ = 0;
    }
    return Step::kMore;
  }
  if (!bar_rest_.empty()) {
    if (c != bar_rest_.front()) return Fail();
    bar_rest_.remove_prefix(1);
  } else if (c == '|' || c == '\xEF' || c == '\xE2') {
    if (count_ == kMaxBars) return Fail();
    ++count_;
    if (c == '\xEF') bar_rest_ = "\xBD\x9C";  // U+FF5C
    if (c == '\xE2') bar_rest_ = "\x80\x96";  // U+2016
  } else if (at_ == At::kBarsBefore) {
    if (c != kWord.front()) return Fail();
    at_ = At::kWord;
    count_ = 1;
    return Step::kMore;
  } else if (count_ == 0) {
    return Fail();
  } else {
    at_ = At::kName;
    count_ = 0;
    if (c == ' ') return Step::kMore;
    tag_.style.pop_back();
    return PushName(c);
  }
  if (at_ == At::kBarsAfter && bar_rest_.empty()) head_size_ = size_;
  return Step::kMore;
}

DsmlTagMatcher::Step DsmlTagMatcher::PushName(char c) {
  if (IsLetter(c)) {
    if (count_ == kMaxNameLetters) return Fail();
    ++count_;
    element_ += c;
    head_size_ = size_;
    return Step::kMore;
  }
  return count_ == 0 ? Fail() : AfterNameOrValue(c);
}

DsmlTagMatcher::Step DsmlTagMatcher::AfterNameOrValue(char c) {
  if (c == '>') return Done();
  if (!IsSpace(c)) return Fail();
  at_ = At::kSpace;
  count_ = 1;
  return Step::kMore;
}

DsmlTagMatcher::Step DsmlTagMatcher::PushAttribute(char c) {
  switch (at_) {
    case At::kSpace:
      if (c == '>') return Done();
      if (IsSpace(c)) return ++count_ > kMaxSpaces ? Fail() : Step::kMore;
      if (!IsLetter(c) || ++num_attributes_ > kMaxAttributes) return Fail();
      at_ = At::kAttributeName;
      count_ = 1;
      attribute_name_ = c;
      return Step::kMore;
    case At::kAttributeName:
      if (c == '=') {
        at_ = At::kQuote;
        return Step::kMore;
      }
      if (!IsLetter(c) || ++count_ > kMaxNameLetters) return Fail();
      attribute_name_ += c;
      return Step::kMore;
    case At::kQuote:
      if (c != '"') return Fail();
      at_ = At::kAttributeValue;
      count_ = 0;
      attribute_value_.clear();
      return Step::kMore;
    case At::kAttributeValue:
      if (c == '"') {
        KeepAttribute();
        at_ = At::kAttributeEnd;
        return Step::kMore;
      }
      // A name without its closing quote must not swallow what follows.
      if (c == '<' || c == '\n') return Fail();
      if (StartsCharacter(c) && ++count_ > kMaxValueCharacters) return Fail();
      // Bytes that start no character are not counted, so broken UTF-8 needs a bound of its own.
      if (attribute_value_.size() == 4 * kMaxValueCharacters) return Fail();
      attribute_value_ += c;
      return Step::kMore;
    default:
      return AfterNameOrValue(c);
  }
}

void DsmlTagMatcher::KeepAttribute() {
  if (attribute_name_ == "name" && !has_name_) {
    has_name_ = true;
    tag_.name = TrimSpace(attribute_value_);
  } else if (attribute_name_ == "string" && !tag_.string_attribute) {
    tag_.string_attribute = attribute_value_;
  }
}

DsmlTagMatcher::Step DsmlTagMatcher::Done() {
  tag_.element = element_ == "invoke"      ? DsmlTag::Element::kInvoke
                 : element_ == "parameter" ? DsmlTag::Element::kParameter
                                           : DsmlTag::Element::kWrapper;
  return Step::kDone;
}

}  // namespace fathom
