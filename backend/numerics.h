// How a backend computes.
//
// kOfficial follows the official inference code: bf16 between operations, e4m3 activations in front
// of quantised weights, e4m3 and e2m1 cache entries. kExact is float32 throughout with nothing
// rounded, for comparison with the exact goldens.
#pragma once

namespace fathom {

enum class Numerics { kOfficial, kExact };

}  // namespace fathom
