// CpuTopology: the processors that this process may use, by physical core and memory node.
//
// Read from sysfs; a system that does not say counts as one node whose processors are cores of
// their own, which is what a machine without NUMA and hyper-threading looks like. Values; any
// thread.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace fathom {

struct CpuTopology {
  struct Core {
    int node = 0;           // index into node_ids
    std::vector<int> cpus;  // its hardware threads that may be used, ascending
  };
  // The system's numbers of the nodes that have usable processors, ascending. At least one.
  std::vector<int> node_ids;
  // Ordered by their first processor. At least one.
  std::vector<Core> cores;

  [[nodiscard]] int num_cpus() const;
};

// Processors that the calling thread may run on, ascending; at least one.
std::vector<int> AllowedCpus();

// "0-3,8,10-11" as sysfs writes it; kInvalidArgument for anything else. An empty list is a list.
Result<std::vector<int>> ParseCpuList(std::string_view text);

// What `sys_devices` (laid out as /sys/devices/system) says about the processors `allowed`, which
// must not be empty.
CpuTopology ReadCpuTopology(const std::filesystem::path& sys_devices,
                            const std::vector<int>& allowed);
// Of this machine and the calling thread.
CpuTopology ReadCpuTopology();

}  // namespace fathom
