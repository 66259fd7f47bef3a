// CharSet: a set of code points, and expressions for one character of it in the spelling of the
// text it stands in. Values and functions of a builder; no state.
#pragma once

#include <string>
#include <vector>

#include "grammar/grammar.h"

namespace fathom {

// How text is written where a pattern applies.
enum class TextStyle {
  kRaw,         // as it is
  kJsonString,  // inside a JSON string: '"', '\' and controls are escaped, nothing else is
  kToolValue,   // the raw value of a DSML parameter: without U+FF5C, so that no tag can be in it
};

class CharSet {
 public:
  struct Range {
    char32_t lo = 0, hi = 0;  // inclusive
  };

  CharSet() = default;
  explicit CharSet(std::vector<Range> ranges);  // any order, may overlap; surrogates are left out
  static CharSet All();

  [[nodiscard]] const std::vector<Range>& ranges() const { return ranges_; }  // ordered, apart
  [[nodiscard]] bool Has(char32_t c) const;
  [[nodiscard]] CharSet Complement() const;
  [[nodiscard]] CharSet Union(const CharSet& other) const;
  [[nodiscard]] CharSet Minus(const CharSet& other) const;

 private:
  std::vector<Range> ranges_;
};

// One character of `set`; matches nothing when there is none.
ExprId OneOf(GrammarBuilder& builder, const CharSet& set, TextStyle style);

// `text` as it is written in a JSON string, without the quotes: the one spelling that the grammars
// accept where a certain string is meant.
std::string JsonEscaped(std::string_view text);

}  // namespace fathom
