// ThreadPlacement: where the threads of a pool run on a machine with several memory nodes, and how
// work and weights are shared out between the nodes.
//
// Every node gets a contiguous part of a loop's tasks and of a matrix's rows, in proportion to its
// threads, so a thread mostly reads memory of its own node. Which node does what changes speed
// only: tasks own their outputs. Values; any thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/cpu_topology.h"
#include "base/status.h"

namespace fathom {

enum class NumaMode {
  kAuto,  // several nodes: threads stay on their node, one per core, and weights are shared out
  kOff,   // threads run where the system puts them, memory is one
};
Result<NumaMode> ParseNumaMode(std::string_view text);  // "auto", "off"

struct ThreadPlacement {
  struct Thread {
    int node = 0;           // index into node_ids
    std::vector<int> cpus;  // where it may run; empty: where the process may
  };
  std::vector<Thread> threads;  // by node, ascending; thread 0 is the owner of loops
  std::vector<int> node_ids;    // the system's numbers of the nodes that have threads

  [[nodiscard]] int num_nodes() const { return static_cast<int>(node_ids.size()); }
  // Node `node` has [PartBegin(n, node), PartBegin(n, node + 1)) of n tasks, rows or bytes.
  // n is not negative and below 2^50.
  [[nodiscard]] int64_t PartBegin(int64_t n, int node) const;
};

// kAuto takes nodes in turn, a free core at a time, so that they fill evenly. As long as every
// thread has a core of its own it is bound to that; with more threads than cores each is bound to
// its node. With one node nothing is bound: all memory is equally near, and a bound thread whose
// processor another program takes would wait where a free one moves on.
ThreadPlacement PlaceThreads(int num_threads, NumaMode mode, const CpuTopology& topology);

// Binds the calling thread. False when the system refuses, which costs speed only.
bool RunOn(const std::vector<int>& cpus);

}  // namespace fathom
