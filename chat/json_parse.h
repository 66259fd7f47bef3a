// Strict JSON reader for what clients send: bounded in depth and number of values, valid UTF-8
// only.
//
// Own reader, because two things must survive that general libraries drop: the spelling of numbers
// and the place of a repeated key (it keeps its first place and takes its last value, as Python's
// dict). Thread safety: a pure function.
#pragma once

#include <cstddef>
#include <string_view>

#include "base/status.h"
#include "chat/json_value.h"

namespace fathom {

struct JsonParseOptions {
  // Python reads NaN, Infinity, -Infinity and numbers beyond double's range; so do the argument
  // strings of a conversation's history. A request body may hold none of them.
  bool allow_non_finite = false;
  int max_depth =
      256;  // nested arrays and objects; also bounds the recursion here and in JsonValue
  // A value takes 40 bytes however short its text is; without a limit `[0,0,...` costs 20 times its
  // size.
  size_t max_values = size_t{4} << 20;
};

// One JSON value with nothing but whitespace around it. kInvalidArgument with the byte offset
// otherwise: bad grammar, invalid UTF-8, an escape that makes a lone surrogate, a limit exceeded.
Result<JsonValue> ParseJson(std::string_view text, const JsonParseOptions& options = {});

}  // namespace fathom
