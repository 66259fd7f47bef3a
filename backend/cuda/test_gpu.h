// The GPU that tests of the CUDA backend run on.
//
// Without one they are skipped and say why. Where the environment variable FATHOM_REQUIRE_GPU is 1,
// a machine without one fails the whole program instead.
#pragma once

#include <string>

namespace fathom {

// Empty where the backend can be created, else why not. The first call finds out and lets the GPU
// use the heap (test_heap.h).
const std::string& MissingGpu();

}  // namespace fathom
