// Ids and counts that several folders exchange. Vocabulary ids and positions are distinct notions
// (docs/architecture.md, "Terms") but both are int32 in memory, on the wire and in device arrays.
#pragma once

#include <cstdint>

namespace fathom {

using TokenId = int32_t;   // index into the vocabulary
using Position = int32_t;  // 0-based place of a token in its sequence

}  // namespace fathom
