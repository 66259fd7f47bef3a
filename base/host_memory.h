// HostMemory: how much memory this process can have, by what the system and its control group say.
//
// Values; any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace fathom {

struct HostMemory {
  // Of the machine, or what the process's group may use where that is less.
  int64_t total_bytes = 0;
  // Of it, what can be had without pushing other programs out; files that the system keeps in
  // memory count as free. At least a page.
  int64_t available_bytes = 0;
  // Both are 0 where the system does not say.
  [[nodiscard]] bool known() const { return available_bytes > 0; }
};

// From folders laid out as /proc and /sys/fs/cgroup (version 2, or 1 with its memory controller).
HostMemory ReadHostMemory(const std::filesystem::path& proc, const std::filesystem::path& cgroups);
// Of this process.
HostMemory ReadHostMemory();

// "3.06 GB", for errors that set sizes against it.
std::string Gigabytes(uint64_t bytes);

}  // namespace fathom
