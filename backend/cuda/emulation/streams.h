// Streams of the emulated runtime: queues of work, done when somebody waits for it.
//
// A call that launches or copies queues its work and returns; nothing runs before a wait for a
// stream, an event or the device, and then no more than the order says. So an edge between streams
// that is missing, or host memory that is written again before its copy was done, gives wrong
// results, as it may on a GPU. Works run one after another, on the thread that waits. Any thread
// may call.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>

namespace fathom::emulation {

// In which order streams' works are done where events leave a choice; the same for the branches of
// a graph. All of them happen on a GPU.
enum class Order {
  kLate,         // what is waited for and what that depends on, each as late as it can be
  kOthersFirst,  // everything else that can be done, before what is waited for
  kShuffled,     // any stream that can go on, by a generator with a seed
  kAtOnce,       // all before the call returns: the host is slow, and the device never behind
};

// From here on.
void SetOrder(Order order, uint64_t seed = 0);
// The first one again, that of FATHOM_EMULATION_ORDER: late (or unset), others, at_once, or a
// number, the seed of a shuffled one.
void ResetOrder();

// Queues `work`, or keeps it where the stream is captured.
cudaError_t Enqueue(cudaStream_t stream, std::function<void()> work);
[[nodiscard]] bool IsCaptured(cudaStream_t stream);
// From here on, a device that has no room for another graph, or one that has.
void LetGraphsFindNoMemory(bool none);

}  // namespace fathom::emulation
