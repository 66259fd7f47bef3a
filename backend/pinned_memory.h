// Backends whose device reads memory of the host in place.
//
// What does not fit into the device's memory may lie there: operations take its addresses like any
// others, only slower. Apart from Backend because few have it; asked for by PinnedMemoryOf.
#pragma once

#include "backend/backend.h"
#include "backend/device_memory.h"

namespace fathom {

class HasPinnedMemory {
 public:
  HasPinnedMemory() = default;
  virtual ~HasPinnedMemory() = default;
  HasPinnedMemory(const HasPinnedMemory&) = delete;
  HasPinnedMemory& operator=(const HasPinnedMemory&) = delete;

  // Page-locked memory of the host that this backend's operations read at the host's addresses, so
  // host_readable() is true of it. It writes past no operation: bytes that a running operation
  // reads must stay. Lives as long as the backend.
  virtual DeviceMemory& pinned_memory() = 0;
};

// nullptr where the backend has none: all operands must lie in Backend::memory().
inline DeviceMemory* PinnedMemoryOf(Backend& backend) {
  auto* const has = dynamic_cast<HasPinnedMemory*>(&backend);
  return has == nullptr ? nullptr : &has->pinned_memory();
}

}  // namespace fathom
