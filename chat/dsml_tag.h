// One tag of a tool-call block, such as <｜DSML｜invoke name="f">, recognised byte by byte.
//
// Models misspell these tags, and hosts rewrite their bars, so more is a tag than the official
// format writes: zero to two bars before DSML and one or two after it, each `｜`, `|` or `‖`; one
// space after the bars; any name of letters and underscores; up to six attributes in any order. A
// tag is bounded, so text is never held for longer than one. Thread safety: single-threaded.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace fathom {

struct DsmlTag {
  // invoke and parameter have fixed names, every other name is one of the wrapper around calls.
  enum class Element { kInvoke, kParameter, kWrapper };

  Element element = Element::kWrapper;
  bool is_closer = false;
  std::string style;  // how bars and space are spelled: what stands before the name
  std::string name;   // of the tool or parameter, trimmed; empty if there is none
  std::optional<std::string> string_attribute;

  // A call or parameter without a name is none.
  [[nodiscard]] bool Opens(Element which) const {
    return !is_closer && element == which && (which == Element::kWrapper || !name.empty());
  }
  [[nodiscard]] bool Closes(Element which) const { return is_closer && element == which; }
};

class DsmlTagMatcher {
 public:
  enum class Step { kMore, kDone, kFailed };

  // Begins a tag; its '<' has been read.
  void Reset();
  // The next byte. After kDone and kFailed: nothing until Reset. A '<' always fails.
  Step Push(char c);

  // After kDone.
  [[nodiscard]] const DsmlTag& tag() const { return tag_; }
  // Size, with the '<', of what is recognisably the beginning of a tag: bars, DSML, bars and the
  // name. 0 before the first bar after DSML.
  [[nodiscard]] size_t head_size() const { return head_size_; }

 private:
  enum class At {
    kBarsBefore,
    kWord,
    kBarsAfter,
    kName,
    kSpace,
    kAttributeName,
    kQuote,
    kAttributeValue,
    kAttributeEnd
  };
  Step Fail() { return Step::kFailed; }
  Step PushBars(char c);
  Step PushName(char c);
  Step PushAttribute(char c);
  Step AfterNameOrValue(char c);
  Step Done();
  void KeepAttribute();

  DsmlTag tag_;
  At at_ = At::kBarsBefore;
  size_t size_ = 1;
  size_t head_size_ = 0;
  int count_ = 0;              // bars, letters, spaces or characters of the part at hand
  std::string_view bar_rest_;  // bytes that complete a bar of several bytes
  std::string element_;
  int num_attributes_ = 0;
  bool has_name_ = false;
  std::string attribute_name_;
  std::string attribute_value_;
};

}  // namespace fathom
