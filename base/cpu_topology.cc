#include "base/cpu_topology.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/check.h"

namespace fathom {
namespace {

// No system numbers processors or nodes higher; a list that does is damaged.
constexpr int kMaxCpu = 1 << 16;

std::optional<std::vector<int>> ReadList(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  auto list = ParseCpuList(line);
  if (!list.ok()) return std::nullopt;
  return std::move(list).value();
}

}  // namespace

int CpuTopology::num_cpus() const {
  size_t count = 0;
  for (const Core& core : cores) count += core.cpus.size();
  return static_cast<int>(count);
}

std::vector<int> AllowedCpus() {
  std::vector<int> cpus;
  // The kernel refuses a mask that is smaller than its own, so ask with larger ones.
  for (size_t count = 1024; count <= size_t{kMaxCpu}; count *= 4) {
    cpu_set_t* set = CPU_ALLOC(count);
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(count);
    const bool done = ::sched_getaffinity(0, bytes, set) == 0;
    for (size_t cpu = 0; done && cpu < count; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, set)) cpus.push_back(static_cast<int>(cpu));
    }
    CPU_FREE(set);
    if (done) break;
  }
  if (cpus.empty()) {
    const int count = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    for (int cpu = 0; cpu < count; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

Result<std::vector<int>> ParseCpuList(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  std::vector<int> cpus;
  const auto bad = [&] {
    return InvalidArgument("'" + std::string(text.substr(0, 64)) + "' is no list of processors");
  };
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto number = [&](int* value) {
    const auto [next, error] = std::from_chars(at, end, *value);
    if (error != std::errc() || *value < 0 || *value > kMaxCpu) return false;
    at = next;
    return true;
  };
  while (at != end) {
    int first = 0;
    if (!number(&first)) return bad();
    int last = first;
    if (at != end && *at == '-') {
      ++at;
      if (!number(&last) || last < first) return bad();
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    if (at == end) break;
    if (*at++ != ',' || at == end) return bad();
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

CpuTopology ReadCpuTopology(const std::filesystem::path& sys_devices,
                            const std::vector<int>& allowed) {
  FATHOM_CHECK(!allowed.empty(), "a process has a processor");
  // Node of each processor; those that no node names go to the first.
  std::map<int, int> node_of;
  for (const int node : ReadList(sys_devices / "node" / "online").value_or(std::vector<int>())) {
    const std::string folder = "node" + std::to_string(node);
    const auto cpus = ReadList(sys_devices / "node" / folder / "cpulist");
    if (!cpus) continue;
    for (const int cpu : *cpus) node_of.emplace(cpu, node);
  }
  const int first_node = node_of.empty() ? 0 : node_of.begin()->second;
  const auto node = [&](int cpu) {
    const auto found = node_of.find(cpu);
    return found == node_of.end() ? first_node : found->second;
  };

  CpuTopology topology;
  for (const int cpu : allowed) topology.node_ids.push_back(node(cpu));
  std::sort(topology.node_ids.begin(), topology.node_ids.end());
  topology.node_ids.erase(std::unique(topology.node_ids.begin(), topology.node_ids.end()),
                          topology.node_ids.end());
  std::map<int, size_t> core_of;  // by the core's lowest hardware thread, usable or not
  std::vector<int> sorted = allowed;
  std::sort(sorted.begin(), sorted.end());
  for (const int cpu : sorted) {
    const auto siblings = ReadList(sys_devices / "cpu" / ("cpu" + std::to_string(cpu)) /
                                   "topology" / "thread_siblings_list");
    const int name = siblings && !siblings->empty() ? siblings->front() : cpu;
    const auto [core, is_new] = core_of.emplace(name, topology.cores.size());
    if (is_new) {
      const auto id =
          std::lower_bound(topology.node_ids.begin(), topology.node_ids.end(), node(cpu));
      topology.cores.push_back({static_cast<int>(id - topology.node_ids.begin()), {}});
    }
    topology.cores[core->second].cpus.push_back(cpu);
  }
  return topology;
}

CpuTopology ReadCpuTopology() { return ReadCpuTopology("/sys/devices/system", AllowedCpus()); }

}  // namespace fathom
