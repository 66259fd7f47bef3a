// ByteAutomaton: a small nondeterministic automaton over bytes, for languages that are easier said
// by a machine than by an expression: "text that does not contain these strings".
//
// State 0 is the start. No epsilon edges. A value; the functions are pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fathom {

struct ByteAutomaton {
  struct Edge {
    int32_t from = 0;
    uint8_t lo = 0, hi = 0;  // inclusive
    int32_t to = 0;
  };
  std::vector<Edge> edges;
  std::vector<bool> accepting;  // one per state
};

// Exactly these strings, sharing their beginnings.
ByteAutomaton OneOfStrings(const std::vector<std::string>& strings);

// Valid UTF-8 in which none of the `forbidden` strings (not empty) occurs.
ByteAutomaton Utf8TextWithout(const std::vector<std::string>& forbidden);

// The inside of a JSON string written without escapes, or empty, that is none of `names`.
ByteAutomaton PlainJsonTextExcept(const std::vector<std::string>& names);

// A name [A-Za-z0-9_.-]+ that is none of `names`.
ByteAutomaton WordExcept(const std::vector<std::string>& names);

}  // namespace fathom
