// Names that the server gives: of answers, tool calls, items.
#pragma once

#include <string>
#include <string_view>

namespace fathom {

// The prefix and `num_digits` random hexadecimal digits (from the system's source of randomness:
// ids of different servers must not meet in a client's log). Any thread.
std::string NewId(std::string_view prefix, int num_digits = 32);

}  // namespace fathom
