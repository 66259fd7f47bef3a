// Grammars written as text: GBNF, the EBNF dialect of llama.cpp, and lists of strings. Pure
// functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/grammar.h"

namespace fathom {

// `name ::= alternatives`, where an alternative is a sequence of "literals", [classes], rule names,
// ( groups ) and `.` (any character), each with an optional *, +, ?, {m}, {m,} or {m,n}; # starts a
// comment; line breaks are blanks. Matches from the rule `root`. kInvalidArgument with line number.
Result<Grammar> EbnfToGrammar(std::string_view text);

// Exactly one of these texts (at least one; valid UTF-8).
Result<Grammar> ChoiceGrammar(const std::vector<std::string>& choices);

}  // namespace fathom
