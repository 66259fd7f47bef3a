#include "base/thread_placement.h"

#include <sched.h>

#include <algorithm>
#include <string>

namespace fathom {

Result<NumaMode> ParseNumaMode(std::string_view text) {
  if (text == "auto") return NumaMode::kAuto;
  if (text == "off") return NumaMode::kOff;
  return InvalidArgument("'" + std::string(text.substr(0, 64)) + "': there are auto and off");
}

int64_t ThreadPlacement::PartBegin(int64_t n, int node) const {
  const auto before = std::lower_bound(threads.begin(), threads.end(), node,
                                       [](const Thread& t, int value) { return t.node < value; });
  return n * (before - threads.begin()) / static_cast<int64_t>(threads.size());
}

ThreadPlacement PlaceThreads(int num_threads, NumaMode mode, const CpuTopology& topology) {
  const auto count = static_cast<size_t>(std::max(1, num_threads));
  ThreadPlacement placement;
  if (mode == NumaMode::kOff || topology.node_ids.size() <= 1) {
    placement.node_ids = {topology.node_ids.empty() ? 0 : topology.node_ids.front()};
    placement.threads.resize(count);
    return placement;
  }
  struct Node {
    std::vector<const CpuTopology::Core*> cores;
    std::vector<int> cpus;
    size_t num_threads = 0;
  };
  std::vector<Node> nodes(topology.node_ids.size());
  for (const CpuTopology::Core& core : topology.cores) {
    Node& node = nodes[static_cast<size_t>(core.node)];
    node.cores.push_back(&core);
    node.cpus.insert(node.cpus.end(), core.cpus.begin(), core.cpus.end());
  }
  // Rounds over the nodes: first a thread for every core, then for every further hardware thread,
  // then without end.
  const bool cores_suffice = count <= topology.cores.size();
  const bool cpus_suffice = count <= static_cast<size_t>(topology.num_cpus());
  for (size_t placed = 0; placed < count;) {
    for (Node& node : nodes) {
      const size_t room = cores_suffice ? node.cores.size() : node.cpus.size();
      if (placed == count || (cpus_suffice && node.num_threads >= room)) continue;
      ++node.num_threads;
      ++placed;
    }
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    if (node.num_threads == 0) continue;
    const int index = placement.num_nodes();
    placement.node_ids.push_back(topology.node_ids[i]);
    for (size_t t = 0; t < node.num_threads; ++t) {
      placement.threads.push_back({index, cores_suffice ? node.cores[t]->cpus : node.cpus});
    }
  }
  return placement;
}

bool RunOn(const std::vector<int>& cpus) {
  if (cpus.empty()) return true;
  const size_t count = static_cast<size_t>(*std::max_element(cpus.begin(), cpus.end())) + 1;
  cpu_set_t* set = CPU_ALLOC(count);
  if (set == nullptr) return false;
  const size_t bytes = CPU_ALLOC_SIZE(count);
  CPU_ZERO_S(bytes, set);
  for (const int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), bytes, set);
  const bool done = ::sched_setaffinity(0, bytes, set) == 0;
  CPU_FREE(set);
  return done;
}

}  // namespace fathom
