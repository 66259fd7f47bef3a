// Bounds of the generic kernels, checked in CudaBackend::Prepare.
#pragma once

namespace fathom::cuda {

// Channels of an attention or index head: tiles of keys in shared memory have rows of that size.
inline constexpr int kMaxHeadDim = 1024;
// Scores of a token's experts are in shared memory.
inline constexpr int kMaxExperts = 4096;

}  // namespace fathom::cuda
