// Regular expressions as grammars: classes, escapes \d \w \s and their complements (ASCII), groups,
// alternatives, * + ? {m,n}, anchors at the ends.
//
// What is no regular language (back references) or would need look-around is kUnimplemented, by
// name; what is malformed is kInvalidArgument with the offset. Lazy quantifiers are read as greedy
// ones: they match the same texts. Pure functions.
#pragma once

#include <string_view>

#include "base/status.h"
#include "grammar/char_set.h"
#include "grammar/grammar.h"

namespace fathom {

enum class RegexMatch {
  kWhole,  // the text matches from end to end
  kFind,   // a part of the text matches, as JSON Schema's `pattern`; ^ and $ pin the ends
};

// The texts that `pattern` matches, as an expression of `builder`; `style` says how their
// characters are written.
Result<ExprId> RegexToExpr(GrammarBuilder& builder, std::string_view pattern, RegexMatch match,
                           TextStyle style);

// All texts that match `pattern` as a whole.
Result<Grammar> RegexToGrammar(std::string_view pattern);

}  // namespace fathom
