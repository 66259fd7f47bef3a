// What a stream was asked for while it was captured, for graphs of the emulated runtime.
#pragma once

#include <functional>

namespace fathom::emulation {

// Does `work`, or keeps it where a capture is under way.
void RunOrRecord(std::function<void()> work);
bool Recording();
// From here on, a device that has no room for another graph, or one that has.
void LetGraphsFindNoMemory(bool none);

}  // namespace fathom::emulation
