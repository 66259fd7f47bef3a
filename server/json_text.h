// JSON text written straight into a string. Chunks are made once per token, where building a tree
// and printing it would cost more than everything else of the server.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fathom {

// In double quotes, escaped. What is no UTF-8 becomes U+FFFD.
void AppendJsonString(std::string_view text, std::string* out);
void AppendJsonInt(int64_t value, std::string* out);
// Shortest digits that read back equal; `value` must be finite.
void AppendJsonNumber(double value, std::string* out);

std::string JsonString(std::string_view text);

}  // namespace fathom
