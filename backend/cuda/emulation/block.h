// The threads of one block at a time, for kernels that run on the host.
//
// Threads are fibers of the calling thread: each runs until it waits for its warp or its block. The
// order in which they run can be turned round (FATHOM_EMULATION_REVERSE=1), so that a result that
// hangs on it shows. What would be a hang on a GPU (some threads at a barrier, others in a warp's
// exchange) ends the program with a message.
#pragma once

#include <cstddef>
#include <functional>

namespace fathom::emulation {

struct Index3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

// Where the running thread is.
struct Place {
  Index3 thread;
  Index3 block;
  Index3 block_size;
  Index3 grid_size;
  int lane = 0;
};
const Place& Here();

// Runs `thread` for every thread of a grid, block after block. Shared memory holds 0xFF first. Ends
// the program where a GPU would refuse the launch.
void RunGrid(const Index3& grid, const Index3& block, size_t shared_bytes,
             const std::function<void()>& thread);

// Of the running thread.
void WaitForBlock();
// Gives `size` bytes, 16 at most, to the warp and waits until all of its lanes have; then Given(l)
// is what lane l gave, until the next exchange.
void Exchange(const void* value, size_t size);
const void* Given(int lane);
std::byte* SharedBytes();

}  // namespace fathom::emulation
