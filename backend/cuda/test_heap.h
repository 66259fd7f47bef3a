// The test program's heap: all of operator new comes from one range of memory that the GPU reads
// and writes in place, so that the operations' tests, which keep their operands in vectors, run on
// the CUDA backend as they are.
#pragma once

#include "base/status.h"

namespace fathom {

// Lets the current GPU use the heap at the host's addresses. Once, before operations; what was
// allocated before counts as well.
Status ShareHeapWithGpu();

}  // namespace fathom
