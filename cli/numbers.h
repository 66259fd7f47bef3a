// Numbers as people write and read them on the command line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace fathom::cli {

// A count of 1 or more: digits, then perhaps one of k, m, g (powers of 1000) or K, M, G (powers of
// 1024; also KiB, MiB, GiB), as in 4096, 64K, 1M, 20GiB. kInvalidArgument for anything else and
// above `max`; `what` names the value in the message.
Result<int64_t> ParseCount(std::string_view text, std::string_view what, int64_t max);

// 1048576 -> "1,048,576".
std::string WithCommas(int64_t value);

// Bytes to three or four significant digits: "123 B", "12.62 MiB", "148.7 GiB".
std::string HumanBytes(int64_t bytes);

}  // namespace fathom::cli
